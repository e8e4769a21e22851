"""Choose the few numbers that replace all numbers of a weight with the least squared error (k-means): its palette."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_DENSITY_BINS = 2048
_MOST_STEPS = 2000
_CODES = 1 << 16


def palette_of(values: NDArray[Any], size: int) -> NDArray[np.float32]:
    """Choose the numbers of a palette by Lloyd's algorithm (Lloyd, "Least squares quantization in PCM", 1982).

    It runs on the values as fp16, of which there are few, until nothing changes, from two starts: equal steps, and steps as
    narrow as the third root of the density asks for, which is where many levels end (Panter and Dite, 1951). The better
    result is returned: it is never worse than equal steps, and the same weights always give the same palette.

    Args:
        values: The numbers of a weight, of any shape.
        size: How many numbers the palette has.

    Returns:
        [size], in rising order, each an fp16 number; some are equal where the weight has fewer numbers.
    """
    codes = np.ascontiguousarray(values, np.float16).view(np.uint16).ravel()
    counts = np.bincount(codes, minlength=_CODES)
    used = np.flatnonzero(counts).astype(np.uint16)
    points = used.view(np.float16).astype(np.float64)
    order = np.argsort(points)
    points, weights = points[order], counts[used][order].astype(np.float64)
    starts = [np.linspace(points[0], points[-1], size), _by_density(points, weights, size)]
    found = [_settled(points, weights, start) for start in starts]
    best = min(found, key=lambda levels: _error(points, weights, levels))
    return np.sort(best).astype(np.float16).astype(np.float32)


def places_in(values: NDArray[Any], palette: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Find the place of the nearest number of a palette for every value.

    Args:
        values: The numbers of a weight, of any shape.
        palette: In rising order.

    Returns:
        Places, in one row.
    """
    middles = (palette[1:].astype(np.float64) + palette[:-1]) / 2
    if values.dtype != np.float16:
        return np.searchsorted(middles, values.ravel()).astype(np.uint8)
    every = np.arange(_CODES, dtype=np.uint16).view(np.float16).astype(np.float64)
    return np.searchsorted(middles, every).astype(np.uint8)[np.ascontiguousarray(values).view(np.uint16).ravel()]


def _by_density(points: NDArray[np.float64], weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Levels between which lie equal parts of the third root of the density."""
    bins, edges = np.histogram(points, _DENSITY_BINS, weights=weights)
    share = np.concatenate([[0.0], np.cumsum(np.cbrt(bins))])
    wanted = (np.arange(size) + 0.5) / size * share[-1]
    return np.asarray(np.interp(wanted, share, edges), np.float64)


def _settled(
    points: NDArray[np.float64], weights: NDArray[np.float64], levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Move levels to the means of the points that are nearest to them until nothing changes."""
    mass = np.concatenate([[0.0], np.cumsum(weights)])
    moment = np.concatenate([[0.0], np.cumsum(weights * points)])
    before: NDArray[np.int64] | None = None
    for _ in range(_MOST_STEPS):
        cuts = np.searchsorted(points, (levels[1:] + levels[:-1]) / 2)
        ends = np.concatenate([[0], cuts, [len(points)]])
        if before is not None and np.array_equal(ends, before):
            break
        before = ends
        inside = np.diff(mass[ends])
        levels = np.where(inside > 0, np.diff(moment[ends]) / np.maximum(inside, 1), levels)
    return levels


def _error(points: NDArray[np.float64], weights: NDArray[np.float64], levels: NDArray[np.float64]) -> float:
    nearest = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, points)]
    return float((weights * (points - nearest) ** 2).sum())
