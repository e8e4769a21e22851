"""Fixtures of other folders that these tests take."""

from support.fixtures import cli

__all__ = ["cli"]
