"""What was measured of one model, in one JSON file with the raw samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine_measure import Cell
from engine_pool import Worker
from pydantic import BaseModel, ValidationError

from pocketbert.core.files import write_atomic


class Agreement(BaseModel):
    """How an engine's answers compare with torch's on the real texts.

    Attributes:
        labels: Share of texts with the same label.
        worst: Largest difference of a logit, relative to the spread of the logits.
    """

    labels: float
    worst: float


class Result(BaseModel):
    """Everything measured of one model.

    Attributes:
        model: How the table calls it.
        key: Changes with the files and settings; cells of another key are forgotten.
        weights: ``trained`` or ``random weights``.
        machine: CPU and instruction-set extensions.
        texts: Which real texts.
        tokens_mean: Their mean length.
        versions: Engine versions by column.
        notes: What engines said of themselves when opened, by ``column, threads``.
        agreement: Answers against torch's, by column.
        cells: Timings.
    """

    model: str
    key: str
    weights: str
    machine: str
    texts: str
    tokens_mean: float = 0.0
    versions: dict[str, str] = {}
    notes: dict[str, str] = {}
    agreement: dict[str, Agreement] = {}
    cells: list[Cell] = []

    @classmethod
    def resume(cls, path: Path, model: str, key: str, weights: str, machine: str, texts: str) -> Result:
        """The cells measured so far, if they are of the same files on the same machine."""
        fresh = cls(model=model, key=key, weights=weights, machine=machine, texts=texts)
        try:
            old = cls.model_validate_json(path.read_text())
        except (OSError, ValidationError):
            return fresh
        same = (old.key, old.machine, old.texts) == (key, machine, texts)
        return old if same else fresh

    def has(self, threads: int, length: str) -> bool:
        """Whether a cell was measured."""
        return any((c.threads, c.length) == (threads, length) for c in self.cells)

    def opened(self, threads: int, workers: Mapping[str, Worker]) -> None:
        """Note what was opened, and what it said."""
        self.versions |= {name: worker.version for name, worker in workers.items()}
        self.notes |= {f"{name}, {threads}": worker.note for name, worker in workers.items() if worker.note}

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.model_dump_json())
