"""Rows to train on, as tensors of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.heads.head import IGNORED, Prepared
from pocketbert.core.predict.tokenization import TextTokenizer

ROWS = "rows"
"""Name of the row numbers in a batch: a cached teacher finds its signals by them."""

STEPS = "steps"
"""Name of the step in a batch, once a row: where tokens are hidden anew at every step, it tells which were."""

TEACHER = "teacher."
"""Begins the names of the teacher's inputs in a batch, where it reads a text in other pieces than the student."""


def as_teacher_reads(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch with the teacher's own inputs in place of the student's, where these differ.

    Args:
        batch: Tensors by name.
    """
    own = {name.removeprefix(TEACHER): value for name, value in batch.items() if name.startswith(TEACHER)}
    return {**{name: value for name, value in batch.items() if not name.startswith(TEACHER)}, **own}


class TrainData(Protocol):
    """What the training loop asks for its rows."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row."""
        ...

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of some rows by name, padded to the longest; random choices depend only on (seed, step, row)."""
        ...


@dataclass(frozen=True)
class TrainSet:
    """Tokenized training rows.

    Attributes:
        rows: N rows with their targets.
        tokenizer: Pads batches.
    """

    rows: Prepared
    tokenizer: TextTokenizer

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [len(e) for e in self.rows.encoded]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of some rows: the model's inputs [B, L], the targets by name, and ``rows`` [B].

        Targets of tokens are padded with `IGNORED`.

        Args:
            rows: Row numbers, B of them.
            step: The step they are for; nothing here depends on it.
        """
        padded = self.tokenizer.pad([self.rows.encoded[i] for i in rows])
        out = {name: torch.from_numpy(value) for name, value in padded.items()}
        for name, values in self.rows.targets.items():
            chosen = (
                values[np.asarray(rows)]
                if isinstance(values, np.ndarray)
                else self._padded([values[i] for i in rows], out["input_ids"].shape[1])
            )
            out[name] = torch.from_numpy(np.ascontiguousarray(chosen))
        out[ROWS] = torch.tensor(list(rows))
        return out

    def _padded(self, values: Sequence[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
        full = np.full((len(values), width), IGNORED, np.int64)
        for i, value in enumerate(values):
            full[i, self.tokenizer.span(len(value), width)] = value
        return full


@dataclass(frozen=True)
class TeacherRows:
    """Rows as the teacher reads them; satisfies `TrainData`.

    Attributes:
        rows: Rows, perhaps with inputs for the student that differ.
    """

    rows: TrainData

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row."""
        return self.rows.lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of some rows, see `TrainData.batch`."""
        return as_teacher_reads(self.rows.batch(rows, step))
