"""Reading files within bounds, writing them atomically, hashing and copying them.

- read: `read_json`, `read_regular`, `open_regular` refuse what is no regular file (a pipe, a device, a file of
  /proc) instead of waiting for it, and files above a size; `check_size`, `check_schema`, `safe_join` check sizes,
  schema versions and paths that other files name,
- write: `write_json`, `write_atomic`, `open_atomic` replace a file in one moment, `sync_path` pushes it to disk,
  `check_writable` fails early,
- hash, measure and copy a file or folder: `sha256_file`, `sha256_path`, `sha256_bytes`, `sha256_json`, `file_digests`, `path_bytes`,
  `copy_path`.

The module imports nothing outside the standard library: the QNN worker uses it in an environment of its own. Functions
import what only they need, so that a process that answers one text does not load it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pocketbert.core.errors import InputError, MachineError, Problem

_MIB = 1 << 20
_MAX_LISTED_KEYS = 5
"""Keys with invalid Unicode that an error lists."""
_MAX_VERSION_LENGTH = 20
"""Characters of a schema version that an error shows."""
_FILE_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_SYSTEM_FOLDERS = ("/proc", "/sys")
"""Their files look regular, and may be endless or block when they are read."""


# --- reading ------------------------------------------------------------


def check_regular(path: Path, where: str = "") -> None:
    """Raise InputError if a path is not a regular file, without opening it.

    Args:
        path: The file; links are followed.
        where: Name of the file in the error message; by default the path.

    Raises:
        InputError: If the path is missing, a link to itself, a folder, a pipe, a device, a socket, or a file in /proc or /sys.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # a null byte in the name is a ValueError
        raise InputError(Problem(where or str(path), "file not found.")) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(Problem(where or str(path), "is a link that leads back to itself.")) from error
        raise
    _check_status(status, where or str(path))


def _check_status(status: os.stat_result, where: str) -> None:
    """Raise InputError unless the result of `stat` is that of a regular file outside /proc and /sys."""
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise InputError(Problem(where, f"is {_FILE_KINDS.get(kind, 'no regular file')}, not a file.", "Name a file."))
    for folder in _SYSTEM_FOLDERS:
        if not Path(folder).is_dir():
            continue
        if Path(folder).stat().st_dev == status.st_dev != Path("/").stat().st_dev:
            raise InputError(Problem(where, f"is a file of the system ({folder}), not data.", "Name another file."))


def open_regular(path: Path, where: str = "") -> FileIO:
    """Open a regular file to read its bytes.

    Args:
        path: The file; links are followed.
        where: Name of the file in the error message; by default the path.

    Raises:
        InputError: If the path is not a regular file, see `check_regular`.
    """
    check_regular(path, where)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_status(os.fstat(handle), where or str(path))  # the path may have been replaced since
        return FileIO(handle)
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file; raise InputError if it has more than `limit` bytes, even if it grows meanwhile.

    Raises:
        InputError: If the file is larger, or cannot be opened; see `check_regular`.
    """
    with BufferedReader(open_regular(path)) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise InputError(Problem(str(path), f"larger than {limit / _MIB:g} MiB, refused."))
    return content


def read_json(path: Path, limit_mib: int = 64) -> Any:
    """Read and parse a JSON file of bounded size.

    Raises:
        InputError: If the file is missing, too large, no JSON, or has an escaped half of a surrogate pair.
    """
    raw = read_regular(path, limit_mib * _MIB)
    try:
        content = json.loads(raw.decode())
        # only an escape can spell half of a surrogate pair
        locations = find_non_unicode(content) if b"\\ud" in raw.lower() else iter(())
        invalid_keys = [".".join(map(str, keys))[:80] or "the text" for keys in islice(locations, _MAX_LISTED_KEYS)]
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(str(path), f"not valid JSON: {error}.")) from error
    if invalid_keys:
        what = f"{', '.join(invalid_keys)}: half of a surrogate pair, which is not Unicode text."
        raise InputError(Problem(str(path), what, "Remove it."))
    return content


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8, which halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_non_unicode(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of keys to every text and key in a nested value that cannot be encoded in UTF-8, such as ("labels", 3).

    Args:
        value: The nested value.
        keys: Key path of `value` itself.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if not is_unicode(str(key)):
                yield (*keys, ascii(key))
            yield from find_non_unicode(item, (*keys, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from find_non_unicode(item, (*keys, i))
    elif isinstance(value, str) and not is_unicode(value):
        yield keys


def check_size(path: Path, limit_mib: int) -> None:
    """Raise InputError if a file is larger than `limit_mib` MiB, too large to load into memory.

    Raises:
        InputError: If the file is larger than `limit_mib` MiB.
    """
    if path.stat().st_size > limit_mib * _MIB:
        raise InputError(Problem(str(path), f"larger than {limit_mib} MiB, refused."))


def check_schema(path: Path, content: Any, readable: str, fix: str) -> None:
    """Raise InputError if the schema of a JSON file has another major version than this version of PocketBERT reads.

    Args:
        path: The file, for the message.
        content: The parsed content of the file.
        readable: The version that can be read, e.g. ``1.0``.
        fix: What to do, for the message.

    Raises:
        InputError: If ``schema_version`` is missing or of another major version.
    """
    version = str(content.get("schema_version", ""))[:_MAX_VERSION_LENGTH] if isinstance(content, dict) else ""
    if version.split(".")[0] != readable.split(".")[0]:
        what = f"schema version {version!r} cannot be read; this version reads {readable}."
        raise InputError(Problem(str(path), what, fix))


def safe_join(root: Path, relative: str, where: str) -> Path:
    """Join `root` and `relative`; raise InputError for a path that leaves `root`.

    `where` names the file that contains `relative`, for error messages.

    Raises:
        InputError: For absolute paths, ``..`` and links that point outside.
    """
    candidate = root / relative
    resolved_root = root.resolve()
    try:
        candidate.exists()  # raises for names that are too long or not Unicode
        # a null byte ends the name for the system, so such a path is not what it looks like
        safe = "\0" not in relative and not Path(relative).is_absolute()
        safe = safe and candidate.resolve().is_relative_to(resolved_root)
    except (OSError, ValueError, RuntimeError) as error:  # a ring of links is a RuntimeError
        why = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(Problem(where, f"path {relative[:60]!r} is not usable: {why}.")) from error
    if not safe:
        raise InputError(Problem(where, f"path {relative!r} leaves the folder {root}; refused."))
    return candidate


# --- writing ------------------------------------------------------------


@contextlib.contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing, and rename it to `path` when the block ends without an error.

    Args:
        path: Where to write; its folder must exist. An existing file is replaced at the end.
    """
    from pocketbert.core.disk.ownership import replace_file, temporary_file

    with temporary_file(path) as temporary:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        replace_file(temporary, path)


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file atomically: readers see either its old content or the new one. Text is written as UTF-8."""
    with open_atomic(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync_path(path: Path) -> None:
    """Flush a file or a folder's list of entries to disk with fsync, so that a later rename cannot come before it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems cannot sync a folder
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(handle)


