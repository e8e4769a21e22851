"""Races of engines whose time passes only where they compute, so that every race ends the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.errors import MachineError
from pocketbert.core.types import Format
from pocketbert.runtime import race as module
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import Spin
from pocketbert.runtime.race import IDLE_MS, Cadence, Candidate, Plan, race, race_apart

FIRST = 3
"""Inferences at each length before the first round."""
ROUNDS = 24


@dataclass
class Clock:
    ns: int = 0
    busy: float = 1.0
    slow_until: float = 0.0
    slept: float = 0.0

    def perf_counter_ns(self) -> int:
        return self.ns

    def perf_counter(self) -> float:
        return self.ns / 1e9

    def process_time(self) -> float:
        return self.ns / 1e9 * self.busy

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)
        self.slept = seconds


@dataclass
class Engine:
    """Takes `ms(length)`, and `cold` times as long until it has run so many times in a row at one length.

    After a text of more than 64 tokens a shorter one takes `after_long` times as long; the inferences number `slow` take
    seven times as long. After an idle time one takes `asleep` ms more.
    """

    ms: dict[int, float] | float
    lengths: tuple[int, ...] = ()
    cold: float = 1.0
    warm_after: int = 3
    after_long: float = 1.0
    slow: Sequence[int] = ()
    asleep: float = 0.0
    engine: str = "toy"
    engine_version: str = "1"
    inputs: tuple[str, ...] = ("input_ids",)
    outputs: tuple[str, ...] = ("logits",)
    ran: list[int] = field(default_factory=list)
    last: list[Any] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        length = inputs["input_ids"].shape[1]
        known = self.ms if isinstance(self.ms, dict) else {1: self.ms}
        ms = float(np.interp(length, sorted(known), [known[n] for n in sorted(known)]))
        emptied = bool(self.last) and length <= 64 < self.last[-1][1]
        self.last.append((id(self), length))
        warm = self.last[-self.warm_after - 1 :] == [(id(self), length)] * (self.warm_after + 1)
        self.ran.append(length)
        lost = (7.0 if len(self.ran) in self.slow else 1.0) * (self.after_long if emptied else 1.0)
        lost *= 2.0 if self.clock.ns < self.clock.slow_until * 1e9 else 1.0
        idle = self.clock.slept >= IDLE_MS / 1000
        self.clock.slept = 0.0
        self.clock.ns += round((ms * (1.0 if warm else self.cold) * lost + idle * self.asleep) * 1e6)
        return {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def start(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """`start(longest, *engines, threads=None, cadence=Cadence.BATCH)`: race engines, all of one thread unless `threads` lists more.

    Engines of several thread counts are those of one file.
    """

    def run(longest: int, *engines: Engine, threads: Sequence[int] = (), cadence: Cadence = Cadence.BATCH) -> Plan:
        shared: list[Any] = []
        for engine in engines:
            engine.last, engine.clock = shared, clock
        names = ["a"] * len(threads) or [str(i) for i in range(len(engines))]
        files = [EngineFile(Path(name), Format.ONNX) for name in names]
        raced = [Candidate(f, n) for f, n in zip(files, threads or [1] * len(files), strict=True)]
        opened = dict(zip(raced, engines, strict=True))
        monkeypatch.setattr(Candidate, "open", lambda candidate: opened[candidate])
        return race(raced, longest, cadence=cadence)

    return run


def test_the_fastest_at_each_length_wins(start: Callable[..., Plan]) -> None:
    plan = start(512, Engine({8: 1.0, 512: 200.0}), Engine({8: 10.0, 512: 100.0}))
    assert [plan.best([n]) for n in (8, 16, 256, 512)] == [0, 0, 1, 1]
    assert plan.timings[0].expected_ms(8) == pytest.approx(1.0)
    assert not plan.disturbed


def test_a_small_model_is_timed_warm_in_its_own_row(start: Callable[..., Plan]) -> None:
    """The second inference of a length says nothing of the tenth: this engine wins once its caches are warm."""
    plan = start(32, Engine(0.7, cold=1.6), Engine(1.0))
    assert (plan.best([16]), plan.best([16], steady=False)) == (0, 1)
    assert plan.timings[0].expected_ms(16) == pytest.approx(0.7)
    assert plan.timings[0].expected_ms(16, steady=False) == pytest.approx(1.12)


def test_for_single_calls_an_engine_that_wakes_at_once_wins(start: Callable[..., Plan]) -> None:
    """Right after one another the sleepy engine is faster, and short texts show it most."""
    sleepy, awake = Engine({1: 1.0, 512: 512.0}, asleep=20.0), Engine({1: 1.3, 512: 665.6})
    batch, single = (start(256, sleepy, awake, cadence=cadence) for cadence in Cadence)
    assert [batch.best([n]) for n in (8, 32, 256)] == [0, 0, 0]
    assert [single.best([n]) for n in (8, 32, 256)] == [1, 1, 0]
    assert single.timings[0].expected_ms(32) == pytest.approx(52)
    assert single.timings[0].mixed == pytest.approx(single.timings[0].steady)


def test_single_calls_of_mixed_lengths_are_timed_apart(start: Callable[..., Plan]) -> None:
    """The packed weights of another length are in no cache: who wins at one length in a row loses where they change."""
    plan = start(64, Engine(0.8, cold=1.6, warm_after=1), Engine(1.0), cadence=Cadence.INTERACTIVE)
    assert [plan.best([n]) for n in (16, 32)] == [0, 0]
    assert plan.best([16, 32], steady=False) == 1
    assert plan.timings[0].expected_ms(16, steady=False) == pytest.approx(1.28)


@pytest.mark.parametrize(
    ("ms", "slow", "slow_until"),
    [
        ((1.0, 1.3), [2], 0.0),  # of small models several inferences decide who goes on, not the interrupted one
        ((40.0, 44.0), [FIRST + 2], 0.0),  # of large ones all of the first round: who was once quick enough stays in
        # seen on a busy machine: 0.95 ms against 12 ms in the only common round became 0.04 ms, and won
        ((40.0, 60.0, 40.0), [FIRST + 2, FIRST + 4], 0.0),
        ((40.0, 60.0, 40.0), [], 1.6),  # a machine that gets faster when one is out by then
    ],
)
def test_a_disturbance_at_the_start_decides_nothing(
    ms: tuple[float, ...], slow: list[int], slow_until: float, clock: Clock, start: Callable[..., Plan]
) -> None:
    clock.slow_until = slow_until
    engines = [Engine(ms[0], slow=slow), *map(Engine, ms[1:])]
    plan = start(8, *engines)
    assert plan.best([8]) in (0, 2)
    assert [t.expected_ms(8) for t in plan.timings] == pytest.approx(ms)
    assert len(ms) == 2 or engines[1].ran.count(8) == FIRST + 2


@pytest.mark.parametrize(
    ("longest", "ms", "rounds"),
    [
        (8, (40.0, 42.0, 49.0, 62.0), (2 * ROUNDS, ROUNDS, 4, 2)),  # near ties get the most; the best runs beside each
        (64, (50.0, 120.0), (1, 1)),  # who is far behind leaves, and nobody is left to race against
        (512, (900.0, 910.0), (3, 3)),  # a slow model
        (16, (50.0,), (0,)),  # one alone
    ],
)
def test_rounds_are_spent_where_they_decide(
    longest: int, ms: tuple[float, ...], rounds: tuple[int, ...], start: Callable[..., Plan]
) -> None:
    engines = [Engine(each) for each in ms]
    plan = start(longest, *engines)
    assert tuple(engine.ran.count(longest) - FIRST for engine in engines) == rounds
    assert [t.expected_ms(longest) for t in plan.timings] == pytest.approx(ms)


def test_sentences_are_not_mixed_with_documents(start: Callable[..., Plan]) -> None:
    plan = start(256, Engine(2.0, after_long=3.0), Engine(2.0))
    assert all(plan.timings[0].expected_ms(n, steady=False) == pytest.approx(2.0) for n in (8, 16, 64, 256))


def test_one_thread_is_not_tried_beyond_the_length_where_more_pay(start: Callable[..., Plan]) -> None:
    one, two = Engine({8: 1.0, 512: 512.0}), Engine({8: 1.5, 512: 260.0})
    plan = start(512, one, two, threads=(1, 2))
    assert 512 not in one.ran and 512 in two.ran
    assert plan.best([8]) == 0 and plan.best([512]) == 1


def test_a_length_that_is_decided_leaves_its_time_to_the_others(start: Callable[..., Plan]) -> None:
    near, far = Engine({16: 50.0, 32: 400.0}), Engine({16: 51.0, 32: 900.0})
    plan = start(32, near, far)
    assert near.ran.count(32) < FIRST + 3
    assert near.ran.count(16) == FIRST + ROUNDS
    assert [plan.best([n]) for n in (16, 32)] == [0, 0]


def test_listed_lengths_are_raced_and_no_others(start: Callable[..., Plan]) -> None:
    fixed = Engine({1: 1.0, 512: 512.0}, lengths=(32, 64, 384))
    plan = start(50, fixed)
    assert set(fixed.ran) == {32, 64}
    assert plan.timings[0].expected_ms(40) == pytest.approx(64)
    assert plan.timings[0].expected_ms(65) == float("inf")


@pytest.mark.parametrize("threads", [(1,), (1, 4)], ids=["one thread", "one thread is never close"])
def test_a_busy_machine_is_noticed(threads: tuple[int, ...], clock: Clock, start: Callable[..., Plan]) -> None:
    clock.busy = 0.5
    engines = Engine({1: 40.0, 512: 4000.0}), Engine({1: 10.0, 512: 1000.0})
    assert start(64, *engines[: len(threads)], threads=threads).disturbed


def test_a_process_of_its_own_runs_the_race(exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 1)
    monkeypatch.setattr(Candidate, "open", lambda _: pytest.fail("opened here"))
    file = EngineFile(exported("bert"), Format.ONNX)
    plan = race_apart([Candidate(file, 1), Candidate(file, 2, spin=Spin.RUN)], 16)
    assert [(t.threads, t.spin) for t in plan.timings] == [(1, Spin.NO), (2, Spin.RUN)]
    # of the one with more threads: how far one thread is tried depends on how fast it was
    assert sorted(plan.timings[1].steady) == [8, 16]


@pytest.mark.parametrize("python", ["", None, "/nowhere/python", "/bin/false", "/bin/true"])
def test_where_no_other_process_can_race_this_one_does(
    python: str | None, exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 1)
    monkeypatch.setattr(module.sys, "executable", python)
    plan = race_apart([Candidate(EngineFile(exported("bert"), Format.ONNX), 1)], 8)
    assert list(plan.timings[0].steady) == [8]


@pytest.mark.parametrize(
    ("script", "said"), [("kill -SEGV $$", "ended by signal 11"), ("exec sleep 5", "took more than 0 s")]
)
def test_a_crash_or_hang_of_the_other_process_is_not_repeated_here(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Candidate, "open", lambda _: pytest.fail("opened here"))
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.2)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(python))
    with pytest.raises(MachineError, match=said):
        race_apart([Candidate(EngineFile(Path("a.onnx"), Format.ONNX), 1)], 8)
