"""Measure the ranges of activations on calibration rows.

`Ranges` counts the numbers of tensors row by row and chooses the tensors' ranges; `Histogram` counts one tensor. A
range is the smallest and the largest number, or a smaller one outside of which rare numbers are clipped (see
`Calibration`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.families.weight_records import Range
from pocketbert.core.types import Calibration

BINS = 4096
"""Bins of a histogram; its memory is the same for one row and for a million."""
KEPT = 0.9999
"""Share of the numbers of a tensor that lie inside the range of `Calibration.PERCENTILE`."""
STEPS = 255
"""Steps of a range in 8 bits."""
ROOM = 2.0
"""How many times wider than measured a range in 16 bits is, for texts that reach further than the calibration texts.

Calibrated on 16 sentences, files of tiny models were off by 1.7 to 13 times as much without it, mostly on short texts;
with 2 and with 4 they were off by as much as with the ranges of the texts themselves.
"""
_FRACTIONS = np.linspace(0.2, 1.0, 81)
"""Parts of the full range that `Calibration.MSE` tries."""


class Ranges:
    """The ranges of several tensors, measured on calibration rows, one row at a time.

    Args:
        names: Names of the tensors.
        method: How ranges are chosen.
        steps: Number of quantization steps into which a range will be divided.
    """

    def __init__(self, names: Iterable[str], method: Calibration, steps: int = STEPS) -> None:
        self._histograms = {name: Histogram() for name in names}
        self._method, self._steps = method, steps
        self._rows = 0

    def add(self, row: Mapping[str, NDArray[Any]]) -> None:
        """Add one unpadded row's values of every tensor to its histogram."""
        self._rows += 1
        for name, histogram in self._histograms.items():
            histogram.add(row[name], count=self._method is not Calibration.MINMAX)

    def chosen(self, title: str) -> dict[str, Range]:
        """Return the range (low, high) of every tensor, by the tensor's name, as the calibration method chooses it.

        Args:
            title: Name of the quantized file, for error messages.

        Raises:
            InputError: If no calibration row was added.
            GateError: If a tensor has NaN or infinite numbers, or nothing but zeros.
        """
        if not self._rows:
            raise InputError(Problem("rows", "no row to measure ranges on.", "Give at least one text, better 100."))
        ends = {name: (h.low, h.high) for name, h in self._histograms.items()}
        problems = []
        for what, names in (
            ("NaN or infinite numbers", [n for n, r in ends.items() if not np.isfinite(r).all()]),
            ("nothing but zeros", [n for n, r in ends.items() if r == (0.0, 0.0)]),
        ):
            if names:
                problems.append(
                    f"{title}: {what} on the calibration texts, which gives no range: {', '.join(names[:5])} "
                    f"({len(names)} in all). Is the model trained, are these its texts?"
                )
        if problems:
            raise GateError(problems)
        return {name: h.range(self._method, self._steps) for name, h in self._histograms.items()}


class Histogram:
    """A histogram of one tensor's numbers, in bins over [-r, r]. The radius r doubles when a number lies outside.

    Attributes:
        low: Smallest number, or 0 if that is smaller.
        high: Largest number, or 0 if that is larger.
    """

    def __init__(self) -> None:
        self.low = self.high = 0.0
        self._limit = 0.0
        self._counts = np.zeros(BINS, np.int64)

    def add(self, values: NDArray[np.floating], count: bool = True) -> None:
        """Count the numbers of an array in the histogram; NaN and infinity only change `low` and `high`.

        Args:
            values: The numbers, of any shape.
            count: Whether to count them; otherwise only `low` and `high` are updated.
        """
        # unlike Python's own functions, these keep NaN
        self.low = float(np.minimum(self.low, values.min()))
        self.high = float(np.maximum(self.high, values.max()))
        if not count:
            return
        finite = values[np.isfinite(values)]
        largest = float(np.abs(finite).max()) if finite.size else 0.0
        if largest == 0.0:
            self._counts[BINS // 2] += finite.size
            return
        if self._limit == 0.0:
            self._limit = 2.0 ** np.ceil(np.log2(largest))
        while largest > self._limit:  # double the range: neighbouring bins become one
            pairs = self._counts.reshape(-1, 2).sum(1)
            self._counts[:] = 0
            self._counts[BINS // 4 : BINS * 3 // 4] = pairs
            self._limit *= 2
        bins = np.floor((finite.ravel().astype(np.float64) / self._limit + 1) * (BINS / 2)).astype(np.int64)
        self._counts += np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS)

    def range(self, method: Calibration, steps: int = STEPS) -> Range:
        """Return the range (low, high) that a calibration method chooses.

        Args:
            method: The calibration method, such as the full range or the range with the least error.
            steps: Number of quantization steps into which the range will be divided.
        """
        match method:
            case Calibration.MINMAX:
                return self.low, self.high
            case Calibration.PERCENTILE:
                return self.percentile()
            case Calibration.MSE:
                return self.least_error(steps)

    @property
    def centres(self) -> NDArray[np.float64]:
        """The number in the middle of each bin."""
        return np.asarray(((np.arange(BINS) + 0.5) / (BINS / 2) - 1) * self._limit, np.float64)

    def percentile(self, kept: float = KEPT) -> Range:
        """Return the range that cuts off an equal share of the numbers at each end, with zero inside.

        Args:
            kept: Share of the numbers that stay inside the range.
        """
        share = np.cumsum(self._counts) / max(1, self._counts.sum())
        outside = (1 - kept) / 2
        low, high = (self.centres[min(BINS - 1, int(np.searchsorted(share, s)))] for s in (outside, 1 - outside))
        return max(self.low, min(0.0, float(low))), min(self.high, max(0.0, float(high)))

    def least_error(self, steps: int = STEPS) -> Range:
        """Return the range, of those tried inside the full range, for which rounding has the least mean squared error.

        Args:
            steps: Number of quantization steps between both ends of the range.
        """
        used = self._counts > 0
        centres, counts = self.centres[used], self._counts[used]
        best_range, best_error = (self.low, self.high), np.inf
        for part in _FRACTIONS:
            low, high = self.low * part, self.high * part
            step = (high - low) / steps
            if step <= 0:
                continue
            rounded = np.clip(np.rint((centres - low) / step), 0, steps) * step + low
            error = float((counts * (rounded - centres) ** 2).sum())
            if error <= best_error:
                best_range, best_error = (low, high), error
        return best_range
