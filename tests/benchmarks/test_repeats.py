"""Repeats in fresh processes."""

import contextlib
import io
import itertools
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from pocketbert.benchmarks import repeats as fresh
from pocketbert.benchmarks.devices import Sample, local
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.statistics import burst_medians, paired_ratio, repeated_ratio, time_ratio
from pocketbert.core.errors import InputError, MachineError

OPTIONS = {"runs": 10, "repeats": 3, "label": "", "profile": False, "budget_s": 60, "fresh": True}


@pytest.fixture(scope="module")
def commands():
    """The commands that were started with `made`, and after it."""
    return []


@pytest.fixture(scope="module")
def made(variants, texts, commands):
    """A benchmark with its processes."""
    run = subprocess.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", lambda command, **more: commands.append(command) or run(command, **more))
        return benchmark(variants, texts, BenchmarkOptions(lengths=("text", 16), gaps_ms=(1.0,), **OPTIONS))


def test_every_repeat_is_a_process_and_a_list_of_its_own(made, commands):
    ours = [c for c in commands if c[-1] == fresh.__name__]
    assert ours == [[sys.executable, "-P", "-m", fresh.__name__]] * 3
    assert made.protocol.fresh
    assert "Every repeat opens all files in a fresh process." in made.protocol.description
    assert {(m.length, m.gap_ms) for m in made.measurements} == {("text", 0), (16, 0), ("text", 1), (16, 1)}
    for m in made.measurements:
        assert [len(r) for r in m.wall_ms] == [len(r) for r in m.cpu_ms] == [10, 10, 10]
        assert m.wall_interval is not None
        assert m.engine == "onnxruntime"
        assert m.warmup_runs >= 10
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made


def test_a_ratio_is_that_of_the_processes(made):
    name, base = made.variants[1].name, made.variants[0].name
    pairs = zip(made.find(name, 1, 16).wall_ms, made.find(base, 1, 16).wall_ms, strict=True)
    each = [paired_ratio(burst_medians([a], 5), burst_medians([b], 5)).median for a, b in pairs]
    assert made.compare(name, 1, 16).wall == repeated_ratio(each)
    assert made.compare(name, 1, 16).wall.pairs == 3


def test_a_frozen_program_starts_no_process(variants, texts, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    options = BenchmarkOptions(lengths=(16,), **{**OPTIONS, "repeats": 2, "budget_s": 1})
    assert not benchmark(variants[:1], texts, options).protocol.fresh


def make_block(variants, repeats, lengths=(16,), idle=(), sure=0):
    return fresh.Block(variants, 1, lengths, idle, sure, 10, repeats, 0.0, True, (0, "x", 0))


def make_feeds(*lengths):
    """Inputs of two types, as they are made for files that take vectors per token."""
    return [
        {
            "input_ids": np.arange(n, dtype=np.int64)[None],
            "entities": np.arange(3.0 * n, dtype=np.float32).reshape(1, n, 3),
        }
        for n in lengths
    ]


def test_inputs_arrive_in_the_process_as_they_were(variants, monkeypatch):
    arrived = []

    class Connection:
        engine, engine_version = "fake", "0"

        def open(self, file, threads):
            return self

        def prepare(self, feeds):
            arrived.append(feeds)
            return lambda numbers: [Sample(1.0, None) for _ in numbers]

    def run_here(command, input, **_):
        monkeypatch.setattr(sys, "stdin", io.StringIO(input))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = fresh._main()
        return subprocess.CompletedProcess(command, code, out.getvalue(), "")

    monkeypatch.setattr(local, "connect_local", lambda argument: Connection())
    monkeypatch.setattr(subprocess, "run", run_here)
    renamed = variants[0].model_copy(update={"name": "ü a/key"})
    inputs = {("ü a/key", "text"): make_feeds(3, 7, 1), ("ü a/key", 16): make_feeds(16)}
    with fresh.local_repeats(inputs) as make:
        cells = fresh.run_fresh(make_block([renamed], 1, ("text", 16)), inputs, time.monotonic() + 60, str, make)
    assert [c.length for c in cells] == ["text", 16]
    assert [len(feeds) for feeds in arrived] == [3, 1]
    pairs = zip(itertools.chain(*arrived), itertools.chain(*inputs.values()), strict=True)
    for found, given in pairs:
        assert list(found) == list(given)
        for name, value in given.items():
            np.testing.assert_array_equal(found[name], value, strict=True)
            assert found[name].flags.c_contiguous


@pytest.mark.parametrize(
    ("code", "stderr", "error", "said"),
    [
        (-11, "what went before\nlast words\n", MachineError, "process that times a repeat failed: last words"),
        (2, "x.onnx: is no ONNX file.\n", InputError, r"x\.onnx: is no ONNX file"),
        (None, "", MachineError, "hangs"),
    ],
)
def test_a_process_that_dies_refuses_or_hangs(variants, monkeypatch, code, stderr, error, said):
    def end(command, **_):
        if code is None:
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, code, stdout="", stderr=stderr)

    monkeypatch.setattr(subprocess, "run", end)
    feeds = {(variants[0].name, 16): make_feeds(16)}
    with pytest.raises(error, match=said), fresh.local_repeats(feeds) as make:
        fresh.run_fresh(make_block(variants[:1], 1), feeds, 0.0, str, make)


