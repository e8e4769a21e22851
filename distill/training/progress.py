"""The recorded progress of a training run: its step, its mean losses, and where a killed run would resume.

A `Progress` counts steps and averages their losses, `write_metrics` writes these to a file, and `read_steps_done` reads from a work
folder how far its training runs are. This module imports nothing heavy; the checkpoints themselves are written and
read by `pocketbert.distill.training.checkpoints`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.disk.files import write_atomic

POINTER = "latest"
"""File in a work folder that holds the name of the newest checkpoint."""

_CHECKPOINT_NAME = re.compile(r"step-(\d{7,})")
_LOSS = "_loss"
_STEPS = "_steps/"
"""Prefix of a term's name in the pending sums; the entry is the number of steps that the term was in."""


class StepRecord(BaseModel):
    """Mean losses since the last record, as logged at one training step.

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
    """State of a training run besides weights and optimizer, stored in a checkpoint as ``progress.json``.

    Attributes:
        step: Steps done.
        history: Records of the mean losses so far.
        pending: Sums since the last record: loss and terms by name, and the number of steps that each was in.
        scaler: State of the loss scaler; empty without one.
    """

    step: int
    history: list[StepRecord]
    pending: dict[str, float]
    scaler: dict[str, int | float] = {}

    def add_step(self, loss: float, terms: Mapping[str, float], rate: float, every: int, steps: int) -> None:
        """Add a finished step's losses to the pending sums, and every `every` steps append their means to the history.

        Args:
            loss: Weighted loss of the step.
            terms: The step's unweighted loss terms by name; a term may be in some steps only, and its mean is over
                these.
            rate: Learning rate.
            every: Steps between two records.
            steps: Steps of the whole run; the last one has a record.
        """
        self.step += 1
        pending = self.pending
        values = {_LOSS: loss, **terms}
        for name, value in {**values, **{f"{_STEPS}{name}": 1.0 for name in values}}.items():
            pending[name] = pending.get(name, 0.0) + value
        if self.step % every == 0 or self.step == steps:
            means = {k: v / pending[f"{_STEPS}{k}"] for k, v in pending.items() if not k.startswith(_STEPS)}
            self.history.append(StepRecord(step=self.step, loss=means.pop(_LOSS), terms=means, lr=rate))
            self.pending = {}

    def newest_mean_loss(self) -> tuple[int, int, float] | None:
        """Return the mean loss of the newest steps: those since the last record, else those of it; None at the start.

        Returns:
            The first and the last of these steps, from 1, and the mean of their weighted losses.
        """
        steps = int(self.pending.get(f"{_STEPS}{_LOSS}", 0))
        if steps:
            return self.step - steps + 1, self.step, self.pending[_LOSS] / steps
        if not self.history:
            return None
        before = self.history[-2].step if len(self.history) > 1 else 0
        return before + 1, self.history[-1].step, self.history[-1].loss


def write_metrics(path: Path | None, purpose: str, progress: Progress) -> None:
    """Write the records of a training stage into a .jsonl file, replacing its old lines; other stages' lines stay.

    Args:
        path: The file; None to write nothing.
        purpose: Name of the stage.
        progress: State of the run, whose records are written.
    """
    if path is None:
        return
    lines = path.read_text().splitlines() if path.is_file() else []
    other_stages = [line for line in lines if line.strip() and json.loads(line)["stage"] != purpose]
    records = [json.dumps({"stage": purpose, **record.model_dump()}) for record in progress.history]
    write_atomic(path, "".join(f"{line}\n" for line in [*other_stages, *records]))


def read_steps_done(work: Path) -> list[tuple[str, int]]:
    """Return the steps that each training run in or below a work folder has done, by its newest checkpoint.

    Args:
        work: The work folder of a stage.

    Returns:
        For each run its folder's path in `work` (empty for `work` itself) and the steps of its newest checkpoint.
    """
    runs = []
    for pointer in sorted(work.rglob(POINTER)):
        if (
            pointer.is_file()
            and (step := parse_checkpoint_name(pointer.read_text(errors="replace").strip())) is not None
        ):
            folder = pointer.parent.relative_to(work).as_posix()
            runs.append(("" if folder == "." else folder, step))
    return runs


def parse_checkpoint_name(name: str) -> int | None:
    """Return the step of a checkpoint folder's name (``step-0000100``); None if it is not such a name."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return int(match[1]) if match else None
