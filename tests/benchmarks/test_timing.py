"""Bursts, single inferences after idle times, and minutes without a pause, on devices that compute nothing."""

import gc
import time
from types import SimpleNamespace

import numpy as np
import pytest

from pocketbert.benchmarks import timing
from pocketbert.benchmarks.devices import Sample
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.statistics import burst_medians
from pocketbert.benchmarks.timing import BURST, WARMUP_LEAST, WARMUP_MOST, Block, Cell, sustain
from pocketbert.core.errors import MachineError

SLICES = 10


class Recorder:
    """A file on a device that computes nothing and writes down what was called with what."""

    engine, engine_version = "fake", "0"

    def __init__(self, name, log):
        self.name, self.log = name, log

    def prepare(self, feeds):
        def burst(numbers):
            for number in numbers:
                length = feeds[number % len(feeds)]["input_ids"].shape[1]
                self.log.append((self.name, length, gc.isenabled()))
            return [Sample(0.001 * (n + 1), 0.002) for n in numbers]

        return burst


def make_feeds(*lengths):
    return [{"input_ids": np.ones((1, n), np.int64)} for n in lengths]


def run_block(log, runs, *, seed=0, repeats=1, idle=(), lengths=(4,)):
    """Time three files in turns; the log holds what came after the last warm-up."""
    variants = [SimpleNamespace(name=name, file=name) for name in "abc"]
    connection = SimpleNamespace(open=lambda file, threads: Recorder(file, log))
    block = Block(variants, 1, ("text",), idle, len(idle), runs, repeats, 0.0, True, (seed, "order", 0))
    inputs = {(name, "text"): make_feeds(*lengths) for name in "abc"}
    return block.run(connection, inputs, time.monotonic() + 1e6, lambda step: "warm-up" in step and log.clear())


def names_in_turns(runs, seed=0):
    log = []
    run_block(log, runs, seed=seed)
    return [name for name, *_ in log]


def test_files_take_turns_in_bursts_after_one_untimed_inference_in_a_shuffled_order():
    names, visit = names_in_turns(20 * BURST), BURST + 1
    visits = [names[i : i + visit] for i in range(0, len(names), visit)]
    assert all(len(set(v)) == 1 for v in visits)
    rounds = ["".join(v[0] for v in visits[i : i + 3]) for i in range(0, len(visits), 3)]
    assert len(rounds) == 20
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert len(set(rounds)) > 1
    assert names == names_in_turns(20 * BURST)
    assert names != names_in_turns(20 * BURST, seed=1)


def test_single_inferences_each_come_after_idle_time_in_turns_of_one(monkeypatch):
    log = []
    monkeypatch.setattr(timing.time, "sleep", log.append)
    cells = run_block(log, 4, idle=(("text", 250.0),))
    singles = log[-24:]
    assert singles[0::2] == [0.25] * 12  # before each inference, and nothing else runs
    names = [name for name, *_ in singles[1::2]]
    assert all(set(names[i : i + 3]) == {"a", "b", "c"} for i in range(0, 12, 3))
    warm, idle = cells[:3], cells[3:]
    assert [c.gap_ms for c in cells] == [0.0] * 3 + [250.0] * 3
    for cell in idle:
        assert [len(r) for r in cell.wall_ms] == [4]
        assert burst_medians(cell.wall_ms, cell.turn) == cell.wall_ms[0]  # a round is one inference
        assert cell.warmup_runs == warm[0].warmup_runs >= WARMUP_LEAST


def test_all_files_read_the_same_inputs_in_a_round_and_no_garbage_is_collected():
    log = []
    run_block(log, 10, lengths=(4, 5, 6, 7, 8, 9, 10))
    read = {n: [length for name, length, _ in log if name == n] for n in "abc"}
    assert read["a"] == read["b"] == read["c"]
    assert set(read["a"]) == {4, 5, 6, 7, 8, 9, 10}
    assert not any(enabled for *_, enabled in log)
    assert gc.isenabled()


