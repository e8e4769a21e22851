"""The measuring itself: rounds of short bursts, one engine at a time, in a new order each round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import psutil
from engine_pool import Column, EngineError, Worker
from pydantic import BaseModel

TEXT = "text"
BURST_MS, BURST_LEAST, BURST_MOST = 25.0, 1, 12
"""Timed inferences of one turn: about so many ms, within these bounds."""
WARM_MS = 10.0
"""Untimed inferences before: the caches hold another engine's weights, the clock may have dropped."""
TEXTS_MS, TEXTS_LEAST, TEXTS_MOST = 300.0, 5, 20
"""Texts of one turn, the same for all engines: so many that the slowest takes about so many ms."""
QUIET = 0.05
"""A round in which other processes took no more than this share of the CPU time is quiet."""
LISTEN_S = 0.2
"""Before a round that wants to be quiet, others are listened for so long."""


class Engine(BaseModel):
    """What one engine did in one cell.

    Attributes:
        wall: ms of every timed inference, one list per round.
        cpu: Mean CPU time in ms of an inference, one per round.
        after: CPU time in ms used after the turn, one per round: spinning.
    """

    wall: list[list[float]] = []
    cpu: list[float] = []
    after: list[float] = []


class Cell(BaseModel):
    """All engines at one thread count and one length.

    Attributes:
        threads: Threads within an operator.
        length: Tokens, or ``text``.
        engines: By name.
        others: Share of CPU time that went to other processes, one per round.
    """

    threads: int
    length: str
    engines: dict[str, Engine] = {}
    others: list[float] = []

    def kept(self) -> list[int]:
        """Rounds to compute with: the quiet ones if they are enough for an interval, else all."""
        quiet = [i for i, share in enumerate(self.others) if share <= QUIET]
        return quiet if len(quiet) >= 6 else list(range(len(self.others)))

    def series(self, name: str, cpu: bool = False) -> list[float]:
        """One time per kept round in ms: median of a burst; over texts, which differ in length, the mean."""
        engine, middle = self.engines[name], np.mean if self.length == TEXT else np.median
        return [engine.cpu[i] if cpu else float(middle(engine.wall[i])) for i in self.kept()]


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: Quiet rounds wanted for each cell.
        least: Rounds made at any rate.
        budget_s: Seconds for one cell, after which no further round is begun.
        patience_s: Further seconds that may be spent waiting for the machine to be quiet before a round.
    """

    rounds: int = 15
    least: int = 6
    budget_s: float = 25.0
    patience_s: float = 0.0


class Pool:
    """All engines of one model at one thread count, each in its process.

    Args:
        columns: What to open; what cannot be opened is said and left out.
        threads: Threads within an operator.
    """

    def __init__(self, columns: Sequence[Column], threads: int) -> None:
        self.threads = threads
        self.workers: dict[str, Worker] = {}
        for column in columns:
            if threads in column.threads:
                try:
                    self.workers[column.name] = Worker(column, threads)
                except EngineError as error:
                    print(f"  left out: {error}", flush=True)

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers.values():
            worker.close()

    def feed(self, key: str, rows: Sequence[Sequence[int]]) -> dict[str, list[list[float]]]:
        """Give inputs to all; returns the logits by engine."""
        out = {}
        for name, worker in list(self.workers.items()):
            try:
                out[name] = worker.feed(key, rows)
            except EngineError as error:
                print(f"  left out from here on: {error}", flush=True)
                self.workers.pop(name).close()
        return out

    def measure(self, length: str, effort: Effort, order: np.random.Generator) -> Cell:
        """One cell; inputs were given under the length's name."""
        cell = Cell(threads=self.threads, length=length, engines={name: Engine() for name in self.workers})
        turns = self._turns(length)
        began, first, quiet, waited = time.monotonic(), 0, 0, 0.0
        names = list(self.workers)
        while quiet < effort.rounds:
            waited += self._wait(effort.patience_s - waited)
            mark = self._mark()
            for i in order.permutation(len(names)):
                name = names[i]
                count, untimed = turns[name]
                burst = self.workers[name].run(length, first, count, untimed)
                engine = cell.engines[name]
                engine.wall.append(burst.wall)
                engine.cpu.append(burst.cpu)
                engine.after.append(round(burst.after, 3))
            cell.others.append(round(self._others(mark), 4))
            quiet += cell.others[-1] <= QUIET
            if length == TEXT:
                first += turns[names[0]][0]
            if len(cell.others) >= effort.least and time.monotonic() - began - waited > effort.budget_s:
                break
        return cell

    def _turns(self, length: str) -> dict[str, tuple[int, int]]:
        """Timed and untimed inferences of each engine's turn, from a first try."""
        cost = {}
        for name, worker in self.workers.items():
            worker.run(length, 0, 2, 3)
            cost[name] = max(float(np.median(worker.run(length, 0, 3, 0).wall)), 0.01)
        if length == TEXT:
            count = int(np.clip(TEXTS_MS / max(cost.values()), TEXTS_LEAST, TEXTS_MOST))
            return {name: (count, int(np.clip(WARM_MS / c, 1, 10))) for name, c in cost.items()}
        return {
            name: (int(np.clip(BURST_MS / c, BURST_LEAST, BURST_MOST)), int(np.clip(WARM_MS / c, 1, 20)))
            for name, c in cost.items()
        }

    def _wait(self, most_s: float) -> float:
        """Wait for the others to pause; returns the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < most_s:
            mark = self._mark()
            time.sleep(LISTEN_S)
            if self._others(mark) <= QUIET:
                break
        return time.monotonic() - began

    def _mark(self) -> tuple[float, float, float]:
        own = time.process_time() + sum(w.cpu_ms() for w in self.workers.values()) / 1000
        return time.monotonic(), _busy_s(), own

    def _others(self, mark: tuple[float, float, float]) -> float:
        wall, busy, own = (now - then for now, then in zip(self._mark(), mark, strict=True))
        return float(np.clip((busy - own) / (wall * (psutil.cpu_count() or 1)), 0.0, 1.0))


def _busy_s() -> float:
    """CPU seconds since boot that were neither idle nor waiting, stolen ones included."""
    times = psutil.cpu_times()._asdict()
    return float(sum(v for k, v in times.items() if k not in ("idle", "iowait", "guest", "guest_nice")))
