"""Mount points, also those of a folder of the same file system (``mount --bind``), which have its device number."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TABLE = Path("/proc/self/mountinfo")
_TARGET = 4
"""Column of the mount point."""


def is_mount_point(path: Path) -> bool:
    """Whether something is mounted at a path, so that it cannot be renamed or replaced.

    Args:
        path: A resolved path.
    """
    if os.path.ismount(path):
        return True
    try:
        lines = _TABLE.read_bytes().splitlines()
    except OSError:  # not Linux
        return False
    targets = (line.split(b" ")[_TARGET] for line in lines if line.count(b" ") >= _TARGET)
    return os.fsencode(path) in {_unescaped(target) for target in targets}


def _unescaped(target: bytes) -> bytes:
    r"""Spaces, tabs, line feeds and backslashes are written as ``\040`` and the like."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), target)
