"""What a training run has recorded: how far it is, and its losses as means over some steps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from pocketbert.core.disk.files import check_size, write_atomic
from pocketbert.core.errors import InputError, Problem

_LOSS = "_loss"
_STEPS = "_steps/"
"""Before a term's name: how many steps of the pending sums it was in."""


class StepRecord(BaseModel):
    """Losses of one logged step.

    Attributes:
        step: Steps done.
        loss: Mean weighted loss since the last record.
        terms: Mean of each unweighted term since the last record, over the steps that it was in.
        lr: Learning rate; the largest where there are several.
    """

    step: int
    loss: float
    terms: dict[str, float]
    lr: float


class Progress(BaseModel):
    """What else a run must remember.

    Attributes:
        step: Steps done.
        history: Losses so far.
        pending: Sums since the last record: loss and terms by name, and in how many steps each was.
        scaler: State of the loss scaler; empty without one.
    """

    step: int
    history: list[StepRecord]
    pending: dict[str, float]
    scaler: dict[str, int | float] = {}

    def resumed_of(self, steps: int) -> str:
        """Say from where a run goes on; nothing at its start."""
        return f"; resumed at step {self.step:,} of {steps:,}" if self.step else ""


def record(progress: Progress, loss: float, terms: Mapping[str, float], rate: float, every: int, steps: int) -> None:
    """Count a step that was made, and add a record where one is due.

    Args:
        progress: The run so far; changed.
        loss: Weighted loss of the step.
        terms: Its unweighted terms; a term may be in some steps only, and its mean is over these.
        rate: Learning rate.
        every: Steps between two records.
        steps: Steps of the whole run; the last one has a record.
    """
    progress.step += 1
    pending = progress.pending
    seen = {_LOSS: loss, **terms}
    for name, value in {**seen, **{f"{_STEPS}{name}": 1.0 for name in seen}}.items():
        pending[name] = pending.get(name, 0.0) + value
    if progress.step % every == 0 or progress.step == steps:
        mean = {k: v / pending[f"{_STEPS}{k}"] for k, v in pending.items() if not k.startswith(_STEPS)}
        progress.history.append(StepRecord(step=progress.step, loss=mean.pop(_LOSS), terms=mean, lr=rate))
        progress.pending = {}


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss of some neighbouring steps.

    Attributes:
        first: First step, from 1.
        last: Last step.
        loss: Mean of the weighted loss.
    """

    first: int
    last: int
    loss: float


def mean_so_far(progress: Progress) -> MeanLoss | None:
    """The mean loss of the newest steps: those since the last record, else those of the last record; None at the start."""
    steps = int(progress.pending.get(f"{_STEPS}{_LOSS}", 0))
    if steps:
        return MeanLoss(progress.step - steps + 1, progress.step, progress.pending[_LOSS] / steps)
    if not progress.history:
        return None
    before = progress.history[-2].step if len(progress.history) > 1 else 0
    return MeanLoss(before + 1, progress.history[-1].step, progress.history[-1].loss)


def write_metrics(path: Path | None, purpose: str, progress: Progress) -> None:
    """Rewrite the lines of what is trained in a .jsonl file; the lines of others stay.

    Args:
        path: The file; None to write nothing.
        purpose: What is trained.
        progress: Holds the records.
    """
    if path is None:
        return
    lines = path.read_text().splitlines() if path.is_file() else []
    kept = [line for line in lines if line.strip() and json.loads(line)["stage"] != purpose]
    new = [json.dumps({"stage": purpose, **r.model_dump()}) for r in progress.history]
    write_atomic(path, "".join(f"{line}\n" for line in [*kept, *new]))


# --- checkpoint_folder ---
# Which checkpoints a work folder holds. All else in it belongs to somebody else and is never deleted.


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
