"""The file that names the newest checkpoint of a work folder; readable without torch."""

from __future__ import annotations

import re
from pathlib import Path

POINTER = "latest"
_STEP = re.compile(r"step-(\d+)")


def checkpoint_name(step: int) -> str:
    """Folder name of the checkpoint after some steps."""
    return f"step-{step:07d}"


def steps_done(work: Path) -> list[tuple[str, int]]:
    """How far the training runs are whose checkpoints lie in or below a folder.

    Args:
        work: The work folder of a stage.

    Returns:
        For each run its folder's path in `work` (empty for `work` itself) and the steps of its newest checkpoint.
    """
    out = []
    for pointer in sorted(work.rglob(POINTER)):
        named = (
            _STEP.fullmatch(pointer.read_text(encoding="utf-8", errors="replace").strip())
            if pointer.is_file()
            else None
        )
        if named:
            folder = pointer.parent.relative_to(work).as_posix()
            out.append(("" if folder == "." else folder, int(named[1])))
    return out
