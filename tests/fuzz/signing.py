"""Artefact folders whose list is right again after a file was changed, so that the change itself is reached."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import path_bytes, sha256_path

LIST = "artifacts.json"


def sign(folder: Path) -> None:
    """Write the sizes and digests of the files as they are into the list; what is gone, or no file, keeps its record."""
    content = read(folder / LIST)
    for record in content["files"] if isinstance(content, dict) and isinstance(content.get("files"), list) else ():
        with contextlib.suppress(OSError, TypeError, KeyError, ValueError):
            path = folder / record["path"]
            if path.is_file() or path.is_dir():
                record["sha256"], record["bytes"] = sha256_path(path), path_bytes(path)
    write(folder / LIST, content)


def unsigned(folder: Path) -> list[str]:
    """Paths of listed files whose digests are not those of the list."""
    out = []
    with contextlib.suppress(ValueError, OSError, TypeError, KeyError):
        for record in read(folder / LIST)["files"]:
            path = folder / record["path"]
            there = path.is_file() or path.is_dir()
            if not there or (record["sha256"], record["bytes"]) != (sha256_path(path), path_bytes(path)):
                out.append(record["path"])
    return out


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, content: Any) -> None:
    """Write a JSON file, odd values and surrogates included."""
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
