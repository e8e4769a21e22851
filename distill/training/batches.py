"""Which rows make a training batch: counter-based order, length buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.seeds import generator

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
