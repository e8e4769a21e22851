"""Artefact folders whose list is right again after a file was changed, so that the change itself is reached."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from fuzz.plain import is_plain, odd_things, read_plain
from pocketbert.core.disk.files import path_bytes, sha256_path

LIST = "artifacts.json"


def sign(folder: Path) -> None:
    """Write the sizes and digests of the files as they are into the list; what is gone, or no file, keeps its record."""
    content = read(folder / LIST)
    for record in content["files"] if isinstance(content, dict) and isinstance(content.get("files"), list) else ():
        with contextlib.suppress(OSError, TypeError, KeyError, ValueError):
            path = folder / record["path"]
            if _within(folder, path):
                record["sha256"], record["bytes"] = sha256_path(path), path_bytes(path)
    write(folder / LIST, content)


def unsigned(folder: Path) -> list[str]:
    """Paths of listed files whose digests are not those of the list."""
    out = []
    with contextlib.suppress(ValueError, OSError, TypeError, KeyError):
        for record in read(folder / LIST)["files"]:
            path = folder / record["path"]
            if not _within(folder, path) or (record["sha256"], record["bytes"]) != (
                sha256_path(path),
                path_bytes(path),
            ):
                out.append(record["path"])
    return out


def _within(folder: Path, path: Path) -> bool:
    """Whether a path is a plain file of the folder, or a folder of plain files in it: others may be all of the disk."""
    real = Path(os.path.realpath(path))
    return (
        real != folder.resolve()
        and real.is_relative_to(folder.resolve())
        and (is_plain(real) or (real.is_dir() and not odd_things(real)))
    )


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(read_plain(path))


def write(path: Path, content: Any) -> None:
    """Write a JSON file, odd values and surrogates included."""
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
