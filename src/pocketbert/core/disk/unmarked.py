"""Temporary folders between their making and their marking: a process that is killed there leaves one without a marker.

The name tells them from a user's, and a lock on the folder itself tells those of a running process.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pocketbert.core.disk.locks import FOLDER, lock
from pocketbert.core.disk.marker import MARKER
from pocketbert.core.disk.ownership import LOCK, TEMPORARY

_RANDOM = r"[a-z0-9_]{8}"
"""What `tempfile` puts between the beginning and the end of a name."""


@contextlib.contextmanager
def new_folder(place: Path, prefix: str) -> Iterator[Path]:
    """Make a folder with a random name and lock it until the block ends, which is to mark it.

    Args:
        place: Where it is made.
        prefix: How its name begins.

    Yields:
        ``PREFIX<random>.pocketbert-tmp``.
    """
    path, handle = _made(place, prefix)
    try:
        yield path
    finally:
        os.close(handle)


def _made(place: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=TEMPORARY, dir=place))
        with contextlib.suppress(FileNotFoundError):  # another process took it for one that was left
            handle = os.open(path, FOLDER)
            # without locks in this file system no process removes it either
            if lock(handle) is not False and path.is_dir():
                return path, handle
            os.close(handle)


def unmarked_in(folder: Path, prefix: str) -> list[Path]:
    """List the folders of this user that `new_folder` made and nobody marked, of running processes too."""
    pattern = re.compile(re.escape(prefix) + _RANDOM + re.escape(TEMPORARY))
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if not pattern.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid == os.getuid() and _holds_nothing(folder / entry.name):
                found.append(folder / entry.name)
    return found


@contextlib.contextmanager
def of_no_process(path: Path) -> Iterator[None]:
    """Hold an unmarked folder that no running process made.

    Raises:
        OSError: If a running process is about to mark it, or the file system cannot tell.
    """
    handle = os.open(path, FOLDER)
    try:
        if not lock(handle):
            raise BlockingIOError(f"{path} belongs to a running process")
        yield
    finally:
        os.close(handle)


def _holds_nothing(path: Path) -> bool:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return all(e.name in (MARKER, LOCK) and e.stat(follow_symlinks=False).st_size == 0 for e in entries)
    return False
