"""Compare a benchmark with an earlier one of the same machine, and say which files became slower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult, Measurement
from pocketbert.benchmarks.records import Length
from pocketbert.benchmarks.statistics import CONFIDENCE, REPEATS_LEAST, Interval, Statistics, student_t
from pocketbert.core.errors import InputError, Problem

Key = tuple[str, str, int, Length, float]
"""Name of the file, device with its unit, threads, length."""


@dataclass(frozen=True)
class Slowdown:
    """One figure against the same one of an earlier benchmark.

    Attributes:
        key: What was measured.
        ratio: New / old typical time, or instructions on an emulator: above 1 it became slower.
        interval: Where that ratio lies.
        same_file: Whether both measured the same bytes.
    """

    key: Key
    ratio: float
    interval: Interval
    same_file: bool

    def exceeds(self, most: float) -> bool:
        """Whether the whole interval is beyond the slowdown that is allowed, a fraction."""
        return self.interval.low > 1 + most

    @property
    def words(self) -> str:
        """For a line of the terminal."""
        variant, place, threads, length, gap_ms = self.key
        file = "the same file" if self.same_file else "another file"
        return (
            f"{variant}, {place}, {wording.threads(threads)}, {wording.pace(length, gap_ms)}: {self.ratio:.3f} of the baseline "
            f"[{self.interval.low:.3f}, {self.interval.high:.3f}], {file}"
        )


def check_repeats(earlier: BenchmarkResult, repeats: int, where: str) -> None:
    """Refuse a comparison that can have no interval, before anything is measured.

    Args:
        earlier: The baseline.
        repeats: Repeats that will be measured.
        where: The file of the baseline, for errors.

    Raises:
        InputError: If the baseline, or the new benchmark, has too few repeats.
    """
    problems = []
    if repeats < REPEATS_LEAST:
        problems.append(Problem("--repeats", f"{repeats}; an interval needs {REPEATS_LEAST} with --baseline."))
    problems += _too_few([m for session in earlier.sessions for m in session.measurements], where)
    if problems:
        raise InputError(problems)


@dataclass(frozen=True)
class Pair:
    """One figure in two benchmarks.

    Attributes:
        now: In the later one.
        earlier: In the earlier one.
    """

    now: Measurement
    earlier: Measurement

    @property
    def key(self) -> Key:
        """What was measured."""
        return key_of(self.now)

    @property
    def repeated(self) -> bool:
        """Whether both have the repeats that an interval needs; counts of instructions always have."""
        return all(m.wall is None or len(m.wall_ms) >= REPEATS_LEAST for m in (self.now, self.earlier))

    @property
    def slowdown(self) -> Slowdown:
        """The ratio of the two; only where `repeated`."""
        return Slowdown(self.key, *_ratio(self.now, self.earlier), same_file=self.now.sha256 == self.earlier.sha256)


def compare(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> list[Slowdown]:
    """Compare all figures that both have: same name of the file, device, threads, length and idle time.

    The interval is that of the ratio of two typical times (Welch's t interval over the logarithms of the repeats'
    medians). It holds what varies within the two sessions. What differs between two hours on a machine is not in it,
    so the allowed slowdown should not be much smaller than 0.05.

    Args:
        now: What was measured.
        earlier: The baseline.
        where: Its file, for errors.

    Raises:
        InputError: If they have no figure in common, are of different machines, or one has too few repeats.
    """
    pairs, problems = _matched(now, earlier, where)
    problems += _too_few([m for pair in pairs for m in (pair.now, pair.earlier)], where)
    if problems:
        raise InputError(problems)
    return [pair.slowdown for pair in pairs]


def matched(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> list[Pair]:
    """All figures that two benchmarks of the same machines have in common, few repeats included; see `compare`.

    Args:
        now: The later benchmark.
        earlier: The earlier one.
        where: Its file, for errors.

    Raises:
        InputError: If they have no figure in common, or are of different machines.
    """
    pairs, problems = _matched(now, earlier, where)
    if problems:
        raise InputError(problems)
    return pairs


def _matched(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> tuple[list[Pair], list[Problem]]:
    old = {key_of(m): m for session in earlier.sessions for m in session.measurements}
    pairs = [Pair(m, old[key_of(m)]) for session in now.sessions for m in session.measurements if key_of(m) in old]
    problems = []
    if not pairs:
        names = ", ".join(sorted({m.variant for m in old.values()}))
        problems.append(
            Problem(
                where,
                f"has no figure in common with this benchmark; it has {names}.",
                "Use the same files and options.",
            )
        )
    for pair in {pair.now.place: pair for pair in pairs}.values():
        new, before = (m.machine.model_copy(update={"system": "", "python": ""}) for m in (pair.now, pair.earlier))
        if new != before:
            problems.append(
                Problem(
                    where,
                    f"is of another machine than {pair.now.place}: {before.summary}.",
                    "Measure the baseline here.",
                )
            )
    return [pair for pair in pairs if (pair.now.wall is None) == (pair.earlier.wall is None)], problems


def _too_few(measurements: Sequence[Measurement], where: str) -> list[Problem]:
    """Tell of the first one that has too few repeats for an interval."""
    few = [m for m in measurements if m.wall is not None and len(m.wall_ms) < REPEATS_LEAST]
    return [
        Problem(
            where,
            f"{m.variant} has {len(m.wall_ms)} repeats; an interval needs {REPEATS_LEAST}.",
            f"Measure both with --repeats {REPEATS_LEAST} or more.",
        )
        for m in few[:1]
    ]


def key_of(m: Measurement) -> Key:
    """What a figure is of, in any benchmark."""
    return (m.variant, m.place, m.threads, m.length, m.gap_ms)


def _ratio(new: Measurement, old: Measurement) -> tuple[float, Interval]:
    """Ratio of typical times, or of counts where there are no times, with its interval."""
    if new.wall is not None:
        sides = [_of_times(new.wall_ms), _of_times(old.wall_ms)]
    else:
        assert new.guest_instructions is not None
        assert old.guest_instructions is not None
        sides = [_of_counts(new.guest_instructions), _of_counts(old.guest_instructions)]
    (centre, error, n), (old_centre, old_error, old_n) = sides
    both = error + old_error
    freedom = both**2 / (error**2 / (n - 1) + old_error**2 / (old_n - 1)) if both > 0 else 1.0
    half = student_t(max(1, math.floor(freedom))) * math.sqrt(both)
    middle = centre - old_centre
    interval = Interval(low=math.exp(middle - half), high=math.exp(middle + half), confidence=CONFIDENCE)
    return math.exp(middle), interval


def _of_times(repeats: Sequence[Sequence[float]]) -> tuple[float, float, int]:
    """Mean of the logarithms of the repeats' medians, its squared standard error, and their number."""
    logs = np.log([float(np.median(repeat)) for repeat in repeats])
    return float(logs.mean()), float(logs.var(ddof=1)) / len(logs), len(logs)


def _of_counts(counts: Statistics) -> tuple[float, float, int]:
    """The same for instructions, which differ little: the relative error of their mean."""
    return math.log(counts.mean), (counts.stdev / counts.mean) ** 2 / counts.n, max(2, counts.n)
