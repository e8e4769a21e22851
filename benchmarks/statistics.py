"""Statistics of timings: nearest-rank percentiles, and confidence intervals of latencies and of their ratios.

`Statistics.of` describes samples; `repeat_interval` gives the interval of a latency. `time_ratio` compares two files that took turns:
by all rounds (`paired_ratio`), or by the repeats of fresh processes (`repeated_ratio`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

CONFIDENCE = 0.95
REPEATS_LEAST = 3
"""Fewer repeats have no interval."""

# Student's t, 97.5 % point, for 1 to 30 degrees of freedom (standard table; the tests compare with scipy).
# Beyond 30, two terms of the Cornish-Fisher expansion are right to four digits.
_T975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_Z975 = 1.959964


class _Frozen(BaseModel):
    """An immutable record that ignores unknown fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Statistics(_Frozen):
    """Percentiles, mean and deviation of a set of timings.

    Percentiles are nearest-rank: each is one of the samples, never a value between two of them
    (the definition of MLPerf and of the usual benchmark tools).

    Attributes:
        n: Number of samples.
        min: Smallest sample.
        p50: Median.
        p90: 90th percentile.
        p99: 99th percentile; with fewer than 100 samples it is the largest sample.
        mean: Arithmetic mean.
        stdev: Sample standard deviation (n - 1); 0 for a single sample.
        unit: Always milliseconds.
    """

    n: int
    min: float
    p50: float
    p90: float
    p99: float
    mean: float
    stdev: float
    unit: Literal["ms"] = "ms"

    @classmethod
    def of(cls, samples: Sequence[float]) -> Statistics:
        """Compute percentiles, mean and standard deviation of timings.

        Args:
            samples: At least one timing in ms, shape [n], any order.

        Raises:
            ValueError: If there is no sample.
        """
        ordered = np.sort(np.asarray(samples, np.float64))
        if not ordered.size:
            raise ValueError("no samples: a benchmark without runs has no statistics")
        return cls(
            n=ordered.size,
            min=float(ordered[0]),
            p50=nearest_rank(ordered, 50),
            p90=nearest_rank(ordered, 90),
            p99=nearest_rank(ordered, 99),
            mean=float(ordered.mean()),
            stdev=float(ordered.std(ddof=1)) if ordered.size > 1 else 0.0,
        )


class Interval(_Frozen):
    """A confidence interval, in the unit of the value that it is for."""

    low: float
    high: float
    confidence: float


class Ratio(_Frozen):
    """The ratio of two series of paired times, with an interval; below 1, the first series is faster.

    Attributes:
        median: Median of the paired ratios; with a new process for each repeat, the geometric mean of the processes'
            medians.
        low: Lower end of the interval.
        high: Upper end of the interval.
        pairs: Number of pairs; with new processes, the number of processes.
        confidence: Probability that the interval covers the true value: 0.95 with new processes, else 0.95 or a little
            more from 6 pairs on, less with fewer.
    """

    median: float
    low: float
    high: float
    pairs: int
    confidence: float

    @property
    def has_interval(self) -> bool:
        """Whether there were pairs enough for an interval of 95 %."""
        return self.confidence >= CONFIDENCE

    @property
    def decided(self) -> bool:
        """Whether 1 is outside of an interval of 95 %, so that one of the two is faster."""
        return self.has_interval and (self.high < 1 or self.low > 1)


