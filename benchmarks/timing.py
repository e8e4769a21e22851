"""Timing one variant on one kind of input: warm-up until stable, then short bursts on demand."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pocketbert.benchmarks.inputs import Feed
from pocketbert.benchmarks.measurement import Length, Variant
from pocketbert.benchmarks.statistics import burst_medians
from pocketbert.core.predict.predictor import Predictor

BURST = 5
"""Timed inferences of one variant before the next one has its turn."""
WINDOW = 5
"""Inferences whose medians are compared during warm-up."""
STABLE = 0.03
"""Two windows closer than this are stable."""
WARMUP_LEAST, WARMUP_MOST = 10, 60
_DECIMALS = 4
"""Raw samples are kept to 0.1 µs, finer than any clock here; the statistics are made from these."""


@dataclass
class Cell:
    """One variant at one thread count and one length, and its timings so far.

    Attributes:
        variant: What is measured.
        predictor: The opened file.
        length: Tokens or ``"text"``.
        feeds: Inputs to cycle through.
        warmup_runs: Untimed inferences before the first timed one.
        warmup_stable: Whether they became stable.
        cost_ms: What one inference takes, from the warm-up; for planning only.
        wall_ms: Raw wall times, one list per repeat.
        cpu_ms: Raw CPU times, same shape.
    """

    variant: Variant
    predictor: Predictor
    length: Length
    feeds: list[Feed]
    warmup_runs: int = 0
    warmup_stable: bool = False
    cost_ms: float = 0.0
    wall_ms: list[list[float]] = field(default_factory=list)
    cpu_ms: list[list[float]] = field(default_factory=list)

    def once(self, number: int) -> tuple[float, float]:
        """Wall and CPU time in ms of one inference on input `number` (modulo their count)."""
        feed = self.feeds[number % len(self.feeds)]
        # The CPU clock is a slow system call, so it stays outside the wall clock's interval.
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()
        self.predictor.run(feed)
        wall = time.perf_counter_ns() - wall
        cpu = time.process_time_ns() - cpu
        return round(wall / 1e6, _DECIMALS), round(cpu / 1e6, _DECIMALS)

    def warm_up(self, most_s: float) -> None:
        """Run until stable: at least 10 and every input shape once, at most 60 or `most_s` seconds.

        ONNX Runtime plans memory per input shape, so a shape's first run is slow. Stable means that the
        medians of two windows of 5 runs on the same inputs differ by less than 3 %.
        """
        begin = time.monotonic()
        shapes = {int(f["input_ids"].shape[1]): i for i, f in enumerate(self.feeds)}
        for number in shapes.values():
            self.once(number)
        self.warmup_runs = len(shapes)
        before = None
        while not self.warmup_stable or self.warmup_runs < WARMUP_LEAST:
            median = float(np.median([self.once(i)[0] for i in range(WINDOW)]))
            self.warmup_runs += WINDOW
            self.warmup_stable = before is not None and abs(median / before - 1) < STABLE
            before = self.cost_ms = median
            late = self.warmup_runs >= WARMUP_MOST or time.monotonic() - begin > most_s
            if late and self.warmup_runs >= WARMUP_LEAST:
                return

    def burst(self, first: int, count: int) -> None:
        """Time `count` inferences on the inputs from `first` on, and add them to the current repeat.

        One untimed inference comes before: the caches hold the weights of another variant.
        """
        self.once(first)
        for number in range(first, first + count):
            wall, cpu = self.once(number)
            self.wall_ms[-1].append(wall)
            self.cpu_ms[-1].append(cpu)

    def round_medians(self, cpu: bool = False) -> list[float]:
        """Median in ms of each burst, all repeats after one another; entry i is round i of every variant."""
        return burst_medians(self.cpu_ms if cpu else self.wall_ms, BURST)


def interleave(cells: list[Cell], runs: int, order: np.random.Generator) -> None:
    """One repeat: rounds in which every cell has one burst, in a new order each round.

    Args:
        cells: The variants, on the same length.
        runs: Timed inferences of each.
        order: Where the orders come from.
    """
    for cell in cells:
        cell.wall_ms.append([])
        cell.cpu_ms.append([])
    with _no_garbage_collection():
        for first in range(0, runs, BURST):
            for i in order.permutation(len(cells)):
                cells[i].burst(first, min(BURST, runs - first))


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