class Worker:
    """A device whose worker forgets its files when it is started anew; it counts how often that happened."""

    engine, engine_version = "fake", "0"

    def __init__(self):
        self.started, self.log = 0, []

    def restart(self):
        self.started += 1
        self.log.append("restart")

    def open(self, file, threads):
        self.log.append("open")
        return self

    def prepare(self, feeds):
        made = self.started

        def burst(numbers):
            assert made == self.started, "the process that had opened this file has ended"
            return [Sample(float(made), float(made)) for _ in numbers]

        return burst


def test_the_worker_of_another_machine_is_started_anew_for_each_repeat(variants):
    worker = Worker()
    feeds = {(v.name, 16): make_feeds(16) for v in variants}
    block = make_block(variants, 3, idle=((16, 1.0),), sure=1)
    cells = fresh.run_fresh(block, feeds, time.monotonic() + 60, str, fresh.remote_repeats(worker, feeds))
    assert worker.log == ["restart", "open", "open"] * 3
    assert {(c.variant.name, c.gap_ms) for c in cells} == {(v.name, gap) for v in variants for gap in (0.0, 1.0)}
    for cell in cells:
        assert [set(repeat) for repeat in cell.wall_ms] == [{1.0}, {2.0}, {3.0}]  # repeat i is that of process i


def test_all_processes_make_the_single_calls_that_the_first_one_had_time_for(variants):
    asked = []
    facts = {"engine": "x", "engine_version": "0", "warmup_runs": 10, "warmup_stable": True}
    series = {**facts, "variant": variants[0].name, "wall_ms": [1.0] * 5, "cpu_ms": [None] * 5}

    def make(block, seconds):
        asked.append((list(block.idle), block.sure))
        timed = [(16, 0.0), *list(block.idle)[: max(1, block.sure)]]
        return [SimpleNamespace(**series, length=length, gap_ms=gap) for length, gap in timed]

    idle = ((16, 100.0), (32, 100.0))
    block = make_block(variants[:1], 3, (16, 32), idle, 1)
    feeds = {(variants[0].name, length): [] for length in (16, 32)}
    cells = fresh.run_fresh(block, feeds, time.monotonic() + 60, str, make)
    assert asked == [(list(idle), 1), ([(16, 100.0)], 1), ([(16, 100.0)], 1)]
    assert all(len(c.repeats) == 3 for c in cells)


def test_intervals_hold_how_processes_differ():
    """Processes that differ by 5 %, rounds by 2 %: the interval of processes covers the truth, that of all rounds seldom."""
    draw, covered = np.random.default_rng(3), {True: 0, False: 0}
    for _ in range(100):
        process = np.exp(draw.normal(0, 0.05, (5, 1)))
        rounds = 0.5 * process * np.exp(draw.normal(0, 0.02, (5, 40)))
        for separate in covered:
            ratio = time_ratio(rounds.tolist(), np.ones((5, 40)).tolist(), 1, separate)
            covered[separate] += ratio.low <= 0.5 <= ratio.high
    assert covered[True] / 100 > 0.91
    assert covered[False] / 100 < 0.6
