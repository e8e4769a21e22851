"""Where results that belong to this machine are remembered."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$POCKETBERT_CACHE``, else the user's cache folder."""
    base = os.environ.get("POCKETBERT_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pocketbert"
