"""The recorded progress of a training run: its step, its mean losses, and where a killed run would resume.

A `Progress` counts steps and averages their losses, `write_metrics` and `append_metrics` write these to a file, and
`read_steps_done` reads from a work folder how far its training runs are. This module imports nothing heavy; the
checkpoints themselves are written and read by `pocketbert.distill.training.checkpoints`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

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
        step: Number of steps done.
        loss: Mean weighted loss since the last record.
        terms: Mean of each unweighted term since the last record, over the steps that it was in.
        lr: Learning rate; the largest if parameter groups have different ones.
        score: Score of the model on validation rows after this step; None if it was not scored.
    """

    # a score may be NaN, which JSON has no word for
    model_config = ConfigDict(ser_json_inf_nan="strings")

    step: int
    loss: float
    terms: dict[str, float]
    lr: float
    score: float | None = None


class Progress(BaseModel):
    """State of a training run besides weights and optimizer, stored in a checkpoint as ``progress.json``.

    Attributes:
        step: Number of steps done.
        history: Records of the mean losses so far.
        pending: Sums since the last record: loss and terms by name, and the number of steps that each was in.
        best_step: Step with the best score on validation rows; 0 without scores.
        best_score: The score of that step.
        since_best: Number of scores since the last improvement.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    step: int
    history: list[StepRecord]
    pending: dict[str, float]
    best_step: int = 0
    best_score: float | None = None
    since_best: int = 0

    def add_step(self, loss: float, terms: Mapping[str, float], rate: float, record: bool) -> None:
        """Add a finished step's losses to the pending sums, and with `record` append their means to the history.

        Args:
            loss: Weighted loss of the step.
            terms: The step's unweighted loss terms by name. A term may be missing in some steps; its mean is over the
                others.
            rate: Learning rate.
            record: Whether to make a record after this step.
        """
        self.step += 1
        pending = self.pending
        values = {_LOSS: loss, **terms}
        for name, value in {**values, **{f"{_STEPS}{name}": 1.0 for name in values}}.items():
            pending[name] = pending.get(name, 0.0) + value
        if record:
            means = {k: v / pending[f"{_STEPS}{k}"] for k, v in pending.items() if not k.startswith(_STEPS)}
            self.history.append(StepRecord(step=self.step, loss=means.pop(_LOSS), terms=means, lr=rate))
            self.pending = {}

    def newest_mean_loss(self) -> tuple[int, int, float] | None:
        """Return the mean loss of the steps since the last record.

        If there are none, it is that of the steps in the last record; before the first step, None is returned.

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


def write_metrics(path: Path | None, purpose: str, seed: int, progress: Progress) -> None:
    """Write the records of a training run into a .jsonl file, replacing its old lines. Lines of other runs stay.

    Lines that are no records, such as a last one that a kill has cut off, are dropped.

    Args:
        path: The file; None to write nothing.
        purpose: Name of the stage.
        seed: Seed of the run.
        progress: State of the run, whose records are written.
    """
    if path is None:
        return
    lines = path.read_text().splitlines() if path.is_file() else []
    kept = [line for line in lines if _is_of_another_run(line, purpose, seed)]
    records = [_metrics_line(purpose, seed, record) for record in progress.history]
    write_atomic(path, "".join(f"{line}\n" for line in [*kept, *records]))


def append_metrics(path: Path | None, purpose: str, seed: int, record: StepRecord) -> None:
    """Append one record of a training run to a .jsonl file, so that it can be read while the run goes on."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{_metrics_line(purpose, seed, record)}\n")


def _metrics_line(purpose: str, seed: int, record: StepRecord) -> str:
    """Return a record of a training run as a line of JSON."""
    return json.dumps({"stage": purpose, "seed": seed, **record.model_dump(mode="json", exclude_none=True)})


def _is_of_another_run(line: str, purpose: str, seed: int) -> bool:
    """Return whether a line of a metrics file is whole and belongs to another stage or another seed."""
    try:
        content = json.loads(line)
        return bool(content["stage"] != purpose or content.get("seed", seed) != seed)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def read_steps_done(work: Path) -> list[tuple[str, int]]:
    """Return how many steps each training run in or below a work folder has done, by its newest checkpoint.

    Args:
        work: The work folder of a stage.

    Returns:
        For each run, the path of its folder in `work` (empty for `work` itself) and the step of its newest checkpoint.
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