def check_writable(folder: Path) -> None:
    """Raise MachineError if no file can be written to a folder; the folder is not created, and no file stays in it.

    Raises:
        MachineError: If `folder`, or its nearest existing parent, refuses a new file.
    """
    import tempfile

    from pocketbert.core.disk.ownership import TEMPORARY_SUFFIX

    nearest = next(p for p in (folder, *folder.parents, Path()) if os.path.lexists(p))
    try:
        with tempfile.TemporaryFile(dir=nearest, prefix=".write-test.", suffix=TEMPORARY_SUFFIX):
            pass  # Linux gives it no name, so that a kill leaves nothing
    except OSError as error:
        raise MachineError(
            f"cannot write to {folder}: {error.strerror or error}. "
            "Fix: choose another folder with -o/--output, or make this one writable."
        ) from error


# --- hashing, measuring, copying ------------------------------------------------------------


_digests: dict[tuple[int, ...], str] = {}
"""Digests of large files by device, inode, size and times of change: model files are hashed at every step of a run."""
_LARGE = 1 << 20
_SETTLED_NS = 2_000_000_000
"""Age from which on a file's times tell whether it changed since: clocks of file systems tick in up to two seconds."""


def sha256_file(path: Path) -> str:
    """Return the sha256 of a regular file as hexadecimal text; cached, so that an unchanged large file is read once."""
    import hashlib

    with open_regular(path) as stream:
        found = os.fstat(stream.fileno())
        key = _identity_of(found)
        if key in _digests:
            return _digests[key]
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if found.st_size >= _LARGE and _is_settled(found):
            _digests[key] = digest
        return digest


def _identity_of(found: os.stat_result) -> tuple[int, ...]:
    """Return numbers from a file's status that change whenever the file is replaced or written."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_settled(found: os.stat_result) -> bool:
    return time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > _SETTLED_NS


def identify_path(path: Path) -> tuple[object, ...] | None:
    """Return a key that changes when a file, or any file in a folder, is replaced or written.

    None for a path that is missing, or was written in the last two seconds: file systems may give two such writes the
    same time.
    """
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    try:
        found = [(str(p.relative_to(path)), p.stat()) for p in files]
    except OSError:
        return None
    return tuple((name, *_identity_of(s)) for name, s in found) if all(_is_settled(s) for _, s in found) else None


def sha256_path(path: Path) -> str:
    """Return the sha256 of a file; for a folder, such as a Core ML package, that of all names and files in it."""
    if not path.is_dir():
        return sha256_file(path)
    return sha256_json([[name, digest] for name, digest in file_digests(path).items()])


def sha256_bytes(content: bytes) -> str:
    """Return the sha256 of a content in memory as hexadecimal text."""
    return str(_own_sha256().sha256(content).hexdigest())


@cache
def _own_sha256() -> Any:
    """Return CPython's own module of SHA-256 if there is one: to load OpenSSL's library takes 4 MB and 5 ms."""
    return import_module(next(filter(find_spec, ("_sha2", "_sha256", "hashlib"))))  # from 3.12 on, up to 3.11, always


def sha256_json(value: Any) -> str:
    """Return the sha256 of a value's JSON text; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256_bytes(text.encode())


def file_digests(path: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder, by its relative path.

    If `path` is a file, the only entry has the name ``""``; if it is missing, there are none.
    """
    if not path.is_dir():
        return {"": sha256_file(path)} if path.is_file() else {}
    files = sorted((p.relative_to(path).as_posix(), p) for p in path.rglob("*") if p.is_file())
    return {name: sha256_file(p) for name, p in files}


def path_bytes(path: Path) -> int:
    """Return the size in bytes of a file, or of all files below a folder."""
    if not path.is_dir():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def copy_path(source: Path, destination: Path) -> None:
    """Copy a file, or a folder with all that is in it."""
    import shutil

    if source.is_dir():
        shutil.copytree(source, destination)
    else:
        shutil.copyfile(source, destination)
