"""The command line: it parses, and calls `pocketbert.api`."""

import sys

from pocketbert.core.host.system import unsupported_system

if text := unsupported_system():  # here, because the modules below import what only Linux and macOS have
    sys.exit(f"Error: {text}")
