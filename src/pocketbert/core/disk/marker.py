"""The file that tells a folder of PocketBERT from a user's."""

from __future__ import annotations

import json
from pathlib import Path

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
