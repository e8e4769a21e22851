"""Repeats in fresh processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.benchmarks import load
from pocketbert.benchmarks import repeats as fresh
from pocketbert.benchmarks.devices import Sample
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant, preset_options
from pocketbert.benchmarks.statistics import burst_medians, paired_ratio, repeated_ratio, time_ratio
from pocketbert.core.errors import InputError, MachineError

OPTIONS = BenchmarkOptions(
    lengths=("text", 16), runs=10, repeats=3, gaps_ms=(1.0,), label="", profile=False, budget_s=60, fresh=True
)


@pytest.fixture(scope="module")
def made(variants: list[Variant], texts: list[str]) -> BenchmarkResult:
    return benchmark(variants, texts, OPTIONS)


def test_every_repeat_is_a_list_of_its_own_and_the_protocol_says_so(made: BenchmarkResult) -> None:
    assert made.protocol.fresh
    assert "Every repeat opens all files in a fresh process." in made.protocol.description
    assert {(m.length, m.gap_ms) for m in made.measurements} == {("text", 0), (16, 0), ("text", 1), (16, 1)}
    for m in made.measurements:
        assert [len(r) for r in m.wall_ms] == [10, 10, 10]
        assert [len(r) for r in m.cpu_ms] == [10, 10, 10]
        assert m.wall_interval is not None
        assert (m.engine, m.warmup_runs >= 10) == ("onnxruntime", True)
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made


def test_a_ratio_is_that_of_the_processes(made: BenchmarkResult) -> None:
    name, base = made.variants[1].name, made.variants[0].name
    ours, theirs = made.find(name, 1, 16).wall_ms, made.find(base, 1, 16).wall_ms
    each = [
        paired_ratio(burst_medians([a], made.protocol.burst), burst_medians([b], made.protocol.burst)).median
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert made.compare(name, 1, 16).wall == repeated_ratio(each)
    assert made.compare(name, 1, 16).wall.pairs == 3


def test_each_repeat_starts_a_process_and_no_other_option_does(
    variants: list[Variant], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, run = list[list[str]](), subprocess.run

    def counted(command: list[str], **settings: Any) -> Any:
        commands.append(command)
        return run(command, **settings)

    monkeypatch.setattr(fresh.subprocess, "run", counted)
    options = BenchmarkOptions(lengths=(16,), runs=5, repeats=2, label="", profile=False, budget_s=1, fresh=True)
    assert benchmark(variants[:1], texts, options).measurements
    ours = [c for c in commands if c[-1] == fresh.__name__]
    assert len(ours) == 2
    assert all(c[:2] == [sys.executable, "-P"] for c in ours)
    monkeypatch.setattr(fresh.sys, "frozen", True, raising=False)
    assert not benchmark(variants[:1], texts, options).protocol.fresh
    assert len([c for c in commands if c[-1] == fresh.__name__]) == 2


def test_inputs_arrive_as_they_were(tmp_path: Path) -> None:
    def feed(length: int) -> dict[str, np.ndarray]:
        ids = np.arange(length, dtype=np.int64)[None]
        return {"input_ids": ids, "entities": np.arange(3.0 * length, dtype=np.float32).reshape(1, length, 3)}

    inputs = {("a b/key", "text"): [feed(3), feed(7), feed(1)], ("ü", 16): [feed(16)]}
    fresh._write_inputs(tmp_path / "inputs.npz", inputs)
    read = fresh._read_inputs(tmp_path / "inputs.npz")
    assert list(read) == list(inputs)
    for key, feeds in inputs.items():
        for found, given in zip(read[key], feeds, strict=True):
            assert list(found) == list(given)
            for name, value in given.items():
                np.testing.assert_array_equal(found[name], value)
                assert found[name].dtype == value.dtype
                assert found[name].flags.c_contiguous


def test_a_process_that_dies_is_a_machine_error(
    variants: list[Variant], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = subprocess.CompletedProcess([], -11, stdout="", stderr="what went before\nlast words\n")
    monkeypatch.setattr(fresh.subprocess, "run", lambda command, **settings: answer)
    block = fresh.Block(variants[:1], 1, (16,), (), 0, 5, 1, 0.0, True, (0, "x", 0))
    feeds = {(variants[0].name, 16): [{"input_ids": np.ones((1, 16), np.int64)}]}
    with (
        pytest.raises(MachineError, match="process that times a repeat failed: last words"),
        fresh.local_repeats(feeds) as make,
    ):
        fresh.run_fresh(block, feeds, 0.0, str, make)
    answer = subprocess.CompletedProcess([], 2, stdout="", stderr="x.onnx: is no ONNX file.\n")
    with pytest.raises(InputError, match=r"x\.onnx: is no ONNX file"), fresh.local_repeats(feeds) as make:
        fresh.run_fresh(block, feeds, 0.0, str, make)


class Worker:
    """A device whose worker forgets its files when it is started anew; it counts how often that happened."""

    engine, engine_version = "fake", "0"

    def __init__(self) -> None:
        self.started, self.log = 0, list[str]()

    def restart(self) -> None:
        self.started += 1
        self.log.append("restart")

    def open(self, file: Any, threads: int) -> Worker:
        self.log.append("open")
        return self

    def prepare(self, feeds: Any) -> Any:
        made = self.started

        def burst(numbers: Any) -> list[Sample]:
            assert made == self.started, "the process that had opened this file has ended"
            return [Sample(float(made), float(made)) for _ in numbers]

        return burst


def test_the_worker_of_another_machine_is_started_anew_for_each_repeat(variants: list[Variant]) -> None:
    worker: Any = Worker()
    feeds: Any = {(v.name, 16): [{"input_ids": np.ones((1, 16), np.int64)}] for v in variants}
    block = fresh.Block(variants, 1, (16,), ((16, 1.0),), 1, 10, 3, 0.0, True, (0, "x", 0))
    cells = fresh.run_fresh(block, feeds, time.monotonic() + 60, str, fresh.remote_repeats(worker, feeds))
    assert worker.log == ["restart", "open", "open"] * 3
    assert {(c.variant.name, c.gap_ms) for c in cells} == {(v.name, gap) for v in variants for gap in (0.0, 1.0)}
    for cell in cells:
        assert [set(repeat) for repeat in cell.wall_ms] == [{1.0}, {2.0}, {3.0}]  # repeat i is that of process i


def test_all_processes_make_the_single_calls_that_the_first_one_had_time_for(variants: list[Variant]) -> None:
    asked = list[Any]()

    def make(block: fresh.Block, seconds: float) -> list[fresh._Series]:
        asked.append((list(block.idle), block.sure))
        made = [(16, 0.0), *list(block.idle)[: max(1, block.sure)]]
        facts = {"engine": "x", "engine_version": "0", "warmup_runs": 10, "warmup_stable": True}
        walls = {"wall_ms": [1.0] * 5, "cpu_ms": [None] * 5}
        return [fresh._Series(variant=variants[0].name, length=x, gap_ms=gap, **facts, **walls) for x, gap in made]

    feeds: Any = {(variants[0].name, x): [] for x in (16, 32)}
    idle = ((16, 100.0), (32, 100.0))
    block = fresh.Block(variants[:1], 1, (16, 32), idle, 1, 5, 3, 0.0, True, (0, "x", 0))
    cells = fresh.run_fresh(block, feeds, time.monotonic() + 60, str, make)
    assert asked == [(list(idle), 1), ([(16, 100.0)], 1), ([(16, 100.0)], 1)]
    assert all(len(c.repeats) == 3 for c in cells)


def test_cpu_time_of_a_started_process_is_not_that_of_others() -> None:
    before = load._own_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.4: pass"], check=True, timeout=60)
    assert load._own_seconds() - before >= 0.35


def test_the_thorough_presets_use_fresh_processes() -> None:
    assert [preset_options(name).fresh for name in ("quick", "standard", "mlperf")] == [False, True, True]


def test_intervals_hold_how_processes_differ() -> None:
    """Processes that differ by 5 %, rounds by 2 %: the interval of processes covers the truth, that of all rounds seldom."""
    draw, covered = np.random.default_rng(3), {True: 0, False: 0}
    for _ in range(300):
        process = np.exp(draw.normal(0, 0.05, (5, 1)))
        rounds = 0.5 * process * np.exp(draw.normal(0, 0.02, (5, 40)))
        for separate in covered:
            ratio = time_ratio(rounds.tolist(), np.ones((5, 40)).tolist(), 1, separate)
            covered[separate] += ratio.low <= 0.5 <= ratio.high
    assert covered[True] / 300 > 0.91
    assert covered[False] / 300 < 0.6
