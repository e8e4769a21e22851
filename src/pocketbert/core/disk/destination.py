"""Where output is written: links are followed, and what could stop the last step is checked before the first one.

`resolve_output_folder` and `resolve_output_file` resolve what the user named with -o/--output and refuse places that
cannot or must not be written; `keeps_place` finds folders that cannot be renamed; `remove_new_folders_on_error` cleans up after
wrong input.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from pocketbert.core.disk.files import check_writable
from pocketbert.core.disk.ownership import MARKER, list_entries, remove, remove_abandoned
from pocketbert.core.errors import InputError, MissingBackendError, Problem

_ARTEFACT_LIST = "artifacts.json"
"""File that lists the files of a finished folder."""

_OTHER_OUTPUT = "Choose another -o/--output."
_OUTSIDE_OUTPUT = "Choose an -o/--output outside of it."
_SHORTER_OUTPUT = "Choose a shorter -o/--output."
_RESERVED_BYTES = 300
"""Length that paths in an output and names of temporary files need."""
_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT_COLUMN = 4
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
}


def resolve_output_folder(path: Path, *sources: Path) -> Path:
    """Check that a folder can be written at an output path, and return it with links followed.

    A link to a folder stands for that folder; a link to nothing stands for the folder that it would lead to.

    Args:
        path: The output path that the user gave.
        sources: Files and folders that the command reads, which the output may not replace.

    Returns:
        The folder, as the user wrote it unless links had to be followed. It need not exist.

    Raises:
        InputError: If the path cannot be used, something else than a folder is there, the folder is or contains a
            source, or it lies in a source. Nothing was written.
        MachineError: If the place cannot be written.
    """
    output = _follow_links(path)
    kind = _kind(output)
    if kind not in ("", _KINDS[stat.S_IFDIR]):
        raise _refusal(path, f"is {kind}, and a folder is written; nothing was changed.", _OTHER_OUTPUT)
    real = output.resolve()
    for source in (s.resolve() for s in sources):
        if source.is_relative_to(real):
            raise _refusal(path, f"is or contains {source}, which is read; nothing was written.", _OTHER_OUTPUT)
        if source.is_dir() and real.is_relative_to(source):
            raise _refusal(path, f"lies in {source}, which is read; nothing was written.", _OUTSIDE_OUTPUT)
    check_writable(output if keeps_place(output) else output.parent)
    return output


def resolve_output_file(path: Path, overwrite: bool, *sources: Path) -> Path:
    """Check that a file can be written at an output path, and return it with links followed.

    Temporary files that killed processes left for this output are removed.

    Args:
        path: The output path that the user gave.
        overwrite: Whether an existing file may be replaced.
        sources: Files and folders that the command reads. Files in these folders may not be replaced, but a new file
            may be added.

    Returns:
        The file, as the user wrote it unless links had to be followed. It need not exist.

    Raises:
        InputError: If the path cannot be used, a file is there and `overwrite` is not set, or something is there that
            is never replaced: a folder, a source, a mounted file, or a path in an artefact folder or a marked folder such as a
            run folder (a page ``*.html`` may be added to that). Nothing was written.
        MachineError: If the place cannot be written.
    """
    output = _follow_links(path)
    kind, real = _kind(output), output.resolve()
    if kind not in ("", _KINDS[stat.S_IFREG]):
        raise _refusal(path, f"is {kind}, and a file is written; nothing was changed.", _OTHER_OUTPUT)
    if any(real == source.resolve() for source in sources):
        raise _refusal(path, "is read by this command; nothing was written.", _OTHER_OUTPUT)
    for folder in real.parents:
        if (folder / _ARTEFACT_LIST).is_file():
            what = (
                f"lies in the artefact folder {folder}, whose {_ARTEFACT_LIST} lists every file; nothing was written."
            )
            raise _refusal(path, what, _OUTSIDE_OUTPUT)
        if (folder / MARKER).is_file() and (real.suffix != ".html" or real.parent != folder):  # pages may be added
            what = f"lies in {folder}, which PocketBERT keeps for itself; nothing was written."
            raise _refusal(path, what, _OUTSIDE_OUTPUT)
    if kind and _is_mount_point(real):
        raise _refusal(path, "is mounted by itself and cannot be replaced.", "Mount the folder that it lies in.")
    if kind and not overwrite:
        raise _refusal(path, "exists; nothing was written.", "Choose another name, or add --overwrite to replace it.")
    check_writable(output.parent)
    remove_abandoned(output)
    return output


def keeps_place(output: Path) -> bool:
    """Return whether an output folder cannot be renamed, so that its contents must be replaced instead.

    This is the case for a mount point, the current folder, and a folder whose parent this user may not change.
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
    return _is_mount_point(output.resolve())


