"""The measuring itself: rounds of short bursts, one engine at a time, in a new order each round."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
from pydantic import BaseModel

from engine.columns import FASTEST
from engine.pool import Burst, Column, EngineError, Worker

TEXT = "text"
BURST_MS, BURST_LEAST, BURST_MOST = 25.0, 1, 12
"""Timed inferences of one turn: about so many ms, within these bounds."""
WARM_MS = 10.0
"""Untimed inferences before: the caches hold another engine's weights, the clock may have dropped."""
TEXTS_MS, TEXTS_LEAST, TEXTS_MOST = 100.0, 5, 20
"""Texts of one turn, the same for all engines: so many that the slowest takes about so many ms."""
CLOSE = 1.3
"""An engine stays in a cell while its lower quartile is within this multiple of the lowest."""
QUIET = 0.05
"""A round in which other processes took no more than this share of the CPU time is quiet."""
WINDOW_S = 1.0
"""The share is that of a round and of what came before it, so long together: the kernel counts the CPU time of all
processes in steps of 10 ms, which a round of 0.2 s cannot be judged by."""
DISTURBED_MOST = 3
"""On a busy machine no more than this multiple of the wanted rounds is made: the file keeps them all."""
SINGLES = 3
"""Single calls of one turn, where each comes after idle time."""
LISTEN_S = 0.2
"""After a round that was not quiet, others are listened to for so long."""


class Engine(BaseModel):
    """What one engine did in one part of a cell, from its first round on.

    Attributes:
        wall: ms of every timed inference, one list per round.
        cpu: Mean CPU time in ms of an inference, one per round.
        after: CPU time in ms used after the turn, one per round: spinning.
    """

    wall: list[list[float]] = []
    cpu: list[float] = []
    after: list[float] = []


class Part(BaseModel):
    """What one generation of processes did at one thread count and one length.

    Attributes:
        threads: Threads within an operator.
        length: Tokens, or ``text``.
        generation: Number of the generation, from 0.
        finalists: Engines that took part in every round; the others in the first ones of generation 0 only.
        engines: By name.
        others: Share of CPU time that went to other processes, one per round.
        round_s: Mean seconds of a round of the finalists.
    """

    threads: int
    length: str
    generation: int
    finalists: list[str] = []
    engines: dict[str, Engine] = {}
    others: list[float] = []
    round_s: float = 0.0


@dataclass(frozen=True)
class Effort:
    """How long one generation measures one cell.

    Attributes:
        rounds: Quiet rounds wanted of the finalists.
        least: Rounds made at any rate; in the first generation, those of all engines.
        budget_s: Seconds for the finalists, after which no further round is begun.
        patience_s: Further seconds that may be spent waiting for the machine to be quiet before a round.
    """

    rounds: int = 20
    least: int = 6
    budget_s: float = 15.0
    patience_s: float = 0.0


class Pool:
    """Engines of one model at one thread count, each in its process.

    Args:
        columns: What to open; what cannot be opened is said and left out.
        threads: Threads within an operator.

    Attributes:
        gap_ms: Idle time before each timed inference; 0 for bursts.
    """

    def __init__(self, columns: Sequence[Column], threads: int) -> None:
        self.threads, self.gap_ms = threads, 0.0
        self.workers: dict[str, Worker] = {}
        self.load = _Load(lambda: sum(w.cpu_ms() for w in self.workers.values()) / 1000)
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

    def feed(self, key: str, rows: Sequence[Sequence[int]], names: Iterable[str]) -> dict[str, list[list[float]]]:
        """Give inputs to those of these engines that are open; returns the logits by engine."""
        out = {}
        for name in [n for n in names if n in self.workers]:
            try:
                out[name] = self.workers[name].feed(key, rows)
            except EngineError as error:
                print(f"  left out from here on: {error}", flush=True)
                self.workers.pop(name).close()
        return out

    def measure(
        self,
        length: str,
        generation: int,
        effort: Effort,
        order: np.random.Generator,
        finalists: Collection[str] = (),
        always: Collection[str] = (),
    ) -> Part:
        """One generation's part of a cell; inputs were given under the length's name.

        Args:
            length: Tokens, or ``text``.
            generation: Its number.
            effort: How long.
            order: Draws the order of each round.
            finalists: Engines that run. None given: all run `effort.least` rounds, and then those go on that are close
                to the fastest.
            always: Engines that go on at any rate, besides `fastest`.
        """
        names = [n for n in self.workers if not finalists or n in finalists]
        part = Part(threads=self.threads, length=length, generation=generation, finalists=names)
        part.engines = {name: Engine() for name in names}
        cost = {name: self._cost(name, length) for name in names}
        rounds = _Rounds(self, part, effort.patience_s, order)
        if not finalists:
            turns = _turns(cost, length)
            for _ in range(effort.least):
                rounds.make(turns)
            part.finalists = contenders(part, always)
        turns = _turns({name: cost[name] for name in part.finalists}, length)
        made, waited, began = len(part.others), rounds.waited, time.monotonic()
        while rounds.quiet < effort.rounds and len(part.others) < DISTURBED_MOST * effort.rounds:
            spent = time.monotonic() - began - (rounds.waited - waited)
            if len(part.others) >= effort.least and spent > effort.budget_s:
                break
            rounds.make(turns)
        spent = time.monotonic() - began - (rounds.waited - waited)
        part.round_s = round(spent / max(len(part.others) - made, 1), 3)
        return part

    def turn(self, name: str, length: str, first: int, count: int, untimed: int) -> Burst:
        """One turn of an engine: a burst, or where there is an idle time, an untimed inference and some single calls.

        The untimed one leaves the caches as the call before leaves them in an app that has this engine only. The request
        then wakes the process, as an event wakes an app.
        """
        worker = self.workers[name]
        if not self.gap_ms:
            return worker.run(length, first, count, untimed)
        worker.run(length, first + SINGLES - 1, 1, 0)
        calls = []
        for i in range(first, first + SINGLES):
            time.sleep(self.gap_ms / 1000)
            calls.append(worker.run(length, i, 1, 0))
        cpu, after = (float(np.mean(values)) for values in ([c.cpu for c in calls], [c.after for c in calls]))
        return Burst([c.wall[0] for c in calls], cpu, after)

    def _cost(self, name: str, length: str) -> float:
        """About what an inference takes, in ms; a slow one is not tried for long."""
        worker = self.workers[name]
        cost = worker.run(length, 0, 1, 1).wall[0]
        if cost < BURST_MS:
            cost = float(np.median(worker.run(length, 0, 3, 1).wall))
        return max(cost, 0.01)


