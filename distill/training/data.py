"""Rows to train on, as tensors of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.heads.head import IGNORED, Prepared
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.core.seeds import generator

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


# --- batches ---
# Which rows make a training batch: counter-based order, length buckets.


WINDOW = 64
"""Batches whose rows are sorted by length together: random enough to learn, even enough to waste nothing."""


class BatchOrder:
    """Which rows make up the batch of a step: a function of only (seed, purpose, step).

    Each epoch is a new permutation, cut into windows whose rows are sorted by length and batched; the
    batches are then shuffled. Rows that do not fill a last batch wait for the next epoch.

    Args:
        lengths: Tokens per row, N of them.
        batch: Rows per step, over all processes.
        seed: Seed of the run.
        purpose: What is trained, so that two stages see different orders.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int, purpose: str) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.batch = min(batch, len(self.lengths))
        self.seed, self.purpose = seed, purpose
        self.per_epoch = len(self.lengths) // self.batch
        self._epoch = -1
        self._batches: NDArray[np.int64] = np.empty((0, self.batch), np.int64)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Row numbers of a step's batch, shape [batch]."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._batches, self._epoch = self._order(epoch), epoch
        rows: NDArray[np.int64] = self._batches[place]
        return rows

    def _order(self, epoch: int) -> NDArray[np.int64]:
        random = generator(self.seed, f"order/{self.purpose}", epoch)
        rows = random.permutation(len(self.lengths))[: self.per_epoch * self.batch]
        window = WINDOW * self.batch
        for start in range(0, len(rows), window):
            part = rows[start : start + window]
            rows[start : start + window] = part[np.argsort(self.lengths[part], kind="stable")]
        batches = rows.reshape(self.per_epoch, self.batch)
        return batches[random.permutation(self.per_epoch)]


def parts(rows: int, rank: int, world: int, most: int | None = None) -> list[slice]:
    """Which rows of a step's batch one process computes, and in which portions.

    Each process takes neighbouring rows, as many as the others or one more. Where there are more processes than
    rows, the last take none, and still have one (empty) portion: they must meet the others once.

    Args:
        rows: Rows of the whole batch.
        rank: Number of the process, from 0.
        world: Processes.
        most: Rows per portion; all at once by default.
    """
    share, larger = divmod(rows, world)
    start = rank * share + min(rank, larger)
    end = start + share + (rank < larger)
    most = most or rows
    return [slice(i, min(i + most, end)) for i in range(start, end, most)] or [slice(start, end)]


def divide(batch: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """Some rows of a batch, as wide as the whole: padding must not depend on how it was divided."""
    return {name: value[rows] for name, value in batch.items()}


# --- packed_set ---
# Many tokenized rows in little memory: augmentation makes millions of them.


class PackedSet:
    """Training rows as `pocketbert.distill.training.data.TrainSet` gives them, 5 bytes a token instead of some 900 a row.

    Args:
        portions: The rows, some at a time; their targets are arrays with one entry per row.
        tokenizer: Pads batches.
    """

    def __init__(self, portions: Iterable[Prepared], tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        ids, types, lengths = [], [], []
        targets: dict[str, list[NDArray[np.generic]]] = {}
        for portion in portions:
            ids.append(np.concatenate([e.ids for e in portion.encoded]).astype(np.int32))
            types.append(np.concatenate([e.type_ids for e in portion.encoded]).astype(np.int8))
            lengths.append(np.array([len(e) for e in portion.encoded], np.int64))
            for name, values in portion.targets.items():
                targets.setdefault(name, []).append(np.asarray(values))
        self._ids, self._types, self._lengths = (
            np.concatenate(ids),
            np.concatenate(types),
            np.concatenate(lengths),
        )
        self._targets = {name: np.concatenate(values) for name, values in targets.items()}
        self._starts = np.cumsum(self._lengths) - self._lengths

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row."""
        numbers: list[int] = self._lengths.tolist()
        return numbers

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """See `pocketbert.distill.training.data.TrainSet.batch`."""
        chosen = np.asarray(rows, np.int64)
        targets = {name: values[chosen] for name, values in self._targets.items()}
        some = Prepared([], [self._encoded(i) for i in chosen.tolist()], np.arange(len(chosen)), targets)
        out = TrainSet(some, self._tokenizer).batch(range(len(chosen)), step)
        out[ROWS] = torch.from_numpy(chosen)
        return out

    def _encoded(self, row: int) -> Encoded:
        own = slice(self._starts[row], self._starts[row] + self._lengths[row])
        return Encoded(self._ids[own].astype(np.int64), self._types[own].astype(np.int64), False)
