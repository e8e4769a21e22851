"""Operating systems that PocketBERT runs on."""

from __future__ import annotations

import sys


def refusal() -> str:
    """Say why the verbs do not run on this system, and what to do; empty where they do."""
    if sys.platform == "win32":
        return "PocketBERT runs on Linux and macOS, not on Windows. Fix: install it in WSL (wsl --install)."
    return ""