class _Rounds:
    """Rounds of one part.

    Attributes:
        quiet: How many were.
        waited: Seconds spent waiting for others.
    """

    def __init__(self, pool: Pool, part: Part, patience_s: float, order: np.random.Generator) -> None:
        self.quiet, self.waited = 0, 0.0
        self._pool, self._part, self._patience_s, self._order, self._first = pool, part, patience_s, order, 0
        pool.load.start()

    def make(self, turns: Mapping[str, tuple[int, int]]) -> None:
        """One turn of each, timed and untimed inferences given."""
        if self._part.others and self._part.others[-1] > QUIET and self.waited < self._patience_s:
            self.waited += self._pool.load.wait(self._patience_s - self.waited)
        names = list(turns)
        for i in self._order.permutation(len(names)):
            count, untimed = turns[names[i]]
            burst = self._pool.turn(names[i], self._part.length, self._first, count, untimed)
            engine = self._part.engines[names[i]]
            engine.wall.append([_digits(ms) for ms in burst.wall])
            engine.cpu.append(_digits(burst.cpu))
            engine.after.append(round(burst.after, 1))
        self._part.others.append(round(self._pool.load.share(), 3))
        self.quiet += self._part.others[-1] <= QUIET
        if self._part.length == TEXT:
            self._first += turns[names[0]][0]


class _Load:
    """What other processes take of the CPU.

    Args:
        own: CPU seconds so far of the processes that are being measured.
    """

    def __init__(self, own: Callable[[], float]) -> None:
        self._own = own
        self._marks: deque[tuple[float, float, float]] = deque()

    def start(self) -> None:
        """Forget what was."""
        self._marks = deque([self._mark()])

    def share(self) -> float:
        """Share of CPU time since the last call, or of the last `WINDOW_S` if that is longer, 0 to 1."""
        self._marks.append(self._mark())
        while len(self._marks) > 2 and self._marks[-1][0] - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()
        return _between(self._marks[0], self._marks[-1])

    def wait(self, most_s: float) -> float:
        """Wait for the others to pause; returns the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < most_s:
            mark = self._mark()
            time.sleep(LISTEN_S)
            if _between(mark, self._mark()) <= QUIET:
                break
        self.start()
        return time.monotonic() - began

    def _mark(self) -> tuple[float, float, float]:
        return time.monotonic(), _busy_s(), time.process_time() + self._own()


def contenders(part: Part, always: Collection[str] = ()) -> list[str]:
    """Engines that may be the fastest of the cell.

    Args:
        part: Some rounds of all engines.
        always: Engines that are kept at any rate, besides `fastest`.

    Returns:
        Names in the order of the part: lower quartile of the rounds within `CLOSE` times the lowest one, those of
        `fastest` and `always` not counted, which need somebody to be compared with.
    """
    judged = (FASTEST, *always)
    low = {n: float(np.percentile([typical(w, part.length) for w in e.wall], 25)) for n, e in part.engines.items()}
    limit = CLOSE * min([ms for n, ms in low.items() if n not in judged] or low.values())
    return [n for n, ms in low.items() if ms <= limit or n in judged]


def typical(wall: Sequence[float], length: str) -> float:
    """One time for a turn, in ms: median of the burst; over texts, which differ in length, the mean."""
    return float(np.mean(wall) if length == TEXT else np.median(wall))


def _turns(cost: Mapping[str, float], length: str) -> dict[str, tuple[int, int]]:
    """Timed and untimed inferences of each engine's turn."""
    if length == TEXT:
        count = int(np.clip(TEXTS_MS / max(cost.values()), TEXTS_LEAST, TEXTS_MOST))
        return {name: (count, int(np.clip(WARM_MS / ms, 1, 10))) for name, ms in cost.items()}
    return {
        name: (int(np.clip(BURST_MS / ms, BURST_LEAST, BURST_MOST)), int(np.clip(WARM_MS / ms, 1, 20)))
        for name, ms in cost.items()
    }


def _between(then: tuple[float, float, float], now: tuple[float, float, float]) -> float:
    wall, busy, own = (b - a for a, b in zip(then, now, strict=True))
    return float(np.clip((busy - own) / (wall * (psutil.cpu_count() or 1)), 0.0, 1.0))


def _busy_s() -> float:
    """CPU seconds since boot that were neither idle nor waiting, stolen ones included."""
    times = psutil.cpu_times()._asdict()
    return float(sum(v for k, v in times.items() if k not in ("idle", "iowait", "guest", "guest_nice")))


def _digits(ms: float) -> float:
    """Four significant digits: the raw samples are kept in the repository."""
    return float(f"{ms:.4g}")