def nearest_rank(samples: Sequence[float] | np.ndarray, percent: int) -> float:
    """Return the smallest sample that at least `percent` per cent of the samples do not exceed.

    Args:
        samples: Numbers, shape [n], n >= 1, in any order.
        percent: A whole number from 1 to 100; whole, because 0.07 * 100 is not 7 in floating point.

    Returns:
        One of the samples.
    """
    ordered = np.sort(np.asarray(samples, np.float64))
    return float(ordered[-(-percent * ordered.size // 100) - 1])


def repeat_interval(medians: Sequence[float]) -> Interval | None:
    """Compute the 95 % confidence interval of a latency from the medians of its repeats.

    It is a t interval over logarithms: repeats are few (3 to 10), times are positive and skewed to the right, and
    disturbances (clock rate, other load) multiply the times.

    Args:
        medians: One median in ms per repeat.

    Returns:
        The interval. None for fewer than three repeats: with two it would be 12.7 standard errors wide to each side,
        which is right but useless.
    """
    if len(medians) < REPEATS_LEAST:
        return None
    logs = np.log(np.asarray(medians, np.float64))
    half = student_t(len(medians) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(medians))
    centre = float(logs.mean())
    return Interval(low=math.exp(centre - half), high=math.exp(centre + half), confidence=CONFIDENCE)


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution with `freedom` >= 1 degrees of freedom."""
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z = _Z975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def burst_medians(repeats: Sequence[Sequence[float]], burst: int) -> list[float]:
    """Return the median of each burst of all repeats; entry i belongs to the same round for all files that took turns.

    Args:
        repeats: Times in ms, [repeats][runs].
        burst: Number of times in one turn.
    """
    return [float(np.median(r[i : i + burst])) for r in repeats for i in range(0, len(r), burst)]


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Compute the median ratio a[i] / b[i] of times taken in the same rounds, with its confidence interval.

    If something disturbs a whole round, both times change and the ratio does not, which is why the files take turns.
    The interval is the distribution-free one of the median, between two order statistics (an inverted sign test): it
    assumes neither normal errors nor a common spread, and a single outlier cannot widen it. With fewer than 6 pairs no
    such interval reaches 95 %; it then spans all ratios, and `confidence` is its lower coverage. Swapping `a` and `b`
    gives the reciprocals.

    Args:
        a: Times of the first file, positive, shape [rounds].
        b: Times of the second file, positive, from the same rounds.

    Returns:
        Median of a[i] / b[i] with its interval.

    Raises:
        ValueError: If the series are empty or of different length.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"paired series need equal, non-zero length, got {len(a)} and {len(b)}")
    logs = np.sort(np.log(np.asarray(a, np.float64)) - np.log(np.asarray(b, np.float64)))
    cut, coverage = _order_cut(len(logs))
    return Ratio(
        median=math.exp(float(np.median(logs))),
        low=math.exp(logs[cut]),
        high=math.exp(logs[-1 - cut]),
        pairs=len(logs),
        confidence=coverage,
    )


def time_ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], turn: int, fresh: bool = False) -> Ratio:
    """Compute the ratio of the times of two files that took turns, with its interval, from the median of each turn.

    Args:
        a: Times in ms of the first file, [repeats][runs].
        b: Times in ms of the second file, from the same rounds.
        turn: Number of times in one turn.
        fresh: Whether every repeat ran in a new process.

    Returns:
        The median of the rounds' ratios (`paired_ratio`). If every repeat ran in a new process, and there are three or
        more, the geometric mean of the repeats' ratios (`repeated_ratio`).
    """
    if fresh and len(a) >= REPEATS_LEAST:
        pairs = zip(a, b, strict=True)
        return repeated_ratio(
            [paired_ratio(burst_medians([x], turn), burst_medians([y], turn)).median for x, y in pairs]
        )
    return paired_ratio(burst_medians(a, turn), burst_medians(b, turn))


def repeated_ratio(ratios: Sequence[float]) -> Ratio:
    """Combine the time ratios of several processes, one per process, into their geometric mean with a 95 % interval.

    It is a t interval over logarithms, as in `repeat_interval`. Processes differ from each other by more than the
    rounds of one process, so that an interval over all rounds would be too narrow by half.

    Args:
        ratios: One positive ratio per process, at least three.

    Returns:
        Their geometric mean with its interval.
    """
    interval = repeat_interval(ratios)
    if interval is None:
        raise ValueError(f"an interval needs {REPEATS_LEAST} repeats, got {len(ratios)}")
    return Ratio(
        median=math.exp(float(np.mean(np.log(ratios)))),
        low=interval.low,
        high=interval.high,
        pairs=len(ratios),
        confidence=interval.confidence,
    )


@cache
def _order_cut(n: int) -> tuple[int, float]:
    """Return how many sorted values to drop at each end for a 95 % interval of the median, and its exact coverage."""
    # The sorted values x[k] .. x[n-1-k] miss the median with probability 2 P(Binomial(n, 1/2) <= k).
    below, cut, half = 1, 0, 1 << max(n - 1, 0)
    ways = n  # binomial coefficient of n and cut + 1, each from the one before: thousands of pairs are usual
    # Whole numbers are divided: from 1024 pairs on, 2**n is too large for a float.
    while (below + ways) / half <= 1 - CONFIDENCE and 2 * (cut + 1) < n:
        cut += 1
        below += ways
        ways = ways * (n - cut) // (cut + 1)
    return cut, max(0.0, 1 - below / half)
