"""Intervals of accuracies and of their paired differences, over dev rows and seeds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.seeds import generator

REPLICATES = 10_000
CONFIDENCE = 0.95


class Verdict(StrEnum):
    """What a difference says."""

    HELPS = "helps"
    HURTS = "hurts"
    NOT_VISIBLE = "is not visible at this budget"


@dataclass(frozen=True)
class Estimate:
    """A mean and where it lies with 95 % confidence.

    Attributes:
        mean: The mean.
        low: Lower end of the interval.
        high: Upper end.
    """

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Of a difference: not visible where the interval contains 0."""
        if self.low > 0:
            return Verdict.HELPS
        return Verdict.HURTS if self.high < 0 else Verdict.NOT_VISIBLE


def bootstrap(values: NDArray[np.generic], replicates: int = REPLICATES) -> Estimate:
    """Mean of a table of rows and seeds, with the percentile interval of a two-way bootstrap.

    Each replicate draws seeds with replacement and, independently, rows with replacement; the same rows for all its
    seeds, since all seeds were judged by the same rows (Owen 2007, "The pigeonhole bootstrap", arXiv 0712.1111). It errs
    on the wide side in rows; of few seeds it knows little: two give a spread that is half of what an unbiased one would be.

    Args:
        values: Of one arm its correct rows as 0 and 1, or differences of two arms row by row, [seeds, rows].
        replicates: Resamples.

    Raises:
        ValueError: If there is nothing to average.
    """
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"a table [seeds, rows] with values is needed, got shape {table.shape}")
    draw = generator(0, "study/bootstrap", *table.shape)
    seeds, rows = table.shape
    by_row = draw.multinomial(rows, np.full(rows, 1 / rows), replicates) @ table.T / rows  # [replicates, seeds]
    by_seed = draw.multinomial(seeds, np.full(seeds, 1 / seeds), replicates) / seeds
    means = (by_row * by_seed).sum(1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(table.mean()), float(low), float(high))


def paired(with_it: NDArray[np.bool_], without: NDArray[np.bool_]) -> Estimate:
    """Difference of two accuracies on the same rows, seed by seed.

    Args:
        with_it: Correct rows of the arm that has something, [seeds, rows].
        without: Correct rows of the arm that has it not; the same seeds and rows.

    Raises:
        ValueError: If the tables have different shapes.
    """
    if with_it.shape != without.shape:
        raise ValueError(f"not the same seeds and rows: {with_it.shape} and {without.shape}")
    return bootstrap(with_it.astype(np.float64) - without.astype(np.float64))
