"""What this process may remove: what it created, and folders that it has locked and recognises by their marker.

Every deletion and every rename of the library passes through this module, which refuses all other paths. A test walks
through the code and finds a call that does not.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from filelock import FileLock, Timeout

from pocketbert.core.errors import InputError, MachineError, Problem

# --- marker ---
# The file that tells a folder of PocketBERT from a user's.


MARKER = ".pocketbert.json"
"""File that tells a folder of PocketBERT from a user's."""

_MARKER_BYTES = 64 << 10


def is_marked(folder: Path, kind: str) -> bool:
    """Whether a folder bears the marker of a kind."""
    return _read_marker(folder).get("kind") == kind


def write_marker(folder: Path, kind: str, **more: object) -> None:
    """Mark a folder that this process created.

    Args:
        folder: The folder.
        kind: What it is, in words.
        more: What else is remembered in the marker.
    """
    text = json.dumps({"made by": "PocketBERT", "kind": kind, **more}) + "\n"
    (folder / MARKER).write_text(text, encoding="utf-8")


def read_marker(folder: Path, kind: str) -> dict[str, object]:
    """What the marker of a kind remembers; empty where a folder has no such marker."""
    marker = _read_marker(folder)
    return marker if marker.get("kind") == kind else {}


def _read_marker(folder: Path) -> dict[str, object]:
    path = folder / MARKER
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MARKER_BYTES:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and content.get("made by") == "PocketBERT" else {}


LOCK = ".lock"
"""File in a marked folder that its process holds a lock on; the lock ends with the process."""

TEMPORARY = ".pocketbert-tmp"
"""Ending of files that are not whole yet; a killed process may leave one."""

NOT_RENAMED = (errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES)
"""What the system says of a folder that is a mount point, lies in a lower layer of an overlay, or is another user's."""

LOST_FOUND = "lost+found"
"""Folder that some file systems have at their root; it belongs to nobody's output."""

_LONGEST_NAME = 100
"""Bytes of an output's name that its temporary siblings repeat."""

_ours: set[Path] = set()
"""Folders that this process holds, and temporary files that it created, resolved."""

Recognise = Callable[[Path], Sequence[str]]
"""Names what is in a folder and was not made by PocketBERT; nothing where all of it was."""


@dataclass(frozen=True)
class Contents:
    """The files of a finished folder, by which it is recognised after the process that made it has ended.

    Attributes:
        sign: File that every such folder holds.
        names: Patterns of the other paths in it, relative to the folder; ``*`` matches slashes too.
    """

    sign: str
    names: tuple[str, ...]

    def __call__(self, folder: Path) -> list[str]:
        """Paths in a folder that no such folder holds; all of them where the sign is missing."""
        paths = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
        if self.sign not in paths:
            return paths
        return [p for p in paths if not any(fnmatch(p, known) for known in (self.sign, *self.names))]


def everything(folder: Path) -> list[str]:
    """Recognise nothing: all entries of a folder are the user's."""
    return sorted(p.name for p in folder.iterdir())


def is_ours(path: Path) -> bool:
    """Whether this process created a path, or holds the folder that it lies in."""
    place = path.parent.resolve() / path.name
    return any(place.is_relative_to(own) for own in _ours)


def refuse_strangers(path: Path, recognise: Recognise) -> None:
    """Refuse to touch a path that holds anything that PocketBERT did not make.

    Args:
        path: A folder or file that may be there.
        recognise: Names what in it was not made by PocketBERT.

    Raises:
        InputError: Naming the first of these; nothing was removed.
    """
    if is_ours(path) or not os.path.lexists(path):
        return
    strangers = recognise(path) if path.is_dir() else [path.name]
    if strangers:
        shown = ", ".join(strangers[:3]) + (f" and {len(strangers) - 3} more" if len(strangers) > 3 else "")
        raise InputError(
            Problem(
                str(path),
                f"holds what PocketBERT did not write ({shown}); nothing was removed.",
                "Move it away, or choose another place.",
            )
        )


