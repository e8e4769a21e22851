"""Files of a mutated input, read without harm: an input may be a device, a pipe, or gigabytes of nothing."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

MIB = 1 << 20
LARGEST = 96 * MIB
"""Bytes of a file that a mutator may read."""
UNPACKED = 32 * MIB
"""Bytes of an archive's content that a mutator may read: lines of no length take much memory."""


def is_plain(path: Path, limit: int = LARGEST) -> bool:
    """Whether a path is a regular file of bounded size, by `lstat`: a link is none, since it may lead to a device."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= limit


def read_plain(path: Path, limit: int = LARGEST) -> bytes:
    """Read a regular file of bounded size.

    Args:
        path: The file.
        limit: Most bytes that it may have.

    Raises:
        OSError: If it is something else, or larger.
    """
    if not is_plain(path, limit):
        raise OSError(f"{path}: no regular file of at most {limit} bytes")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        return stream.read(limit)


def unpacked(path: Path) -> bytes:
    """Read a file, or what an archive holds, of bounded size.

    Raises:
        OSError: See `read_plain`.
    """
    if path.suffix != ".gz":
        return read_plain(path)
    if not is_plain(path):
        raise OSError(f"{path}: no regular file")
    with gzip.open(path) as stream:
        raw = stream.read(UNPACKED + 1)
    if len(raw) > UNPACKED:
        raise OSError(f"{path}: more than {UNPACKED} bytes")
    return raw


def odd_things(folder: Path) -> list[Path]:
    """What lies below a folder and must not be opened: neither folder nor plain, nor a link to one of these within it."""
    root, out = folder.resolve(), []
    for base, folders, files in os.walk(folder):
        for path in (Path(base) / n for n in (*folders, *files)):
            if not path.is_symlink():
                odd = not path.is_dir() and not is_plain(path)
            else:
                target = Path(os.path.realpath(path))
                odd = (
                    not target.is_relative_to(root) or target.is_symlink() or not (target.is_dir() or is_plain(target))
                )
            if odd:
                out.append(path)
    return out
