import gc
from types import SimpleNamespace

import numpy as np
import pytest

from pocketbert.benchmarks import timing
from pocketbert.benchmarks.devices import Sample
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.statistics import burst_medians
from pocketbert.benchmarks.timing import _SLICES, BURST, WARMUP_LEAST, WARMUP_MOST, Cell, _interleave, sustain
from pocketbert.core.errors import MachineError


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


def repeats(*walls):
    return [[Sample(wall, wall) for wall in repeat] for repeat in walls]


def cells(log, names=("a", "b", "c"), lengths=(4,)):
    made = [{"input_ids": np.ones((1, n), np.int64)} for n in lengths]
    return [Cell(None, Recorder(n, log), "text", made) for n in names]


def test_variants_take_turns_in_bursts():
    log = []
    group = cells(log)
    _interleave(group, 2 * BURST, np.random.default_rng(0))
    names = [name for name, _, _ in log]
    visit = BURST + 1  # one untimed inference leads in
    assert len(names) == 2 * 3 * visit
    visits = [names[i : i + visit] for i in range(0, len(names), visit)]
    assert all(len(set(v)) == 1 for v in visits)
    assert {v[0] for v in visits[:3]} == {v[0] for v in visits[3:]} == {"a", "b", "c"}


def test_after_idle_times_variants_take_turns_of_one_inference(monkeypatch):
    log = []
    monkeypatch.setattr("pocketbert.benchmarks.timing.time.sleep", lambda seconds: log.append(seconds))
    warm = cells(log)
    for cell in warm:
        cell.repeats = repeats([1.0])
        cell.warmup_runs = 12
    group = [c.after_idle(250) for c in warm]
    _interleave(group, 4, np.random.default_rng(0))
    assert log[0::2] == [0.25] * 12  # before each inference, and nothing else runs
    names = [name for name, _, _ in log[1::2]]
    assert all(set(names[i : i + 3]) == {"a", "b", "c"} for i in range(0, 12, 3))
    for cell in group:
        assert [len(r) for r in cell.wall_ms] == [4]
        assert burst_medians(cell.wall_ms, cell.turn) == cell.wall_ms[0]  # a round is one inference
        assert cell.warmup_runs == 12
    assert [c.repeats for c in warm] == [repeats([1.0])] * 3


def test_every_timed_inference_is_kept_per_repeat():
    group = cells([])
    for runs in (12, 7):
        _interleave(group, runs, np.random.default_rng(0))
    for cell in group:
        assert [len(r) for r in cell.wall_ms] == [len(r) for r in cell.cpu_ms] == [12, 7]
        assert len(burst_medians(cell.wall_ms, cell.turn)) == len(burst_medians(cell.cpu_ms, cell.turn)) == 3 + 2


def test_round_medians_pair_by_round():
    (cell,) = cells([], names=("a",))
    cell.repeats = repeats([1.0, 2.0, 3.0, 4.0, 100.0, 7.0], [5.0, 5.0, 5.0])
    assert burst_medians(cell.wall_ms, cell.turn) == [3.0, 7.0, 5.0]


def orders(seed):
    log = []
    group = cells(log)
    _interleave(group, 20 * BURST, np.random.default_rng(seed))
    return [name for name, _, _ in log]


def test_the_order_is_shuffled_and_repeatable():
    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
    rounds = [tuple(orders(1)[i : i + 18 : 6]) for i in range(0, 20 * 18, 18)]
    assert len(set(rounds)) > 1


def test_no_garbage_is_collected_while_the_clock_runs():
    log = []
    assert gc.isenabled()
    _interleave(cells(log), 5, np.random.default_rng(0))
    assert not any(enabled for _, _, enabled in log)
    assert gc.isenabled()


def test_all_variants_read_the_same_inputs_in_a_round():
    log = []
    _interleave(cells(log, lengths=(4, 5, 6, 7, 8, 9, 10)), 10, np.random.default_rng(0))
    read = {n: [length for name, length, _ in log if name == n] for n in "abc"}
    assert read["a"] == read["b"] == read["c"]
    assert set(read["a"]) == {4, 5, 6, 7, 8, 9, 10}


@pytest.mark.parametrize("most_s", [0.0, 60.0])
def test_warm_up_sees_every_shape_and_is_bounded(most_s):
    log = []
    (cell,) = cells(log, names=("a",), lengths=(*range(4, 24), 4, 5))
    cell.warm_up(most_s)
    assert {length for _, length, _ in log} == set(range(4, 24))
    assert cell.warmup_runs == len(log)
    assert WARMUP_LEAST <= cell.warmup_runs <= WARMUP_MOST + BURST
    assert not cell.repeats


