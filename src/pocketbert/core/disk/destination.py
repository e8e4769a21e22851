"""Where output goes: links followed, and everything that could stop the last step found before the first one."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from pocketbert.core.disk.files import check_writable
from pocketbert.core.disk.ownership import MARKER, remove, remove_abandoned
from pocketbert.core.errors import InputError, MissingBackendError, Problem

# --- mounts ---
# Mount points, also those of a folder of the same file system (``mount --bind``), which have its device number.


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


LIST = "artifacts.json"
"""File that lists the files of a finished folder."""

_ELSEWHERE = "Choose another -o/--output."
_BYTES_INSIDE = 300
"""Room that paths in an output and names of temporary files need."""
_PAGE = ".html"
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
}


def folder_destination(path: Path, *sources: Path) -> Path:
    """Find out which folder an output path means, and whether it can be written.

    A link to a folder means that folder, a dangling link the folder that it would lead to.

    Args:
        path: What the user named.
        sources: Files and folders that are read.

    Returns:
        The folder, as the user wrote it where nothing had to be followed. It need not be there.

    Raises:
        InputError: If the path cannot be used, something else than a folder is there, the folder is or contains a
            source, or it lies in a source. Nothing was written.
        MachineError: If the place cannot be written.
    """
    output = _followed(path)
    kind = _kind(output)
    if kind not in ("", _KINDS[stat.S_IFDIR]):
        raise _refused(path, f"is {kind}, and a folder is written; nothing was changed.", _ELSEWHERE)
    real = output.resolve()
    for source in (s.resolve() for s in sources):
        if source.is_relative_to(real):
            raise _refused(path, f"is or contains {source}, which is read; nothing was written.", _ELSEWHERE)
        if source.is_dir() and real.is_relative_to(source):
            what = f"lies in {source}, which is read; nothing was written."
            raise _refused(path, what, "Choose an -o/--output outside of it.")
    check_writable(output if keeps_place(output) else output.parent)
    return output


def file_destination(path: Path, overwrite: bool, *sources: Path) -> Path:
    """Find out which file an output path means, and whether it can be written; its folder is made later.

    Args:
        path: What the user named.
        overwrite: Whether a file that is there may be replaced.
        sources: Files and folders that are read; a folder's files may not be replaced, but a file may be added.

    Returns:
        The file, as the user wrote it where nothing had to be followed. It need not be there.

    Raises:
        InputError: If the path cannot be used, a file is there and `overwrite` is not set, or something is there that
            is never replaced: a folder, a source, a file of an artefact folder or of a run folder. Nothing was written.
        MachineError: If the place cannot be written.
    """
    output = _followed(path)
    kind, real = _kind(output), output.resolve()
    if kind not in ("", _KINDS[stat.S_IFREG]):
        raise _refused(path, f"is {kind}, and a file is written; nothing was changed.", _ELSEWHERE)
    if any(real == source.resolve() for source in sources):
        raise _refused(path, "is read by this command; nothing was written.", _ELSEWHERE)
    for folder in real.parents:
        if (folder / LIST).is_file():
            what = f"lies in the artefact folder {folder}, whose {LIST} lists every file; nothing was written."
            raise _refused(path, what, "Choose an -o/--output outside of it.")
        if (folder / MARKER).is_file() and (real.suffix != _PAGE or real.parent != folder):
            what = f"lies in {folder}, which PocketBERT keeps for itself; nothing was written."
            raise _refused(path, what, "Choose an -o/--output outside of it.")
    if kind and is_mount_point(real):
        raise _refused(path, "is mounted by itself and cannot be replaced.", "Mount the folder that it lies in.")
    if kind and not overwrite:
        raise _refused(path, "exists; nothing was written.", "Choose another name, or add --overwrite to replace it.")
    check_writable(output.parent)
    remove_abandoned(output)
    return output


def keeps_place(output: Path) -> bool:
    """Whether an existing folder cannot or should not be replaced by a rename, so that only its contents are.

    That is a mount point, the folder that the command was started in, and one whose parent takes no other names from us.
    """
    if not output.is_dir():
        return False
    parent, user = output.resolve().parent, os.geteuid()
    if not os.access(parent, os.W_OK | os.X_OK):
        return True
    if parent.stat().st_mode & stat.S_ISVTX and user not in (0, parent.stat().st_uid, output.stat().st_uid):
        return True
    with contextlib.suppress(OSError):  # the current folder may be gone
        if output.samefile(Path.cwd()):
            return True
    return is_mount_point(output.resolve())


@contextlib.contextmanager
def leaving_nothing(output: Path) -> Iterator[None]:
    """Remove the empty folders that the block made for an output, where it ends because the input is wrong."""
    missing = [p for p in (output, *output.parents) if not os.path.lexists(p)]
    try:
        yield
    except (InputError, MissingBackendError):
        for folder in missing:
            with contextlib.suppress(InputError, OSError):  # something is in it
                remove(folder)
        raise


def _refused(path: Path, what: str, fix: str) -> InputError:
    return InputError(Problem(str(path), what, fix))


def _followed(path: Path) -> Path:
    """The path itself where it can be used as it is, else where it leads."""
    try:
        str(path).encode()
        if "\0" in str(path):
            raise ValueError
        real = path.resolve()
        _check_lengths(path, real)
    except (UnicodeEncodeError, ValueError):
        raise _refused(path, "is not a name in UTF-8 without null characters.", _ELSEWHERE) from None
    except (OSError, RuntimeError) as error:  # a ring of links is a RuntimeError
        why = getattr(error, "strerror", None) or "its links lead in a circle"
        raise _refused(path, f"cannot be used: {why.lower()}.", _ELSEWHERE) from None
    leads_away = any(p.is_symlink() and (p == path or not p.exists()) for p in (path, *path.parents))
    if leads_away or not path.name or ".." in path.parts:
        path = real
    for parent in path.parents:
        if os.path.lexists(parent):
            if not parent.is_dir():
                raise _refused(path, f"{parent} is {_kind(parent)}, no folder.", _ELSEWHERE)
            break
    return path


def _check_lengths(path: Path, real: Path) -> None:
    """Refuse names that the file system does not take, or that leave no room for the files of an output."""
    there = next(p for p in (real, *real.parents) if p.exists())
    longest, whole = os.pathconf(there, "PC_NAME_MAX"), os.pathconf(there, "PC_PATH_MAX")
    for name in real.relative_to(there).parts:
        if len(os.fsencode(name)) > longest:
            what = f"has a name of {len(os.fsencode(name))} bytes; the file system takes {longest}."
            raise _refused(path, what, "Choose a shorter -o/--output.")
    if len(os.fsencode(real)) + _BYTES_INSIDE > whole:
        what = f"is {len(os.fsencode(real))} bytes long, which leaves no room for the files in it."
        raise _refused(path, what, "Choose a shorter -o/--output.")


def _kind(path: Path) -> str:
    """What is at a path, in words; empty where nothing is."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "no folder")
    except OSError:
        return "" if not os.path.lexists(path) else "no folder"
