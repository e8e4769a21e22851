"""The scripts that compare engines at two cadences, and that repeat a comparison."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers"))

import cadence
import repeats
from engine import measure
from engine.cadence_page import INTERACTIVE, verdict, write_page
from engine.columns import BASELINE, FASTEST, RIVAL
from engine.measure import SINGLES, Engine, Part, Pool
from engine.pool import Burst
from engine.results import Result

from pocketbert.benchmarks.statistics import Ratio


class _Worker:
    """Takes 1 ms right after a run and 3 ms after a sleep."""

    version, note, choices, mixed = "1", "", {}, {}

    def __init__(self, clock):
        self.clock, self.ran = clock, []

    def run(self, key, first, count, untimed):
        self.ran.append((first, count, untimed))
        ms = 3.0 if self.clock.pop("slept", 0) else 1.0
        return Burst([ms] * count, ms, 0.0)


@pytest.fixture
def pool(monkeypatch):
    clock = {}
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: clock.update(slept=seconds))
    made = Pool([], 1)
    made.workers["a"] = _Worker(clock)
    return made


def test_single_calls_each_come_after_idle_time_and_bursts_do_not(pool):
    assert pool.turn("a", "32", 4, 12, 5).wall == [1.0] * 12
    pool.gap_ms = 100.0
    assert pool.turn("a", "32", 4, 12, 5).wall == [3.0] * SINGLES
    # one untimed inference, on another input than the first timed one, then the calls
    assert pool.workers["a"].ran[1:] == [(4 + SINGLES - 1, 1, 0), *((i, 1, 0) for i in range(4, 4 + SINGLES))]


def _result(times):
    engines = {n: Engine(wall=[[t] * SINGLES] * 12, cpu=[t] * 12, after=[0.0] * 12) for n, t in times.items()}
    part = Part(threads=1, length="32", generation=0, finalists=[*times], engines=engines, others=[0.0] * 12)
    return Result(model="m", key="k", weights="trained", machine="cpu", texts="t", parts=[part])


def test_each_cadence_is_judged_by_its_own_choice(tmp_path):
    batch = _result({BASELINE: 1.0, RIVAL: 2.0, FASTEST: 1.0, INTERACTIVE: 2.0})
    single = _result({BASELINE: 3.0, RIVAL: 2.0, FASTEST: 3.0, INTERACTIVE: 2.0})
    found = write_page({0.0: [batch], 100.0: [single]}, tmp_path / "page.md")
    assert [(v.fit.best, v.fit.ratio.median) for v in found] == [(BASELINE, 1.0), (RIVAL, 1.0)]
    assert [v.other.median for v in found if v.other] == pytest.approx([0.5, 2 / 3])
    page = (tmp_path / "page.md").read_text()
    assert "2 of 2 cells within 5% of the best engine" in page and "3 / 3" in page


def test_a_choice_that_is_slower_than_an_engine_misses_the_goal(tmp_path):
    slow = _result({BASELINE: 3.0, RIVAL: 2.0, INTERACTIVE: 2.4})
    [found] = write_page({100.0: [slow]}, tmp_path / "page.md")
    assert found.fit.ratio.median == pytest.approx(1.2)
    assert "0 of 1 cells within 5%" in (tmp_path / "page.md").read_text()


def test_nothing_is_judged_without_an_opponent():
    alone = _result({INTERACTIVE: 1.0})
    assert verdict(alone, alone.cells()[0], 100.0) is None


def _repeat(median, others=0.0):
    ratio = Ratio(median=median, low=median * 0.98, high=median * 1.02, pairs=60, confidence=0.95)
    return repeats.Repeat(ratios={"int8, 1, 32, 0": ratio}, others=others, noticed=others > 0.1)


def test_ratios_are_counted_in_the_first_interval_widened():
    low, high = repeats.widened(_repeat(0.5).ratios["int8, 1, 32, 0"])
    assert math.log(high / 0.5) == pytest.approx(math.sqrt(2) * math.log(1.02))
    assert math.log(0.5 / low) == pytest.approx(-math.sqrt(2) * math.log(0.98))
    inside = [0.5 * 1.025] * 9
    kept = repeats.Repeats(key="k", machine="cpu", repeats=[_repeat(m) for m in (0.5, *inside, 0.6)])
    assert repeats.held(kept) == {"int8, 1, 32, 0": (9, 10)}
    assert "9 of 10 ratios repeat; the goal of 90% is met" in repeats.summary(kept)[-1]
    kept.repeats[1] = _repeat(0.4)
    assert "8 of 10 ratios repeat; the goal of 90% is missed" in repeats.summary(kept)[-1]


def test_a_busy_core_that_is_not_reported_is_told():
    kept = repeats.Repeats(key="k", machine="cpu", repeats=[_repeat(0.5)], busy=_repeat(0.5, 0.4))
    assert repeats.summary(kept)[-1] == "a busy process on another core had 40% of the CPU time: reported"
    kept.busy = _repeat(0.5)
    assert "NOT reported" in repeats.summary(kept)[-1]


@pytest.mark.parametrize(("key", "kept"), [("k", 1), ("other", 0)])
def test_repeats_of_other_files_are_forgotten(tmp_path, key, kept):
    path = tmp_path / "repeats.json"
    path.write_text(repeats.Repeats(key="k", machine="cpu", repeats=[_repeat(0.5)]).model_dump_json())
    assert len(repeats.resume(path, key).repeats) == kept
    path.write_text("{")
    assert not repeats.resume(path, key).repeats


def test_what_is_left_of_the_run_is_divided_among_what_is_left_to_measure(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(cadence.time, "monotonic", lambda: now[0])
    allowance = cadence.Allowance(100.0, pools=2, parts=5, otherwise=30.0)
    now[0] = 10.0
    allowance.opened(10.0)
    assert allowance.part() == pytest.approx((90 - 10) / 5)
    now[0] = 60.0  # it took longer, and the others get less
    assert allowance.part() == pytest.approx((40 - 10) / 4)
    now[0] = 200.0
    assert allowance.part() == cadence.LEAST_S
    assert cadence.Allowance(0.0, 2, 5, 30.0).part() == 30.0


@pytest.mark.parametrize(("others", "busy"), [([0.0, 0.01, 0.4], False), ([0.3, 0.01, 0.4], True)])
def test_a_busy_machine_is_told_on_the_page(tmp_path, others, busy):
    result = _result({BASELINE: 1.0, FASTEST: 1.0})
    result.parts[0].others = others * 4
    write_page({0.0: [result]}, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert f"{8 - 4 * busy} of 12 rounds were quiet" in page
    assert ("The machine was busy" in page) == busy


def test_runs_with_other_processes_are_counted():
    kept = repeats.Repeats(key="k", machine="cpu", repeats=[_repeat(0.5), _repeat(0.5, 0.4), _repeat(0.5, 0.05)])
    assert "in 1 of 3 runs other processes had more than 10% of the CPU time" in repeats.summary(kept)
