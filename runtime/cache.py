"""Where results that belong to this machine are remembered."""

from __future__ import annotations

import os
from pathlib import Path

from pocketbert.core.host.home import home_folder


def remembered(kind: str, key: str) -> Path | None:
    """Return the file that holds a result of this machine, there or not.

    Args:
        kind: What was found out, a folder name.
        key: Digest of everything that the result depends on.

    Returns:
        A file below ``$POCKETBERT_CACHE``, else below the user's cache folder; None where there is no home folder. Results
        are then found anew by each process: a temporary folder could be another user's.
    """
    base = os.environ.get("POCKETBERT_CACHE")
    if base:
        return Path(base) / kind / f"{key}.json"
    caches = os.environ.get("XDG_CACHE_HOME")
    home = home_folder()
    if not caches and home is None:
        return None
    folder = Path(caches) if caches else home / ".cache"  # type: ignore[operator]  # one of them is there
    return folder / "pocketbert" / kind / f"{key}.json"
