"""The command line: it parses, and calls `pocketbert.api`."""

import sys

if sys.platform == "win32":  # here, because the modules below import what only Linux and macOS have
    sys.exit("Error: PocketBERT runs on Linux and macOS, not on Windows. Fix: install it in WSL (wsl --install).")
