"""The command line."""

from support.fixtures import cli
