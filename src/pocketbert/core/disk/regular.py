"""Open files that hold data: what is no regular file is refused, and never waited for."""

from __future__ import annotations

import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path

from pocketbert.core.errors import InputError, Problem

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_OF_THE_SYSTEM = ("/proc", "/sys")
"""Their files look regular, and may be endless, or wait for ever when they are read."""


def check_regular(path: Path, where: str = "") -> None:
    """Refuse a path that is not a regular file, without opening it.

    Args:
        path: The file; links are followed.
        where: What the error names; default the path.

    Raises:
        InputError: If it is missing, a folder, a pipe, a device, a socket, or a file of the system.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # a null byte in the name is a ValueError
        raise InputError(Problem(where or str(path), "file not found.")) from error
    _check(found, where or str(path))


def open_regular(path: Path, where: str = "") -> FileIO:
    """Open a regular file to read its bytes.

    Args:
        path: The file; links are followed.
        where: What the error names; default the path.

    Raises:
        InputError: See `check_regular`.
    """
    check_regular(path, where)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(os.fstat(handle), where or str(path))  # the path may have become something else
        return FileIO(handle)
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file of bounded size.

    Args:
        path: The file; links are followed.
        limit: Most bytes that it may have, also where it grows while it is read.

    Raises:
        InputError: If it is larger, or cannot be opened; see `check_regular`.
    """
    with BufferedReader(open_regular(path)) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise InputError(Problem(str(path), f"larger than {limit / (1 << 20):g} MiB, refused."))
    return content


def _check(found: os.stat_result, where: str) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise InputError(Problem(where, f"is {_KINDS.get(kind, 'no regular file')}, not a file.", "Name a file."))
    for folder in _OF_THE_SYSTEM:
        if os.path.isdir(folder) and os.stat(folder).st_dev == found.st_dev != os.stat("/").st_dev:  # noqa: PTH112, PTH116
            raise InputError(Problem(where, f"is a file of the system ({folder}), not data.", "Name another file."))
