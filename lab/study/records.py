"""What is remembered of each finished arm, a line of ``results.jsonl`` each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError, Problem

FILE_NAME = "results.jsonl"
TEACHER = "teacher"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StageRecord(_Frozen):
    """One training stage.

    Attributes:
        name: ``finetune`` or ``distill.N``.
        method: Its method.
        general: Whether it learnt on plain text.
        steps: Optimiser steps.
        batch: Rows per step.
        cpu_s: CPU seconds; None where it was finished by an earlier process.
        wall_s: Seconds.
        loss: Loss at its end.
    """

    name: str
    method: str
    general: bool
    steps: int
    batch: int
    cpu_s: float | None
    wall_s: float | None
    loss: float


class Surroundings(_Frozen):
    """What a result was made with.

    Attributes:
        machine: CPU with its instruction-set extensions.
        device: What was trained on: ``cpu``, or a GPU's name.
        threads: CPU threads.
        dtype: Number type of matrix products.
        versions: Library versions by name.
    """

    machine: str
    device: str
    threads: int
    dtype: str
    versions: dict[str, str]

    @property
    def line(self) -> str:
        """All of it in words."""
        versions = ", ".join(f"{k} {v}" for k, v in self.versions.items())
        return f"{self.machine}; trained on {self.device}, {self.threads} threads, {self.dtype}; {versions}"


class ArmRecord(_Frozen):
    """One arm with one seed.

    Attributes:
        arm: Its name, or ``teacher``.
        seed: Its seed.
        recipe: Digest of the recipe.
        parameters: Weights of the model.
        train_rows: Training rows that there are, without copies.
        correct: ``1`` for each dev row that it got right, else ``0``, in the file's order.
        stages: Its training stages.
        cpu_s: CPU seconds of the process, scoring included.
        peak_mib: Largest resident memory of the process.
        resumed: Whether an earlier process had begun it, whose time is not in these figures.
        date: When it was finished, UTC, ISO 8601.
        made_with: Machine and versions.
    """

    arm: str
    seed: int
    recipe: str
    parameters: int
    train_rows: int
    correct: str = Field(pattern="^[01]+$")
    stages: list[StageRecord]
    cpu_s: float
    peak_mib: float
    resumed: bool
    date: str
    made_with: Surroundings

    @property
    def accuracy(self) -> float:
        """Share of the dev rows that are right."""
        return self.correct.count("1") / len(self.correct)

    @property
    def hits(self) -> NDArray[np.bool_]:
        """`correct` as an array [rows]."""
        return np.frombuffer(self.correct.encode(), np.uint8) == ord("1")


def read_records(path: Path) -> list[ArmRecord]:
    """All records of a file; none where there is no file. A last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [ArmRecord.model_validate_json(line) for line in whole if line.endswith("\n")]


def append_record(path: Path, record: ArmRecord) -> None:
    """Add a record, each on a line of its own."""
    kept = "".join(f"{r.model_dump_json()}\n" for r in read_records(path))
    write_atomic(path, f"{kept}{record.model_dump_json()}\n")


def find_record(records: list[ArmRecord], arm: str, seed: int, recipe: str, where: Path) -> ArmRecord | None:
    """The record of an arm.

    Args:
        records: All there are.
        arm: Its name.
        seed: Its seed.
        recipe: Digest of the recipe that would be run.
        where: The file, for the error.

    Raises:
        InputError: If the arm was finished with another recipe: tables would compare what is not alike.
    """
    found = next((r for r in records if (r.arm, r.seed) == (arm, seed)), None)
    if found is not None and found.recipe != recipe:
        raise InputError(
            Problem(
                f"{where}: {arm}, seed {seed}",
                "was made with other settings: --minutes, --teacher-steps or data.",
                "Give the settings of then, or another -o/--output.",
            )
        )
    return found