def test_warm_up_waits_for_the_times_to_settle(monkeypatch):
    log = []
    (cell,) = cells(log, names=("a",))
    falling = iter([10.0, 5.0, 2.0, 1.0, 1.01, *[1.0] * 100])
    monkeypatch.setattr(Cell, "_time_window", lambda self: next(falling))
    cell.warm_up(1e9)
    assert cell.warmup_stable
    assert cell.warmup_runs == 1 + 5 * 5  # one shape, then windows 10, 5, 2, 1, 1.01
    assert cell.cost_ms == 1.01


def test_a_warm_up_that_never_settles_says_so(monkeypatch):
    (cell,) = cells([], names=("a",))
    growing = iter(1.5**i for i in range(1000))
    monkeypatch.setattr(Cell, "_time_window", lambda self: next(growing))
    cell.warm_up(1e9)
    assert not cell.warmup_stable
    assert cell.warmup_runs <= WARMUP_MOST + BURST


@pytest.fixture
def clock(monkeypatch):
    """Time passes where the file computes and where somebody sleeps."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(timing.time, "monotonic", lambda: now.s)
    monkeypatch.setattr(timing.time, "sleep", lambda s: setattr(now, "s", now.s + s))
    return now


class Heating:
    """A device whose file takes 10 ms, and twice as long once it has run for a minute."""

    method = "toy"

    def __init__(self, clock, heats):
        self.clock, self.heats, self.read = clock, heats, []

    def prepare(self, feeds):
        def run(numbers):
            out = []
            for number in numbers:
                ms = 20.0 if self.heats and self.clock.s > 60 + 12 else 10.0
                self.clock.s += ms / 1000
                self.read.append(number)
                out.append(Sample(ms))
            return out

        return run

    def watch(self):
        load = Load(before=0, after=0, others=0, thermal="warm", clock="1000 MHz")
        return SimpleNamespace(stop=lambda: load)


@pytest.mark.parametrize("heats", [True, False])
def test_a_sustained_run_shows_what_heat_does(clock, heats):
    device = Heating(clock, heats)
    cell = Cell(SimpleNamespace(name="a"), device, 8, [{"input_ids": np.zeros((1, 8), np.int64)}])
    made = sustain(device, cell, 2, "toy", 1)
    assert len(made.slices) == len(made.wall_ms) == _SLICES
    assert [round(s.after_s) for s in made.slices] == [12 * i for i in range(_SLICES)]
    assert made.drift.median == pytest.approx(2 if heats else 1)
    assert made.drift.decided == heats
    assert sum(s.wall.n for s in made.slices) == sum(map(len, made.wall_ms))
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


def one_run(walls=()):
    return Cell(SimpleNamespace(name="a"), OneRun(walls), 8, [{"input_ids": np.zeros((1, 8), np.int64)}])


def test_minutes_in_one_call_are_divided_by_time(clock):
    cell = one_run([100.0] * 600 + [200.0] * 300)
    made = sustain(Heating(clock, False), cell, 2, "toy", 1)
    assert cell.opened.asked == [120]
    assert [len(wall) for wall in made.wall_ms] == [120] * 5 + [60] * 5
    assert made.drift.median == pytest.approx(2)
    assert [s.after_s for s in made.slices] == [12 * i for i in range(_SLICES)]
    assert {s.clock for s in made.slices} == {"1000 MHz"}
    with pytest.raises(MachineError, match=r"40 inferences are too few for 10 slices of 12 s\. Give more minutes"):
        sustain(Heating(clock, False), one_run([3000.0] * 40), 2, "toy", 1)


def test_a_file_that_keeps_idle_times_itself_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: pytest.fail("slept"))
    cell = one_run()
    cell.cost_ms = 50.0
    idle = cell.after_idle(250)
    _interleave([idle], 2, np.random.default_rng(0))
    assert idle.opened.asked == [(250, [0]), (250, [1])]
    assert idle.wall_ms == [[2.0, 2.0]]
    assert idle.single_s == pytest.approx(4 * 0.25 + 0.05)  # for planning: what it really takes


def test_what_an_inference_costs_is_what_it_takes_here(clock):
    class Far:
        def prepare(self, feeds):
            def run(numbers):
                clock.s += 0.3 * len(numbers)  # a process each
                return [Sample(2.0) for _ in numbers]

            return run

    cell = Cell(SimpleNamespace(name="a"), Far(), 8, [{"input_ids": np.zeros((1, 8), np.int64)}])
    cell.warm_up(60)
    assert cell.cost_ms == pytest.approx(300)
