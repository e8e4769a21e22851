"""The command line as ``python -m pocketbert``."""

from __future__ import annotations

from pocketbert.cli.main import main

main()
