"""Locks on folders: two processes do not change the same folder at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pocketbert.core.errors import MachineError

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
"""How a folder is opened to lock it."""


@contextlib.contextmanager
def folder_locked(folder: Path) -> Iterator[None]:
    """Keep other processes from changing a folder until the block ends.

    A process that is killed leaves no lock. Where the file system has no locks, the block runs without one.

    Args:
        folder: A folder that is there.

    Raises:
        MachineError: If another process is changing it.
    """
    handle = os.open(folder.resolve(), FOLDER)
    try:
        if lock(handle) is False:
            raise MachineError(f"another process is writing to {folder}. Wait for it, then start the command again.")
        yield
    finally:
        os.close(handle)


def lock(handle: int) -> bool | None:
    """Lock an open folder: whether that was possible; None where the file system has no such locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
