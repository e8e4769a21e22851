"""Deleting and renaming: only what this process created or has locked, and folders recognised as PocketBERT's.

Every deletion and every rename of the library passes through this module, which refuses all other paths with an
InputError; only `move_aside` renames what others wrote. A test searches the code for calls elsewhere.

1. `write_marker`, `read_marker`, `is_marked`: the file ``.pocketbert.json`` that marks a folder of PocketBERT,
2. `claim_folder`: mark and lock a folder, so that this process may remove what is in it; `lock_beside`, `lock_folder`:
   other locks,
3. `FolderContents`, `list_entries`: how a finished folder is recognised, which has no marker; `refuse_foreign_files` applies it,
4. `temporary_file`, `temporary_folder`: unfinished files, which `remove_abandoned` removes after a kill,
5. `remove`, `empty_folder`, `replace_file`, `install_folder`, `move_aside`: the deletions and renames themselves.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.errors import InputError, MachineError, Problem

if TYPE_CHECKING:
    from filelock import FileLock

MARKER = ".pocketbert.json"
"""File that marks a folder as PocketBERT's."""

LOCK_FILE = ".lock"
"""File in a marked folder that the process working in it locks; the lock ends with the process."""

TEMPORARY_SUFFIX = ".pocketbert-tmp"
"""Suffix of unfinished files and folders; a killed process may leave some."""

RENAME_ERRORS = (errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES)
"""Errors of renaming a mount point, a folder in a lower layer of an overlay, or another user's folder."""

LOST_FOUND = "lost+found"
"""Folder at the root of some file systems; it is no part of an output."""

FindForeign = Callable[[Path], Sequence[str]]
"""Lists what a folder holds that PocketBERT did not write; empty if it wrote all of it."""

_MAX_MARKER_BYTES = 64 << 10
_MAX_NAME_BYTES = 100
"""Bytes of an output's name that the names of its temporary siblings repeat."""

_own_paths: set[Path] = set()
"""Folders that this process holds, and temporary files that it created, resolved."""


# --- markers ------------------------------------------------------------


def is_marked(folder: Path, kind: str) -> bool:
    """Return whether a folder has PocketBERT's marker file of this kind, such as "run folder"."""
    return _read_any_marker(folder).get("kind") == kind


def write_marker(folder: Path, kind: str, **more: object) -> None:
    """Write PocketBERT's marker file into a folder, with the folder's kind and further entries; the caller checks that the folder is its own."""
    text = json.dumps({"made by": "PocketBERT", "kind": kind, **more}) + "\n"
    (folder / MARKER).write_text(text, encoding="utf-8")


def read_marker(folder: Path, kind: str) -> dict[str, object]:
    """Read a folder's marker file; return an empty dictionary if it has none of this kind."""
    marker = _read_any_marker(folder)
    return marker if marker.get("kind") == kind else {}


def _read_any_marker(folder: Path) -> dict[str, object]:
    """Read a folder's marker file of any kind; return an empty dictionary if there is none by PocketBERT."""
    path = folder / MARKER
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_MARKER_BYTES:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and content.get("made by") == "PocketBERT" else {}


# --- locks ------------------------------------------------------------


@contextlib.contextmanager
def claim_folder(folder: Path, kind: str, **more: object) -> Iterator[None]:
    """Mark and lock a folder until the block ends; until then, this process may remove what is in the folder.

    Args:
        folder: The folder; created if it is missing.
        kind: Purpose of the folder in words, such as "run folder"; stored in its marker file.
        more: Further entries for the marker file of a new folder.

    Raises:
        InputError: If the path is a file, or a folder with content but without a marker of this kind.
        MachineError: If another process has locked the folder.
    """
    from filelock import FileLock, Timeout

    refuse_unmarked(folder, kind)
    folder.mkdir(parents=True, exist_ok=True)
    if not is_marked(folder, kind):
        write_marker(folder, kind, **more)
    file_lock = FileLock(folder / LOCK_FILE)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        raise MachineError(
            f"another process is working in {folder}. Wait for it, or choose another folder with -o/--output."
        ) from None
    try:
        with _own(folder):
            yield
    finally:
        file_lock.release()


def refuse_unmarked(folder: Path, kind: str) -> None:
    """Raise InputError if a path is a file, or a folder with content but without PocketBERT's marker of this kind.

    Raises:
        InputError: If the path is refused; nothing was written.
    """
    if not os.path.lexists(folder) or is_marked(folder, kind):
        return
    if folder.is_dir():
        entries = [p for p in folder.iterdir() if p.name != LOST_FOUND]
        # a process killed in its first moment leaves an empty marker
        if not entries or (entries == [folder / MARKER] and entries[0].stat().st_size == 0):
            return
    problem = f"exists and is not a {kind}; nothing was written."
    raise InputError(Problem(str(folder), problem, "Choose another folder with -o/--output."))


