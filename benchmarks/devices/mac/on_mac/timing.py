"""Time one package on one compute unit: warm-up until stable, then bursts that take turns."""

from __future__ import annotations

import gc
import random
import statistics
import time
from typing import Any

from pocketbert.benchmarks.devices.mac.on_mac.common import LOG, ms

BURST, WINDOW, STABLE, WARMUP_LEAST, WARMUP_MOST = 5, 5, 0.03, 10, 60


class Cell:
    """One package on one compute unit at one length, and its timings so far."""

    def __init__(self, name: str, unit: str, model: Any, length: int, feed: dict[str, Any]) -> None:
        self.name, self.unit, self.length, self._model, self._feed = name, unit, length, model, feed
        # Core ML's own clock around the inference; coremltools 9 has it, on a private object
        proxy = getattr(model, "_proxy", None)
        self._clock = getattr(proxy, "get_last_predict_duration_in_nano_seconds", None)
        self.content: dict[str, Any] = {"length": length, "wall_ms": [], "cpu_ms": [], "engine_ms": []}

    def once(self) -> tuple[float, float | None, float | None]:
        """Wall time, CPU time of this process, and Core ML's own time of one inference, in ms."""
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()
        self._model.predict(self._feed)
        wall = time.perf_counter_ns() - wall
        cpu = time.process_time_ns() - cpu
        own = self._clock() if self._clock else None
        return ms(wall), ms(cpu), ms(own) if own else None

    def warm_up(self) -> None:
        """Until the medians of two windows of 5 runs agree within 3 %; 10 to 60 runs."""
        runs, stable, before = 0, False, None
        while runs < WARMUP_LEAST or not (stable or runs >= WARMUP_MOST):
            median = statistics.median(self.once()[0] for _ in range(WINDOW))
            runs += WINDOW
            stable = before is not None and abs(median / before - 1) < STABLE
            before = median
        self.content.update(warmup_runs=runs, warmup_stable=stable)

    def burst(self, count: int) -> None:
        """Time `count` inferences after an untimed one: the caches hold another model."""
        self.once()
        for _ in range(count):
            wall, cpu, own = self.once()
            self.content["wall_ms"][-1].append(wall)
            if cpu is not None:
                self.content["cpu_ms"][-1].append(cpu)
            if own is None:
                self.content["engine_ms"] = None
            elif self.content["engine_ms"] is not None:
                self.content["engine_ms"][-1].append(own)


def measure_all(cells: list[Cell], runs: int, repeats: int) -> None:
    """Warm up, then repeats that visit every length, in rounds where all cells of the length take turns."""
    for number, cell in enumerate(cells, 1):
        LOG.info(f"[{number}/{len(cells)}] warm-up {cell.name} {cell.unit}, {cell.length} tokens")
        cell.warm_up()
    order = random.Random(0)  # noqa: S311 - an order of turns, nothing secret
    gc.disable()
    for repeat in range(repeats):
        for length in sorted({c.length for c in cells}):
            group = [c for c in cells if c.length == length]
            for cell in group:
                for samples in (cell.content["wall_ms"], cell.content["cpu_ms"], cell.content["engine_ms"]):
                    if samples is not None:
                        samples.append([])
            for first in range(0, runs, BURST):
                order.shuffle(group)
                for cell in group:
                    cell.burst(min(BURST, runs - first))
            LOG.info(f"repeat {repeat + 1} of {repeats}, {length} tokens")
    gc.enable()
