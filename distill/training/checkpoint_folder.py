"""Which checkpoints a work folder holds. All else in it belongs to somebody else and is never deleted."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError

from pocketbert.core.disk.files import check_size
from pocketbert.core.errors import InputError, Problem
from pocketbert.distill.training.records import Progress

POINTER = "latest"
PROGRESS = "progress.json"
WEIGHTS, MOMENTS = "model.safetensors", "optimizer.safetensors"
CONTENTS = (WEIGHTS, MOMENTS, PROGRESS)
"""Files of a checkpoint."""
TO_FIX = "Put back the files of a checkpoint, or move the folder away to train this stage from its first step."
_NAME = re.compile(r"step-(\d{7,})")
_LIMIT_MIB = 64


class BrokenError(Exception):
    """Why a checkpoint cannot be used."""


def checkpoint_name(step: int) -> str:
    """The folder of a checkpoint."""
    return f"step-{step:07d}"


def own_steps(work: Path) -> list[int]:
    """Steps of the whole checkpoints in a work folder, the largest first."""
    steps = []
    for path in work.glob("step-*"):
        matched = _NAME.fullmatch(path.name)
        if matched and _is_own(path):
            steps.append(int(matched[1]))
    return sorted(steps, reverse=True)


def candidates(work: Path) -> list[Path]:
    """Checkpoints to try, the newest first: what the pointer names, then those before it.

    Raises:
        InputError: If there is a pointer that names nothing, and no checkpoint either.
    """
    own, pointer = own_steps(work), work / POINTER
    try:
        pointed = _NAME.fullmatch(pointer.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        pointed = None
    if pointed is not None:
        newest = int(pointed[1])
        return [work / checkpoint_name(step) for step in (newest, *(s for s in own if s < newest))]
    if pointer.exists() and not own:
        raise InputError(Problem(str(pointer), "names no checkpoint, and there is none next to it.", TO_FIX))
    # killed before the first pointer was written, or the pointer is damaged: folders appear whole
    return [work / checkpoint_name(step) for step in own]


def progress_of(checkpoint: Path) -> Progress:
    """How far a run was at a checkpoint.

    Raises:
        BrokenError: If it is no checkpoint, or not whole.
    """
    path = checkpoint / PROGRESS
    if not path.is_file():
        raise BrokenError(f"{PROGRESS} is missing")
    try:
        check_size(path, _LIMIT_MIB)
        progress = Progress.model_validate_json(path.read_bytes())
    except (InputError, ValidationError, OSError) as error:
        raise BrokenError(f"{PROGRESS} cannot be read") from error
    if checkpoint_name(progress.step) != checkpoint.name:
        raise BrokenError(f"{PROGRESS} is that of step {progress.step}")
    return progress


def foreign_in(checkpoint: Path) -> list[str]:
    """Names what in a folder is not part of a checkpoint; everything where it is none, or not whole."""
    entries = sorted(p.name for p in checkpoint.iterdir())
    return [n for n in entries if n not in CONTENTS] if _is_own(checkpoint) else entries


def steps_done(work: Path) -> list[tuple[str, int]]:
    """How far the training runs are whose checkpoints lie in or below a folder.

    Args:
        work: The work folder of a stage.

    Returns:
        For each run its folder's path in `work` (empty for `work` itself) and the steps of its newest checkpoint.
    """
    out = []
    for pointer in sorted(work.rglob(POINTER)):
        if pointer.is_file() and (named := _NAME.fullmatch(pointer.read_text(errors="replace").strip())):
            folder = pointer.parent.relative_to(work).as_posix()
            out.append(("" if folder == "." else folder, int(named[1])))
    return out


def _is_own(checkpoint: Path) -> bool:
    if checkpoint.is_symlink():
        return False
    try:
        progress_of(checkpoint)
    except BrokenError:
        return False
    return True