def lock_beside(folder: Path) -> FileLock:
    """Return a file lock that all processes using a folder share: the empty file ``.NAME.lock`` next to the folder.

    Raises:
        InputError: If something else than an empty file has that name.
    """
    from filelock import FileLock

    path = folder.parent / f".{folder.name}.lock"
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or path.stat().st_size):
        raise InputError(
            Problem(str(path), "exists and is not a lock file of PocketBERT; it is not touched.", "Move it away.")
        )
    return FileLock(path)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock an existing folder until the block ends, so that other processes do not change it.

    The lock of a process that is killed ends with it. If the file system has no locks, the block runs without one.

    Raises:
        MachineError: If another process is changing the folder.
    """
    handle = os.open(folder.resolve(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        if try_lock(handle) is False:
            raise MachineError(f"another process is writing to {folder}. Wait for it, then start the command again.")
        yield
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool | None:
    """Try to lock an open file or folder without waiting.

    Returns:
        True if the lock was taken, False if another process holds it, None if the file system has no such locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def _own(path: Path) -> Iterator[None]:
    """Mark a path as created by this process while the `with` block runs, so that `remove` may delete it.

    Without such a mark, `remove` refuses to delete files that PocketBERT did not write.
    """
    resolved = path.parent.resolve() / path.name
    _own_paths.add(resolved)
    try:
        yield
    finally:
        _own_paths.discard(resolved)


def _is_own_path(path: Path) -> bool:
    """Return whether this process created a path, or has claimed a folder that it lies in."""
    resolved = path.parent.resolve() / path.name
    return any(resolved.is_relative_to(own) for own in _own_paths)


# --- recognising folders ------------------------------------------------------------


@dataclass(frozen=True)
class FolderContents:
    """Patterns of the files that a finished output folder may hold, by which PocketBERT recognizes it as its own.

    Attributes:
        sign: Name of a file that every such folder contains.
        names: Patterns of the paths of all other files, relative to the folder; ``*`` matches slashes too.
    """

    sign: str
    names: tuple[str, ...]

    def __call__(self, folder: Path) -> list[str]:
        """List the paths in a folder that match none of the patterns; all of them if the file `sign` is missing."""
        paths = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
        if self.sign not in paths:
            return paths
        return [p for p in paths if not any(fnmatch(p, pattern) for pattern in (self.sign, *self.names))]


def list_entries(folder: Path) -> list[str]:
    """List all entries of a folder: the `FindForeign` function for folders in which PocketBERT may remove nothing."""
    return sorted(p.name for p in folder.iterdir())


def refuse_foreign_files(path: Path, find_foreign: FindForeign) -> None:
    """Raise InputError if a path holds anything that PocketBERT did not write.

    A path that this process created, or inside a folder that it has claimed, is never refused; neither is a
    missing path. Any other path that is not a folder is refused.

    Args:
        path: File or folder that the caller is about to remove.
        find_foreign: Function that lists what PocketBERT did not write in a folder.

    Raises:
        InputError: Naming up to three of these files; nothing was removed.
    """
    if _is_own_path(path) or not os.path.lexists(path):
        return
    foreign = find_foreign(path) if path.is_dir() else [path.name]
    if foreign:
        shown = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        problem = f"holds what PocketBERT did not write ({shown}); nothing was removed."
        raise InputError(Problem(str(path), problem, "Move it away, or choose another place."))


# --- temporary files ------------------------------------------------------------


def temporary_prefix(path: Path) -> str:
    """Return the beginning of the names of temporary files next to a path; a random part follows."""
    return f".{os.fsencode(path.name)[:_MAX_NAME_BYTES].decode(errors='ignore')}."