def remove(path: Path, recognise: Recognise | None = None) -> None:
    """Remove a file or folder if it is there. The only place of the library that does.

    Args:
        path: What to remove; of a link, only the link.
        recognise: For a folder of an earlier process: names what in it was not made by PocketBERT.

    Raises:
        InputError: If this process neither created it nor holds the folder that it lies in, and it is not recognised.
    """
    refuse_strangers(path, recognise or everything)
    if path.is_symlink() or (os.path.lexists(path) and not path.is_dir()):
        path.unlink()
    elif path.is_dir():
        if not is_ours(path) and recognise is None:
            path.rmdir()  # it is empty, and stays so: a folder that has been filled meanwhile is kept
        else:
            _remove_folder(path)


def empty(path: Path) -> None:
    """Remove what is in a folder that this process holds.

    Raises:
        InputError: If this process does not hold the folder.
    """
    refuse_strangers(path, everything)
    _empty_but_marker(path)
    (path / MARKER).unlink(missing_ok=True)


def _remove_folder(path: Path) -> None:
    _empty_but_marker(path)
    shutil.rmtree(path)


def _empty_but_marker(path: Path) -> None:
    """The marker goes last: what a process leaves that is killed here must still be recognised."""
    for child in [p for p in path.iterdir() if p.name not in (MARKER, LOST_FOUND)]:
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def replace_file(source: Path, destination: Path) -> None:
    """Rename a file that this process wrote; a file at the destination is replaced in the same moment.

    Where the destination is on another file system, a copy beside it is renamed, and the source removed.

    Raises:
        InputError: If the source was not made by this process.
    """
    refuse_strangers(source, everything)
    try:
        source.replace(destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with temporary_file(destination) as copied, copied.open("wb") as stream, source.open("rb") as whole:
            shutil.copyfileobj(whole, stream)
            stream.flush()
            os.fsync(stream.fileno())
            copied.replace(destination)
        source.unlink()


def remove_known(folder: Path, names: Sequence[str]) -> None:
    """Remove files of a folder that were recognised before, and the folders below it that are empty then.

    Args:
        folder: An output that this process fills: it holds a temporary folder in it or beside it.
        names: Paths in it; those that are not there are passed over.

    Raises:
        InputError: If this process fills no such output.
    """
    place = folder.resolve()
    if not any(own.parent in (place, place.parent) for own in _ours):
        raise InputError(Problem(str(folder), "is not held by this process; nothing was removed."))
    for name in names:
        path = folder / name
        if path.is_symlink() or path.is_file():
            path.unlink()
    for parent in sorted({p for name in names for p in Path(name).parents if p.name}, reverse=True):
        with contextlib.suppress(OSError):  # not empty, or gone
            (folder / parent).rmdir()


def install(source: Path, destination: Path, aside: Path, recognise: Recognise = everything) -> None:
    """Rename a folder that this process made to its final name; an older one is moved aside first, and kept there.

    Args:
        source: The new folder.
        destination: Its final name.
        aside: Where an older folder goes; a free name in a folder that this process holds.
        recognise: Names what in the older folder was not made by PocketBERT.

    Raises:
        InputError: If the older folder holds anything that PocketBERT did not make.
    """
    refuse_strangers(source, everything)
    refuse_strangers(destination, recognise)
    remove(aside)
    if os.path.lexists(destination):
        destination.rename(aside)
    try:
        source.rename(destination)
    except OSError:
        if os.path.lexists(aside):
            aside.rename(destination)
        raise


def move_aside(path: Path, recognise: Recognise) -> Path | None:
    """Give a file or folder that PocketBERT did not make another name, so that its own may be used; nothing is lost.

    Args:
        path: What may be there.
        recognise: Names what in it was not made by PocketBERT.

    Returns:
        ``NAME.aside-<number>``, or None where nothing was in the way.
    """
    if not os.path.lexists(path) or (path.is_dir() and not path.is_symlink() and not recognise(path)):
        return None
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.aside-{number}")):
        number += 1
    return path.rename(aside)


@contextlib.contextmanager
def temporary_file(destination: Path) -> Iterator[Path]:
    """Make an empty file next to `destination`, and remove it at the end if it is still there.

    Yields:
        ``.NAME.<random>.pocketbert-tmp``, with the permissions that a new file has.
    """
    handle, name = tempfile.mkstemp(dir=destination.parent, prefix=sibling_prefix(destination), suffix=TEMPORARY)
    mask = os.umask(0)
    os.umask(mask)
    os.fchmod(handle, 0o666 & ~mask)
    path = Path(name)
    with _registered(path):
        try:
            _lock_while_open(handle)
            yield path
        finally:
            os.close(handle)
            remove(path)


def _lock_while_open(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_abandoned(destination: Path) -> None:
    """Remove the files that killed processes of this user left next to a destination; a running process locks its own."""
    name = sibling_prefix(destination)
    with contextlib.suppress(OSError), os.scandir(destination.parent) as entries:
        left = [e for e in entries if e.name.startswith(name) and e.name.endswith(TEMPORARY)]
        for entry in left:
            if not entry.is_file(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
            if _lock_while_open(handle):
                Path(entry.path).unlink()
            os.close(handle)


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder that is removed at the end; files written in it may be renamed into `parent`."""
    with (
        tempfile.TemporaryDirectory(dir=parent, prefix=".", suffix=TEMPORARY) as name,
        _registered(Path(name)),
    ):
        yield Path(name)


def remove_temporary_files(folder: Path) -> None:
    """Remove what killed processes left of files that were not whole, in a folder that this process holds."""
    for path in folder.glob(f".*{TEMPORARY}"):
        remove(path)


@contextlib.contextmanager
def claim(folder: Path, kind: str, **more: object) -> Iterator[None]:
    """Hold a folder: mark it where it is new, lock it, and be allowed to remove what is in it until the block ends.

    Args:
        folder: The folder; made where it is not there.
        kind: What it is, in words.
        more: What else the marker of a new folder remembers.

    Raises:
        InputError: If the folder holds something and does not bear the marker of this kind.
        MachineError: If another process holds it.
    """
    refuse_unmarked(folder, kind)
    folder.mkdir(parents=True, exist_ok=True)
    if not is_marked(folder, kind):
        write_marker(folder, kind, **more)
    with _locked(folder), _registered(folder):
        yield


def refuse_unmarked(folder: Path, kind: str) -> None:
    """Refuse a file, and a folder that holds something and does not bear the marker of a kind.

    Raises:
        InputError: Saying so; nothing was written.
    """
    if not os.path.lexists(folder) or is_marked(folder, kind):
        return
    if folder.is_dir():
        entries = [p for p in folder.iterdir() if p.name != LOST_FOUND]
        # a process killed in its first moment leaves an empty marker
        if not entries or (entries == [folder / MARKER] and entries[0].stat().st_size == 0):
            return
    raise InputError(
        Problem(
            str(folder),
            f"exists and is not a {kind}; nothing was written.",
            "Choose another folder with -o/--output.",
        )
    )


def lock_beside(folder: Path) -> FileLock:
    """Lock a folder for all processes that use it, with an empty file ``.NAME.lock`` next to it.

    Raises:
        InputError: If something else has that name.
    """
    path = folder.parent / f".{folder.name}.lock"
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file() or path.stat().st_size):
        raise InputError(
            Problem(str(path), "exists and is not a lock file of PocketBERT; it is not touched.", "Move it away.")
        )
    return FileLock(path)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise MachineError(
            f"another process is working in {folder}. Wait for it, or choose another folder with -o/--output."
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _registered(path: Path) -> Iterator[None]:
    place = path.parent.resolve() / path.name
    _ours.add(place)
    try:
        yield
    finally:
        _ours.discard(place)


def sibling_prefix(path: Path) -> str:
    """How names of temporary siblings of a path begin; a random part follows."""
    return f".{os.fsencode(path.name)[:_LONGEST_NAME].decode(errors='ignore')}."


# --- locks ---
# Locks on folders: two processes do not change the same folder at once.


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


# --- unmarked ---
# Temporary folders between their making and their marking: a process that is killed there leaves one without a marker.
#
# The name tells them from a user's, and a lock on the folder itself tells those of a running process.


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
