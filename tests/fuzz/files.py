"""Files of a mutated input, read without harm (one may be a device, a pipe, or gigabytes of nothing), and signed again."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import stat
from pathlib import Path
from typing import Any

from fuzz.values import changed
from pocketbert.core.disk.files import path_bytes, sha256_path

MIB = 1 << 20
LARGEST = 96 * MIB
"""Bytes of a file that a mutator may read."""
UNPACKED = 32 * MIB
"""Bytes of an archive's content that a mutator may read: lines of no length take much memory."""
LIST = "artifacts.json"


def is_plain(path: Path, limit: int = LARGEST) -> bool:
    """Whether a path is a regular file of bounded size, by `lstat`: a link is none, since it may lead to a device."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= limit


def read_plain(path: Path, limit: int = LARGEST) -> bytes:
    """Read a regular file of bounded size; OSError if it is something else, or larger."""
    if not is_plain(path, limit):
        raise OSError(f"{path}: no regular file of at most {limit} bytes")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        return stream.read(limit)


def unpacked(path: Path) -> bytes:
    """Read a file, or what an archive holds, of bounded size; OSError as above."""
    if path.suffix != ".gz":
        return read_plain(path)
    if not is_plain(path):
        raise OSError(f"{path}: no regular file")
    with gzip.open(path) as stream:
        raw = stream.read(UNPACKED + 1)
    if len(raw) > UNPACKED:
        raise OSError(f"{path}: more than {UNPACKED} bytes")
    return raw


def files(folder: Path) -> list[Path]:
    """Every plain file below a folder."""
    return sorted(p for p in folder.rglob("*") if is_plain(p))


def odd_things(folder: Path) -> list[Path]:
    """What lies below a folder and must not be opened: neither folder nor plain, nor a link to one of these within it."""
    root = folder.resolve()

    def odd(path: Path) -> bool:
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        outside = path.is_symlink() and (not target.is_relative_to(root) or target.is_symlink())
        return outside or not (target.is_dir() or is_plain(target))

    return [p for base, dirs, names in os.walk(folder) for p in (Path(base) / n for n in (*dirs, *names)) if odd(p)]


def read_json(path: Path) -> Any:
    return json.loads(read_plain(path))


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, odd values and surrogates included."""
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def change_json(draw: random.Random, path: Path) -> None:
    """Replace, lose, double or swap some values of a JSON file."""
    content = read_json(path)
    for _ in range(draw.choice([1, 1, 3])):
        content = changed(draw, content)
    write_json(path, content)


def sign(folder: Path) -> None:
    """Let the list of an artefact folder agree with its files, so that a change of one is reached.

    What is gone, or no file, keeps its record.
    """
    content = read_json(folder / LIST)
    for record in content["files"] if isinstance(content, dict) and isinstance(content.get("files"), list) else ():
        with contextlib.suppress(OSError, TypeError, KeyError, ValueError):
            path = folder / record["path"]
            if _within(folder, path):
                record["sha256"], record["bytes"] = sha256_path(path), path_bytes(path)
    write_json(folder / LIST, content)


def _within(folder: Path, path: Path) -> bool:
    """Whether a path is a plain file of the folder, or a folder of plain files in it: others may be all of the disk."""
    real, root = Path(os.path.realpath(path)), folder.resolve()
    inside = real != root and real.is_relative_to(root)
    return inside and (is_plain(real) or (real.is_dir() and not odd_things(real)))