@contextlib.contextmanager
def temporary_file(destination: Path) -> Iterator[Path]:
    """Yield an empty temporary file next to `destination`, and remove it after the block if it still exists.

    Yields:
        ``.NAME.<random>.pocketbert-tmp``, with the permissions that a new file has.
    """
    prefix = temporary_prefix(destination)
    handle, name = tempfile.mkstemp(dir=destination.parent, prefix=prefix, suffix=TEMPORARY_SUFFIX)
    mask = os.umask(0)
    os.umask(mask)
    os.fchmod(handle, 0o666 & ~mask)
    path = Path(name)
    with _own(path):
        try:
            try_lock(handle)  # shows other processes that this one is running
            yield path
        finally:
            os.close(handle)
            remove(path)


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Create a temporary folder that is removed when the block ends; its files may be renamed into `parent`."""
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix=".", suffix=TEMPORARY_SUFFIX) as name,
        _own(Path(name)),
    ):
        yield Path(name)


def remove_abandoned(destination: Path) -> None:
    """Remove the temporary files that killed processes of this user left next to an output path.

    Temporary files of running processes are locked, and stay.
    """
    prefix = temporary_prefix(destination)
    with contextlib.suppress(OSError), os.scandir(destination.parent) as entries:
        abandoned = [e for e in entries if e.name.startswith(prefix) and e.name.endswith(TEMPORARY_SUFFIX)]
        for entry in abandoned:
            if not entry.is_file(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
            if try_lock(handle):
                Path(entry.path).unlink()
            os.close(handle)


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files of killed processes from a folder that this process has locked."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        remove(path)


# --- removing and renaming ------------------------------------------------------------


def remove(path: Path, find_foreign: FindForeign | None = None) -> None:
    """Remove a file or folder, if it exists, after checking that PocketBERT made it.

    An empty folder is removed whoever made it.

    Args:
        path: What to remove; if it is a link, the link is removed and not what it leads to.
        find_foreign: Function that lists the files in a folder that PocketBERT did not write. With it, a folder of an
            earlier process is removed if the list is empty.

    Raises:
        InputError: If this process neither created the path nor claimed a folder around it, and it is a file, or a folder in
            which `find_foreign` lists files (without `find_foreign`: a folder that is not empty).
    """
    refuse_foreign_files(path, find_foreign or list_entries)
    if path.is_symlink() or (os.path.lexists(path) and not path.is_dir()):
        path.unlink()
    elif path.is_dir():
        if not _is_own_path(path) and find_foreign is None:
            path.rmdir()  # the folder was empty; one that has been filled meanwhile is kept
        else:
            _remove_all_but_marker(path)
            shutil.rmtree(path)


def empty_folder(path: Path) -> None:
    """Remove everything but ``lost+found`` in a folder that this process has claimed, its marker file last.

    Raises:
        InputError: If this process has not claimed the folder.
    """
    refuse_foreign_files(path, list_entries)
    _remove_all_but_marker(path)
    (path / MARKER).unlink(missing_ok=True)


def _remove_all_but_marker(folder: Path) -> None:
    """Remove everything in a folder except ``lost+found`` and its marker file, which must still be there if the process is killed."""
    for child in [p for p in folder.iterdir() if p.name not in (MARKER, LOST_FOUND)]:
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def remove_listed_files(folder: Path, names: Sequence[str]) -> None:
    """Remove the named files from an output folder, and then the folders in it that became empty.

    Args:
        folder: An output folder, in or beside which this process must have a temporary folder.
        names: Paths relative to the folder; missing files are skipped.

    Raises:
        InputError: If this process has no temporary folder there.
    """
    resolved = folder.resolve()
    if not any(own.parent in (resolved, resolved.parent) for own in _own_paths):
        raise InputError(Problem(str(folder), "is not held by this process; nothing was removed."))
    for name in names:
        path = folder / name
        if path.is_symlink() or path.is_file():
            path.unlink()
    for parent in sorted({p for name in names for p in Path(name).parents if p.name}, reverse=True):
        with contextlib.suppress(OSError):  # not empty, or gone
            (folder / parent).rmdir()


def remove_named_files(paths: Iterable[Path], pattern: re.Pattern[str]) -> None:
    """Remove files by names that only PocketBERT gives, such as ``best-120.safetensors``; missing files are skipped.

    Raises:
        InputError: If a name does not match the pattern, or a path is no regular file; nothing is removed then.
    """
    files = [path for path in paths if os.path.lexists(path)]
    foreign = [path for path in files if path.is_symlink() or not path.is_file() or not pattern.fullmatch(path.name)]
    if foreign:
        raise InputError(Problem(str(foreign[0]), "is not a file of PocketBERT; nothing was removed.", "Move it away."))
    for path in files:
        path.unlink(missing_ok=True)


def replace_file(source: Path, destination: Path) -> None:
    """Rename a file that this process wrote to its final name, atomically replacing an older file.

    If the destination is on another file system, a copy beside it is renamed and the source removed.

    Raises:
        InputError: If the source was not written by this process.
    """
    refuse_foreign_files(source, list_entries)
    try:
        source.replace(destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with temporary_file(destination) as copy, copy.open("wb") as copy_stream, source.open("rb") as source_stream:
            shutil.copyfileobj(source_stream, copy_stream)
            copy_stream.flush()
            os.fsync(copy_stream.fileno())
            copy.replace(destination)
        source.unlink()


def install_folder(source: Path, destination: Path, aside: Path, find_foreign: FindForeign = list_entries) -> None:
    """Rename a folder that this process made to its final name, after moving an older one to `aside`; if the rename fails, move it back.

    Args:
        source: The new folder.
        destination: Final path of the folder.
        aside: Path to which an older folder is moved, in a folder that this process has claimed; what is there is removed.
        find_foreign: Function that lists the files in the older folder that PocketBERT did not write.

    Raises:
        InputError: If the older folder holds anything that PocketBERT did not write, or `source` is not this process's.
    """
    refuse_foreign_files(source, list_entries)
    refuse_foreign_files(destination, find_foreign)
    remove(aside)
    if os.path.lexists(destination):
        destination.rename(aside)
    try:
        source.rename(destination)
    except OSError:
        if os.path.lexists(aside):
            aside.rename(destination)
        raise


def move_aside(path: Path, find_foreign: FindForeign) -> Path | None:
    """Rename what is at a path to ``NAME.aside-<number>``, unless it is a folder of PocketBERT's files only.

    Files and links are moved whoever wrote them.

    Returns:
        The new path, or None if nothing had to be moved.
    """
    if not os.path.lexists(path) or (path.is_dir() and not path.is_symlink() and not find_foreign(path)):
        return None
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.aside-{number}")):
        number += 1
    return path.rename(aside)
