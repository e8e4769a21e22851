"""Training rows as tensors: which rows a step has, and how they become a batch.

- `TrainData` is what the training loop asks for; `TrainSet` implements it for tokenized rows in memory, `PackedSet` for millions
  of them. Where teacher and student read different tokens, `select_teacher_inputs` selects the teacher's.
- `BatchOrder` decides which rows make up the batch of a step, from the seed and the step alone.
- `split_batch` and `take_rows` divide a batch among processes, and a process's share into portions that fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.heads.head import IGNORED_LABEL, Prepared
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator

ROW_NUMBERS = "rows"
"""Name of the row numbers in a batch; a cached teacher finds its signals by them."""

STEP_NUMBERS = "steps"
"""Name of the optimizer step in a batch, once per row; where tokens are masked anew at every step, it identifies the masks."""

TEACHER_PREFIX = "teacher."
"""Prefix of the teacher's inputs in a batch, where it reads other tokens of the same text than the student."""

_WINDOW = 64
"""Batches whose rows are sorted by length together: random enough to learn, even enough to waste little padding."""


class TrainData(Protocol):
    """Interface of training rows: their lengths, and the batch of any rows as tensors."""

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of each row."""
        ...

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows as tensors by name, padded to the longest row.

        Random choices depend only on (seed, step, row).
        """
        ...


@dataclass(frozen=True)
class TrainSet:
    """Tokenized training rows with their targets, in memory; implements `TrainData`.

    Attributes:
        rows: N rows with their targets.
        tokenizer: Tokenizer that pads batches.
    """

    rows: Prepared
    tokenizer: TextTokenizer

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        return [len(e) for e in self.rows.encoded]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows: model inputs [B, L], targets by name, and row numbers ``rows`` [B].

        Targets with one value per token are padded with `IGNORED_LABEL`.

        Args:
            rows: Row numbers, B of them.
            step: The optimizer step; not used.
        """
        padded = self.tokenizer.pad([self.rows.encoded[i] for i in rows])
        tensors = {name: torch.from_numpy(value) for name, value in padded.items()}
        width = tensors["input_ids"].shape[1]
        for name, values in self.rows.targets.items():
            target: NDArray[np.generic]
            if isinstance(values, np.ndarray):
                target = values[np.asarray(rows)]
            else:
                target = np.full((len(rows), width), IGNORED_LABEL, np.int64)
                for i, row in enumerate(rows):
                    target[i, self.tokenizer.span(len(values[row]), width)] = values[row]
            tensors[name] = torch.from_numpy(np.ascontiguousarray(target))
        tensors[ROW_NUMBERS] = torch.tensor(list(rows))
        return tensors


class PackedSet:
    """Training rows in compact arrays: 5 bytes a token instead of some 900 a row; gives the batches of `TrainSet`.

    Augmentation makes millions of rows.

    Args:
        portions: The tokenized rows, some at a time; their targets are arrays with one entry per row.
        tokenizer: Tokenizer that pads batches.
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
        self._ids, self._types, self._lengths = np.concatenate(ids), np.concatenate(types), np.concatenate(lengths)
        self._targets = {name: np.concatenate(values) for name, values in targets.items()}
        self._starts = np.cumsum(self._lengths) - self._lengths

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of each row."""
        lengths: list[int] = self._lengths.tolist()
        return lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return a batch of the given rows as tensors by name; see `TrainSet.batch`."""
        numbers = np.asarray(rows, np.int64)
        targets = {name: values[numbers] for name, values in self._targets.items()}
        encoded = []
        for start, length in zip(self._starts[numbers], self._lengths[numbers], strict=True):
            tokens = slice(start, start + length)
            encoded.append(Encoded(self._ids[tokens].astype(np.int64), self._types[tokens].astype(np.int64), False))
        unpacked = Prepared([], encoded, np.arange(len(numbers)), targets)
        tensors = TrainSet(unpacked, self._tokenizer).batch(range(len(numbers)), step)
        tensors[ROW_NUMBERS] = torch.from_numpy(numbers)
        return tensors


def select_teacher_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a batch with the teacher's inputs (names under `TEACHER_PREFIX`) in place of the student's."""
    teacher = {
        name.removeprefix(TEACHER_PREFIX): value for name, value in batch.items() if name.startswith(TEACHER_PREFIX)
    }
    return {**{name: value for name, value in batch.items() if not name.startswith(TEACHER_PREFIX)}, **teacher}


class BatchOrder:
    """Order of the training rows: which rows make up the batch of each step, decided by (seed, purpose, step) alone.

    Each epoch is a new permutation, cut into windows whose rows are sorted by length and batched; the batches are then
    shuffled. Rows that do not fill a last batch wait for the next epoch.

    Attributes:
        batch: Rows per step; fewer than asked for if there are not as many rows.
        per_epoch: Steps of an epoch.

    Args:
        lengths: Tokens per row, N of them.
        batch: Rows per step, over all processes.
        seed: Seed of the run.
        purpose: Name of the stage, so that two stages have different orders.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int, purpose: str) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.batch = min(batch, len(self.lengths))
        self.seed, self.purpose = seed, purpose
        self.per_epoch = len(self.lengths) // self.batch
        self._epoch = -1
        self._batches: NDArray[np.int64] = np.empty((0, self.batch), np.int64)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers that make up the batch of a training step, [batch] int64."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._batches, self._epoch = self._shuffle(epoch), epoch
        rows: NDArray[np.int64] = self._batches[place]
        return rows

    def _shuffle(self, epoch: int) -> NDArray[np.int64]:
        """Return the row numbers of all batches of an epoch in their random order, [per_epoch, batch]."""
        random = generator(self.seed, f"order/{self.purpose}", epoch)
        rows = random.permutation(len(self.lengths))[: self.per_epoch * self.batch]
        window = _WINDOW * self.batch
        for start in range(0, len(rows), window):
            part = rows[start : start + window]
            rows[start : start + window] = part[np.argsort(self.lengths[part], kind="stable")]
        batches = rows.reshape(self.per_epoch, self.batch)
        return batches[random.permutation(self.per_epoch)]


def split_batch(rows: int, rank: int, world: int, most: int | None = None) -> list[slice]:
    """Return the row ranges of a batch that process `rank` computes, cut into portions of at most `most` rows.

    Each process takes neighbouring rows, as many as the others or one more. Where there are more processes than rows, the last
    take none and still get one empty portion: every process must take part in the exchange of gradients.

    Args:
        rows: Rows of the whole batch.
        rank: Number of the process, from 0.
        world: Number of processes.
        most: Rows per portion; all at once by default.
    """
    share, larger = divmod(rows, world)
    start = rank * share + min(rank, larger)
    end = start + share + (rank < larger)
    most = most or rows
    return [slice(i, min(i + most, end)) for i in range(start, end, most)] or [slice(start, end)]


def take_rows(batch: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """Return a slice of the rows of a batch; padding stays as wide as in the whole batch."""
    return {name: value[rows] for name, value in batch.items()}
