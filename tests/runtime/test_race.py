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
from pocketbert.runtime.race import IDLE_MS, Cadence, Candidate, race, race_apart


@dataclass
class Clock:
    """Time passes only where an engine computes, so that every race ends the same way."""

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

    clock: Clock
    ms: dict[int, float]
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

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        length = inputs["input_ids"].shape[1]
        known = sorted(self.ms)
        ms = float(np.interp(length, known, [self.ms[n] for n in known]))
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


def candidates(monkeypatch: pytest.MonkeyPatch, engines: Mapping[tuple[str, int], Engine]) -> list[Candidate]:
    """One candidate for each file name and thread count; engines share the memory of who ran last."""
    shared: list[Any] = []
    for engine in engines.values():
        engine.last = shared
    monkeypatch.setattr(Candidate, "open", lambda c: engines[c.file.path.name, c.threads])
    return [Candidate(EngineFile(Path(name), Format.ONNX), threads) for name, threads in engines]


LINE = {1: 1.0, 512: 512.0}


def test_the_fastest_at_each_length_wins(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = Engine(clock, {8: 1.0, 512: 200.0}), Engine(clock, {8: 10.0, 512: 100.0})
    plan = race(candidates(monkeypatch, {("a", 1): short, ("b", 1): long}), 512)
    assert [plan.best([n]) for n in (8, 16, 256, 512)] == [0, 0, 1, 1]
    assert plan.timings[0].expected_ms(8) == pytest.approx(1.0)
    assert not plan.disturbed


def test_a_small_model_is_timed_warm_in_its_own_row(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second inference of a length says nothing of the tenth: this engine wins once its caches are warm."""
    slow_start = Engine(clock, {1: 0.7, 512: 0.7}, cold=1.6)
    even = Engine(clock, {1: 1.0, 512: 1.0})
    plan = race(candidates(monkeypatch, {("a", 1): slow_start, ("b", 1): even}), 32)
    assert plan.best([16]) == 0
    assert plan.best([16], steady=False) == 1
    assert plan.timings[0].expected_ms(16) == pytest.approx(0.7)
    assert plan.timings[0].expected_ms(16, steady=False) == pytest.approx(1.12)


def test_for_single_calls_an_engine_that_wakes_at_once_wins(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after one another the sleepy engine is faster, and short texts show it most."""
    engines = {("sleepy", 1): Engine(clock, LINE, asleep=20.0), ("awake", 1): Engine(clock, {1: 1.3, 512: 665.6})}
    both = candidates(monkeypatch, engines)
    batch, single = (race(both, 256, cadence=cadence) for cadence in Cadence)
    assert [batch.best([n]) for n in (8, 32, 256)] == [0, 0, 0]
    assert [single.best([n]) for n in (8, 32, 256)] == [1, 1, 0]
    assert single.timings[0].expected_ms(32) == pytest.approx(52)
    assert single.timings[0].mixed == pytest.approx(single.timings[0].steady)


def test_single_calls_of_mixed_lengths_are_timed_apart(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packed weights of another length are in no cache: who wins at one length in a row loses where they change."""
    packed = Engine(clock, {1: 0.8, 512: 0.8}, cold=1.6, warm_after=1)
    even = Engine(clock, {1: 1.0, 512: 1.0})
    plan = race(candidates(monkeypatch, {("a", 1): packed, ("b", 1): even}), 64, cadence=Cadence.INTERACTIVE)
    assert [plan.best([n]) for n in (16, 32)] == [0, 0]
    assert plan.best([16, 32], steady=False) == 1
    assert plan.timings[0].expected_ms(16, steady=False) == pytest.approx(1.28)


def test_who_is_far_behind_does_not_run_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = Engine(clock, {1: 50.0, 512: 50.0}), Engine(clock, {1: 120.0, 512: 120.0})
    plan = race(candidates(monkeypatch, {("a", 1): quick, ("b", 1): slow}), 64)
    counts = [[engine.ran.count(n) for n in (16, 24, 32, 48, 64)] for engine in (quick, slow)]
    assert counts == [[3 + 1] * 5] * 2  # first times and a round; then nobody is left to race against
    assert plan.timings[1].expected_ms(64) == pytest.approx(120)


def test_a_disturbance_at_the_start_costs_nobody_the_race(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of small models several inferences decide who goes on, not the one that another process interrupted."""
    best, other = Engine(clock, {1: 1.0, 512: 1.0}, slow=[2]), Engine(clock, {1: 1.3, 512: 1.3})
    plan = race(candidates(monkeypatch, {("a", 1): best, ("b", 1): other}), 8)
    assert plan.best([8]) == 0
    assert plan.timings[0].expected_ms(8) == pytest.approx(1.0)


def test_a_disturbed_round_costs_nobody_the_race(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was once quick enough stays in: only its first of many rounds was hit, here all of it."""
    best, other = Engine(clock, {1: 40.0, 512: 40.0}, slow=[4]), Engine(clock, {1: 44.0, 512: 44.0})
    plan = race(candidates(monkeypatch, {("a", 1): best, ("b", 1): other}), 8)
    assert plan.best([8]) == 0
    assert plan.timings[0].expected_ms(8) == pytest.approx(40.0)


def test_an_interrupted_leader_makes_nobody_fast_who_is_out_after_that_round() -> None:
    """Seen on a busy machine: 0.95 ms against 12 ms in the only common round became 0.04 ms, and won."""
    leader, out = [12.0, 0.5, 0.5, 0.5, 0.5], [0.95]
    assert module._estimate_times([leader, out], [0.55, 0.9]) == pytest.approx([0.5, 0.5 * 0.9 / 0.55])


def test_a_machine_that_gets_faster_makes_nobody_look_slower_who_is_out_by_then(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.slow_until = 1.6
    best, other = Engine(clock, {1: 40.0, 512: 40.0}), Engine(clock, {1: 60.0, 512: 60.0})
    plan = race(
        candidates(monkeypatch, {("a", 1): best, ("b", 1): other, ("c", 1): Engine(clock, {1: 40.0, 512: 40.0})}),
        8,
    )
    assert other.ran.count(8) == 3 + 2
    assert plan.timings[0].expected_ms(8) == pytest.approx(40.0)
    assert plan.timings[1].expected_ms(8) == pytest.approx(60.0)


def test_near_ties_get_the_most_rounds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"best": 40.0, "near": 42.0, "behind": 49.0, "far": 62.0}
    engines = {name: Engine(clock, {1: ms, 512: ms}) for name, ms in times.items()}
    race(candidates(monkeypatch, {(name, 1): engine for name, engine in engines.items()}), 8)
    near, behind, far = [len(engines[name].ran) - 3 for name in ("near", "behind", "far")]
    assert near == module._ROUNDS  # after three inferences at first a round is one
    assert 3 < behind < module._ROUNDS / 2
    assert far == 2


def test_sentences_are_not_mixed_with_documents(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(clock, {1: 2.0, 512: 2.0}, after_long=3.0)
    rival = Engine(clock, {1: 2.0, 512: 2.0})
    plan = race(candidates(monkeypatch, {("a", 1): engine, ("b", 1): rival}), 256)
    assert all(plan.timings[0].expected_ms(n, steady=False) == pytest.approx(2.0) for n in (8, 16, 64, 256))


def test_one_thread_is_not_tried_beyond_the_length_where_more_pay(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Engine(clock, {8: 1.0, 512: 512.0}), Engine(clock, {8: 1.5, 512: 260.0})
    plan = race(candidates(monkeypatch, {("a", 1): one, ("a", 2): two}), 512)
    assert 512 not in one.ran and 512 in two.ran
    assert plan.best([8]) == 0 and plan.best([512]) == 1


def test_a_slow_model_gets_fewer_rounds_but_some(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, rival = Engine(clock, {1: 900.0, 512: 900.0}), Engine(clock, {1: 910.0, 512: 910.0})
    race(candidates(monkeypatch, {("a", 1): engine, ("b", 1): rival}), 512)
    assert engine.ran.count(512) - 3 == module._LEAST_ROUNDS


def test_a_length_that_is_decided_leaves_its_time_to_the_others(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = Engine(clock, {16: 50.0, 32: 400.0}), Engine(clock, {16: 51.0, 32: 900.0})
    plan = race(candidates(monkeypatch, {("a", 1): near, ("b", 1): far}), 32)
    assert near.ran.count(32) < 3 + 3
    assert near.ran.count(16) == 3 + module._ROUNDS
    assert [plan.best([n]) for n in (16, 32)] == [0, 0]


def test_one_alone_has_nobody_to_race_against(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(clock, {1: 50.0, 512: 50.0})
    plan = race(candidates(monkeypatch, {("a", 1): engine}), 16)
    assert engine.ran.count(16) == 3
    assert plan.timings[0].expected_ms(16) == pytest.approx(50.0)


def test_listed_lengths_are_raced_and_no_others(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = Engine(clock, LINE, lengths=(32, 64, 384))
    plan = race(candidates(monkeypatch, {("a", 1): fixed}), 50)
    assert set(fixed.ran) == {32, 64}
    assert plan.timings[0].expected_ms(40) == pytest.approx(64)
    assert plan.timings[0].expected_ms(65) == float("inf")


def test_a_busy_machine_is_noticed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.busy = 0.5
    assert race(candidates(monkeypatch, {("a", 1): Engine(clock, LINE)}), 32).disturbed


def test_a_process_of_its_own_runs_the_race(exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 1)
    monkeypatch.setattr(Candidate, "open", lambda _: pytest.fail("opened here"))
    file = EngineFile(exported("bert"), Format.ONNX)
    plan = race_apart([Candidate(file, 1), Candidate(file, 2, spin=Spin.RUN)], 16)
    assert [(t.file, t.threads, t.spin) for t in plan.timings] == [
        (file.path.name, 1, Spin.NO),
        (file.path.name, 2, Spin.RUN),
    ]
    # of the one with more threads: how far one thread is tried depends on how fast it was
    assert sorted(plan.timings[1].steady) == [8, 16]


def test_a_busy_machine_is_noticed_where_one_thread_is_never_close(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.busy = 0.5
    one, four = Engine(clock, {1: 40.0, 512: 4000.0}), Engine(clock, {1: 10.0, 512: 1000.0})
    assert race(candidates(monkeypatch, {("a", 1): one, ("a", 4): four}), 64).disturbed


@pytest.mark.parametrize("python", ["", None, "/nowhere/python", "/bin/false", "/bin/true"])
def test_where_no_other_process_can_race_this_one_does(
    python: str | None, exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROUNDS", 1)
    monkeypatch.setattr(module.sys, "executable", python)
    plan = race_apart([Candidate(EngineFile(exported("bert"), Format.ONNX), 1)], 8)
    assert list(plan.timings[0].steady) == [8]


def test_a_crash_or_hang_of_the_other_process_is_not_repeated_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Candidate, "open", lambda _: pytest.fail("opened here"))
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.2)
    for script, said in (("kill -SEGV $$", "ended by signal 11"), ("exec sleep 5", "took more than 0 s")):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        monkeypatch.setattr(module.sys, "executable", str(python))
        with pytest.raises(MachineError, match=said):
            race_apart([Candidate(EngineFile(Path("a.onnx"), Format.ONNX), 1)], 8)
