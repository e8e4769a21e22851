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
from pathlib import Path
from typing import IO, Any

from pocketbert.core.disk.ownership import TEMPORARY, replace_file, temporary_file
from pocketbert.core.errors import InputError, MachineError, Problem

_MIB = 1 << 20


def sha256_file(path: Path) -> str:
    """Hex digest of a file's bytes.

    Raises:
        InputError: If it is a FIFO, a device or a socket, which might never end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(Problem(str(path), "is no regular file, refused."))
    with path.open("rb") as stream:
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
        InputError: If the file is missing, too large, or no JSON.
    """
    if not path.is_file():
        raise InputError(Problem(str(path), "file not found."))
    check_size(path, limit_mib)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(str(path), f"not valid JSON: {error}.")) from error


def check_writable(folder: Path) -> None:
    """Fail early, with one line, when results could not be written.

    Raises:
        MachineError: If `folder` (or the nearest folder above that exists) refuses a file.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".write-test.", suffix=TEMPORARY):
            pass
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
