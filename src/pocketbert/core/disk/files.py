"""Files that are either whole or not there: atomic writes, hashes, bounded reads."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pocketbert.core.disk.ownership import TEMPORARY, replace_file, temporary_file
from pocketbert.core.errors import InputError, MachineError, Problem

# --- encoding ---
# Whether texts can be written in UTF-8: JSON and YAML can spell halves of surrogate pairs, which no encoding has.


def is_unicode(text: str) -> bool:
    """Whether text can be written in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def keys_without_encoding(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where nested dictionaries and lists hold texts that cannot be written in UTF-8, names of keys included."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not is_unicode(str(key)):
                yield (*keys, ascii(key))
            yield from keys_without_encoding(item, (*keys, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from keys_without_encoding(item, (*keys, i))
    elif isinstance(value, str) and not is_unicode(value):
        yield keys


# --- regular ---
# Open files that hold data: what is no regular file is refused, and never waited for.


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


_MIB = 1 << 20
_MOST_HALVES = 5
"""Places of texts without an encoding that an error names."""
_VERSION = 20
"""Characters of a version that are shown."""


def sha256_file(path: Path) -> str:
    """Hex digest of a regular file's bytes."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_path(path: Path) -> str:
    """Hex digest of a file's bytes, or of the names and bytes of everything in a folder (a Core ML package is one)."""
    if not path.is_dir():
        return sha256_file(path)
    return sha256_json([[name, digest] for name, digest in digests(path).items()])


def digests(path: Path) -> dict[str, str]:
    """sha256 of every file below a folder by its path in it; of a file, of itself under the name ``""``.

    Empty where there is nothing.
    """
    if not path.is_dir():
        return {"": sha256_file(path)} if path.is_file() else {}
    files = sorted((p.relative_to(path).as_posix(), p) for p in path.rglob("*") if p.is_file())
    return {name: sha256_file(p) for name, p in files}


def path_bytes(path: Path) -> int:
    """Size of a file, or of everything in a folder."""
    return folder_bytes(path) if path.is_dir() else path.stat().st_size


def copy_path(source: Path, destination: Path) -> None:
    """Copy a file, or a folder with all that is in it."""
    if source.is_dir():
        shutil.copytree(source, destination)
    else:
        shutil.copyfile(source, destination)


def sha256_json(value: Any) -> str:
    """Hex digest of a JSON-able value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sync(path: Path) -> None:
    """Push a file's or folder's entries to disk, so that a rename after it cannot be seen before it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems cannot sync a folder
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes appear as a file when the block ends without an error; before that, nothing changes.

    Args:
        path: Where to write; its folder must exist. A file that is there is replaced at the end.
    """
    with temporary_file(path) as temporary:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        replace_file(temporary, path)


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file so that readers see the old bytes or the new ones, never half.

    Args:
        path: Where to write; its folder must exist.
        data: The whole content; text is UTF-8.
    """
    with writing(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, value: Any) -> None:
    """Atomically write indented JSON with a final newline."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_size(path: Path, limit_mib: int) -> None:
    """Refuse a file that would take the memory before anybody could look at it.

    Raises:
        InputError: If it is larger.
    """
    if path.stat().st_size > limit_mib * _MIB:
        raise InputError(Problem(str(path), f"larger than {limit_mib} MiB, refused."))


def read_json(path: Path, limit_mib: int = 64) -> Any:
    """Read JSON of bounded size.

    Raises:
        InputError: If the file is missing, too large, no JSON, or spells half of a surrogate pair, which no encoding has.
    """
    raw = read_regular(path, limit_mib * _MIB)
    try:
        content = json.loads(raw.decode())
        # only an escape can spell half of a pair
        found = keys_without_encoding(content) if b"\\ud" in raw.lower() else iter(())
        halves = [".".join(map(str, keys))[:80] or "the text" for keys in islice(found, _MOST_HALVES)]
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(str(path), f"not valid JSON: {error}.")) from error
    if halves:
        what = f"{', '.join(halves)}: half of a surrogate pair, which is not Unicode text."
        raise InputError(Problem(str(path), what, "Remove it."))
    return content


def check_schema(path: Path, content: Any, readable: str, fix: str) -> None:
    """Refuse the content of a JSON file that was written in another major schema.

    Args:
        path: The file.
        content: What is in it.
        readable: The version that is read, e.g. ``1.0``.
        fix: What to do about another one.

    Raises:
        InputError: If ``schema_version`` is missing or of another major version.
    """
    version = str(content.get("schema_version", ""))[:_VERSION] if isinstance(content, dict) else ""
    if version.split(".")[0] != readable.split(".")[0]:
        what = f"schema version {version!r} cannot be read; this version reads {readable}."
        raise InputError(Problem(str(path), what, fix))


def check_writable(folder: Path) -> None:
    """Fail early, with one line, when results could not be written. Nothing is left there, not even the folder.

    Raises:
        MachineError: If `folder`, or where it is missing the nearest one above that is there, refuses a file.
    """
    nearest = next(p for p in (folder, *folder.parents, Path()) if os.path.lexists(p))
    try:
        with tempfile.TemporaryFile(dir=nearest, prefix=".write-test.", suffix=TEMPORARY):
            pass  # Linux gives it no name, so that a kill leaves nothing
    except OSError as error:
        raise MachineError(
            f"cannot write to {folder}: {error.strerror or error}. "
            "Fix: choose another folder with -o/--output, or make this one writable."
        ) from error


def safe_join(root: Path, relative: str, where: str) -> Path:
    """`root / relative`, refusing anything that leaves `root`.

    Raises:
        InputError: For absolute paths, ``..`` and links that point outside.
    """
    candidate = root / relative
    inside = root.resolve()
    try:
        candidate.exists()  # names too long, or not Unicode, are refused here
        # a null byte ends the name for the system, so such a path is not what it looks like
        safe = "\0" not in relative and not Path(relative).is_absolute()
        safe = safe and candidate.resolve().is_relative_to(inside)
    except (OSError, ValueError, RuntimeError) as error:  # a ring of links is a RuntimeError
        why = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(Problem(where, f"path {relative[:60]!r} is not usable: {why}.")) from error
    if not safe:
        raise InputError(Problem(where, f"path {relative!r} leaves the folder {root}; refused."))
    return candidate


def folder_bytes(folder: Path) -> int:
    """Sum of the sizes of all files below `folder`."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