def _is_mount_point(path: Path) -> bool:
    """Return whether something is mounted at a resolved path, so that it cannot be renamed or replaced.

    ``mount --bind`` of a folder of the same file system keeps its device number, so Linux' list of mounts is read too.
    """
    if os.path.ismount(path):
        return True
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:  # not Linux
        return False
    targets = (line.split(b" ")[_MOUNT_POINT_COLUMN] for line in lines if line.count(b" ") >= _MOUNT_POINT_COLUMN)
    # spaces, tabs, line feeds and backslashes are written as \040 and the like
    unescaped = {re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), target) for target in targets}
    return os.fsencode(path) in unescaped


@contextlib.contextmanager
def remove_new_folders_on_error(output: Path) -> Iterator[None]:
    """Remove the empty folders that the block created for an output if it ends with wrong input, a missing library or Ctrl-C."""
    missing = [p for p in (output, *output.parents) if not os.path.lexists(p)]
    try:
        yield
    except (InputError, MissingBackendError, KeyboardInterrupt):
        for folder in missing:
            if folder.is_dir() and not list_entries(folder):
                remove(folder)
        raise


def _follow_links(path: Path) -> Path:
    """Return the path as it is, or where its links lead if it is a link, has a broken one or ``..`` in it; raise InputError if it is unusable."""
    try:
        str(path).encode()
        if "\0" in str(path):
            raise ValueError
        real = path.resolve()
        _check_lengths(path, real)
    except (UnicodeEncodeError, ValueError):
        raise _refusal(path, "is not a name in UTF-8 without null characters.", _OTHER_OUTPUT) from None
    except (OSError, RuntimeError) as error:  # a ring of links is a RuntimeError
        why = getattr(error, "strerror", None) or "its links lead in a circle"
        raise _refusal(path, f"cannot be used: {why.lower()}.", _OTHER_OUTPUT) from None
    leads_away = any(p.is_symlink() and (p == path or not p.exists()) for p in (path, *path.parents))
    if leads_away or not path.name or ".." in path.parts:
        path = real
    for parent in path.parents:
        if os.path.lexists(parent):
            if not parent.is_dir():
                raise _refusal(path, f"{parent} is {_kind(parent)}, no folder.", _OTHER_OUTPUT)
            break
    return path


def _check_lengths(path: Path, real: Path) -> None:
    """Raise InputError if a name is too long for the file system, or the path leaves no room for an output's files."""
    existing = next(p for p in (real, *real.parents) if p.exists())
    max_name, max_path = os.pathconf(existing, "PC_NAME_MAX"), os.pathconf(existing, "PC_PATH_MAX")
    for name in real.relative_to(existing).parts:
        if len(os.fsencode(name)) > max_name:
            what = f"has a name of {len(os.fsencode(name))} bytes; the file system takes {max_name}."
            raise _refusal(path, what, _SHORTER_OUTPUT)
    if len(os.fsencode(real)) + _RESERVED_BYTES > max_path:
        what = f"is {len(os.fsencode(real))} bytes long, which leaves no room for the files in it."
        raise _refusal(path, what, _SHORTER_OUTPUT)


def _kind(path: Path) -> str:
    """Return in words what is at a path, such as "a folder"; empty if nothing is there."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "no folder")
    except OSError:
        return "" if not os.path.lexists(path) else "no folder"


def _refusal(path: Path, what: str, fix: str) -> InputError:
    return InputError(Problem(str(path), what, fix))