@pytest.fixture
def clock(monkeypatch):
    """Time passes where the file computes and where somebody sleeps."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(timing.time, "monotonic", lambda: now.s)
    monkeypatch.setattr(timing.time, "sleep", lambda s: setattr(now, "s", now.s + s))
    return now


class Toy:
    """A file on a device whose inferences take the time that `ms(now)` gives, and as much more to be called."""

    engine, engine_version, method = "fake", "0", "toy"

    def __init__(self, clock, ms, call_s=0.0):
        self.clock, self.ms, self.call_s, self.runs = clock, ms, call_s, 0

    def prepare(self, feeds):
        def run(numbers):
            ms = self.ms(self.clock.s)
            self.runs += len(numbers)
            self.clock.s += len(numbers) * (ms / 1000 + self.call_s)
            return [Sample(ms) for _ in numbers]

        return run

    def watch(self):
        load = Load(before=0, after=0, others=0, thermal="warm", clock="1000 MHz")
        return SimpleNamespace(stop=lambda: load)


def make_cell(opened, *lengths):
    return Cell(SimpleNamespace(name="a"), opened, 8, make_feeds(*(lengths or (8,))))


@pytest.mark.parametrize("most_s", [0.0, 60.0])
def test_a_warm_up_sees_every_shape_and_is_bounded(most_s):
    log = []
    cell = make_cell(Recorder("a", log), *range(4, 24), 4, 5)
    cell.warm_up(most_s)
    assert {length for _, length, _ in log} == set(range(4, 24))
    assert cell.warmup_runs == len(log)
    assert WARMUP_LEAST <= cell.warmup_runs <= WARMUP_MOST + BURST
    assert not cell.repeats


@pytest.mark.parametrize(
    ("windows", "stable", "runs"),
    [([10.0, 5.0, 2.0, 1.0, 1.01, 9.0], True, 1 + 5 * 5), ([1.5**i for i in range(30)], False, 1 + WARMUP_MOST)],
)
def test_a_warm_up_waits_for_the_times_to_settle(clock, windows, stable, runs):
    times = iter([99.0, *windows])  # the first run is that of the shape
    cell = make_cell(Toy(clock, lambda now: next(times)))
    cell.warm_up(1e9)
    assert cell.warmup_stable == stable
    assert runs <= cell.warmup_runs < runs + BURST
    assert cell.cost_ms == pytest.approx(windows[(cell.warmup_runs - 1) // 5 - 1])


def test_what_an_inference_costs_is_what_it_takes_here(clock):
    cell = make_cell(Toy(clock, lambda now: 2.0, call_s=0.3))  # a process each
    cell.warm_up(60)
    assert cell.cost_ms == pytest.approx(302)


@pytest.mark.parametrize("heats", [True, False])
def test_a_sustained_run_shows_what_heat_does(clock, heats):
    device = Toy(clock, lambda now: 20.0 if heats and now > 60 + 12 else 10.0)
    made = sustain(device, make_cell(device), 2, "toy", 1)
    assert len(made.slices) == len(made.wall_ms) == SLICES
    assert [round(s.after_s) for s in made.slices] == [12 * i for i in range(SLICES)]
    assert made.drift.median == pytest.approx(2 if heats else 1)
    assert made.drift.decided == heats
    assert [s.wall.n for s in made.slices] == list(map(len, made.wall_ms))
    assert {s.thermal for s in made.slices} == {"warm"}


class OneRun:
    """A file that runs for minutes in one call, and keeps idle times itself."""

    engine, engine_version, pauses = "fake", "0", 4

    def __init__(self, walls=()):
        self.walls, self.asked = walls, []

    def prepare(self, feeds):
        return lambda numbers: [Sample(1.0) for _ in numbers]

    def prepare_idle(self, feeds, gap_ms):
        return lambda numbers: self.asked.append((gap_ms, list(numbers))) or [Sample(2.0) for _ in numbers]

    def run_for(self, feeds, seconds):
        self.asked.append(seconds)
        return [Sample(wall) for wall in self.walls]


def test_minutes_in_one_call_are_divided_by_time(clock):
    device, opened = Toy(clock, None), OneRun([100.0] * 600 + [200.0] * 300)
    made = sustain(device, make_cell(opened), 2, "toy", 1)
    assert opened.asked == [120]
    assert [len(wall) for wall in made.wall_ms] == [120] * 5 + [60] * 5
    assert made.drift.median == pytest.approx(2)
    assert [s.after_s for s in made.slices] == [12 * i for i in range(SLICES)]
    assert {s.clock for s in made.slices} == {"1000 MHz"}
    with pytest.raises(MachineError, match=r"40 inferences are too few for 10 slices of 12 s\. Give more minutes"):
        sustain(device, make_cell(OneRun([3000.0] * 40)), 2, "toy", 1)


def test_a_file_that_keeps_idle_times_itself_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: pytest.fail("slept"))
    cell = make_cell(OneRun())
    cell.cost_ms = 50.0
    idle = cell.after_idle(250)
    idle.repeats.append([])
    for number in range(2):
        idle.single(number)
    assert idle.opened.asked == [(250, [0]), (250, [1])]
    assert idle.wall_ms == [[2.0, 2.0]]
    assert idle.single_s == pytest.approx(4 * 0.25 + 0.05)  # for planning: what it really takes
