"""The scripts of lab/peers that compare engines, repeat comparisons, and tell what files score."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "lab" / "peers"), str(ROOT / "lab" / "runtimes")]

import compare_files
import repeats
import scheme_table
from compare_files import AGAIN, FIRST, SECOND
from engine import measure
from engine.cadence_page import INTERACTIVE, verdict, write_page
from engine.columns import BASELINE, FASTEST, RIVAL
from engine.measure import QUIET, SINGLES, Engine, Part, Pool, contenders
from engine.pool import Burst
from engine.results import ENOUGH, Cell, Result
from engine.verdict import cross_fit, ratio_to
from naive.writers import NAIVE, WRITERS
from scheme_scores import FileScore, Speed

from pocketbert.benchmarks.statistics import Ratio
from pocketbert.core.types import Format

# --- rounds of the engines page --------------------------------------------------------------------------------------------------


def make_part(times, generation=0, others=None, length="128", singles=1):
    """Engines with one time for each of their rounds."""
    engines = {n: Engine(wall=[[t] * singles for t in ts], cpu=ts, after=[0.0] * len(ts)) for n, ts in times.items()}
    rounds = max(len(ts) for ts in times.values())
    finalists = [n for n, ts in times.items() if len(ts) == rounds]
    others = others or [0.0] * rounds
    return Part(threads=1, length=length, generation=generation, finalists=finalists, engines=engines, others=others)


def make_result(*parts, key="k"):
    return Result(model="m", key=key, weights="trained", machine="machine", texts="texts", parts=list(parts))


def test_an_engine_that_left_is_compared_in_the_rounds_it_had():
    # The machine gets twice as slow when the engine has gone: only common rounds say who is faster.
    first = make_part({"a": [1.0] * 6 + [2.0] * 20, "b": [1.5] * 6, FASTEST: [1.0] * 6 + [2.0] * 20})
    second = make_part({"a": [4.0] * 20, FASTEST: [2.0] * 20}, generation=1)
    cell = Cell(1, "128", (first, second))
    assert (cell.ratio("b", "a").median, cell.ratio("b", "a").pairs) == (1.5, 6)
    assert cell.ratio("a", FASTEST).pairs == 46
    assert cell.finalists == ["a", FASTEST]
    assert cell.median("b") == 1.5


@pytest.mark.parametrize(
    ("loud", "median", "pairs"),
    [
        ([QUIET + 0.01, 0.0] * ENOUGH, 1.0, ENOUGH),
        ([QUIET + 0.01] * (ENOUGH + 1) + [0.0] * (ENOUGH - 1), 3**0.5, 2 * ENOUGH),
    ],
)
def test_disturbed_rounds_are_left_out_where_enough_quiet_ones_remain(loud, median, pairs):
    times = {"a": [3.0, 1.0] * ENOUGH, "b": [1.0] * (2 * ENOUGH)}
    ratio = Cell(1, "128", (make_part(times, others=loud),)).ratio("a", "b")
    assert (ratio.pairs, ratio.median) == (pairs, pytest.approx(median))


@pytest.mark.parametrize(
    ("times", "judged", "stay"),
    [
        ({"best": [1.0] * 6, "near": [1.2] * 6, "far": [1.4] * 6, FASTEST: [9.0] * 6}, [], ["best", "near", FASTEST]),
        ({"best": [1.0] * 6, "near": [1.2] * 6, "far": [1.4] * 6}, ["far"], ["best", "near", "far"]),
        ({"a": [2.0] * 6, "b": [3.0] * 6, FASTEST: [1.0] * 6}, [], ["a", FASTEST]),  # somebody to be compared with
        ({"a": [1.0] * 6, "b": [9.0, 9.0, 1.0, 1.0, 9.0, 1.0]}, [], ["a", "b"]),  # one quick round is enough
        # a toolkit's choice that is lucky in the first rounds put everybody else out, and nothing was judged
        ({"a": [2.0] * 3, "b": [4.0] * 3, "own": [1.0] * 3, FASTEST: [1.1] * 3}, ["own"], ["a", "own", FASTEST]),
    ],
)
def test_those_near_the_fastest_go_on_with_somebody_to_be_compared_with(times, judged, stay):
    assert contenders(make_part(times), judged) == stay


@pytest.mark.parametrize(("key", "kept"), [("same", True), ("other", False)])
def test_results_are_resumed_generation_by_generation(tmp_path, key, kept):
    one = {"a": [1.0] * 6}
    result = make_result(make_part(one), make_part(one, 1), make_part(one, length="16"), key="same")
    result.save(tmp_path / "m.json")
    again = Result.resume(tmp_path / "m.json", "m", key, "trained", "machine", "texts")
    assert [again.part(1, n, g) is not None for n, g in (("128", 0), ("128", 1), ("16", 0))] == [kept] * 3
    assert again.part(1, "16", 1) is None
    assert [len(c.parts) for c in again.cells()] == ([2, 1] if kept else [])


# --- the verdict: the pick of the best engine must not flatter the picked one ----------------------------------------------------


def draw_times(rng, factors=(1.0,) * 6, rounds=30):
    """`fastest` and others that take `factors` of its time, in rounds that are slower or faster as a whole."""
    machine = rng.lognormal(0, 0.3, rounds)
    names = {"fastest": 1.0} | {f"engine {i}": f for i, f in enumerate(factors)}
    return {n: (5 * f * machine * rng.lognormal(0, 0.06, rounds)).tolist() for n, f in names.items()}


def test_equal_engines_are_equal_although_the_best_is_picked():
    rng = np.random.default_rng(1)
    fits = [cross_fit(draw_times(rng), "fastest") for _ in range(300)]
    ratios = np.log([f.ratio.median for f in fits])
    error = ratios.std() / np.sqrt(len(ratios))
    assert abs(ratios.mean()) < 3 * error < 0.005
    naive = np.log([f.plain.median for f in fits])
    assert naive.mean() > 0.01 > 5 * naive.std() / np.sqrt(len(naive))
    assert np.mean([f.ratio.low <= 1 <= f.ratio.high for f in fits]) > 0.92


def test_an_engine_that_is_really_faster_is_found():
    fit = cross_fit(draw_times(np.random.default_rng(2), (1.02, 1 / 1.1, 1.0, 1.2), 200), "fastest")
    assert fit.names == ["engine 1"] == [fit.best]
    assert fit.ratio == fit.plain
    assert fit.ratio.median == pytest.approx(1.1, abs=0.02)
    assert 1.05 < fit.ratio.low < 1.1 < fit.ratio.high


def test_each_half_is_compared_with_the_engine_that_the_other_half_picks():
    times = {"fastest": [1.0] * 6, "even": [0.5, 1.0] * 3, "odd": [1.0, 0.25] * 3}
    fit = cross_fit(times, "fastest")
    assert fit.opponents == ["odd", "even"] * 3
    assert fit.names == ["even", "odd"]
    assert fit.ratio.median == 1  # neither is faster where it was not picked
    assert fit.best == "odd"
    assert fit.plain.median == pytest.approx(2.0)
    cpu = {"fastest": [4.0, 4.0], "a": [2.0, 1.0], "b": [8.0, 16.0]}
    assert ratio_to(cpu["fastest"], cpu, ["a", "b"]).median == pytest.approx(0.5**0.5)
    assert ratio_to(cpu["fastest"], cpu, ["a", "a"]).median == pytest.approx(8**0.5)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.lists(st.floats(0.1, 10), min_size=8, max_size=9))
def test_a_round_that_is_slower_as_a_whole_changes_nothing(seed, slowness):
    times = draw_times(np.random.default_rng(seed), (0.95, 1.0, 1.1), len(slowness))
    slowed = {n: [t * s for t, s in zip(ms, slowness, strict=True)] for n, ms in times.items()}
    one, other = cross_fit(times, "fastest"), cross_fit(slowed, "fastest")
    assert (one.opponents, one.best) == (other.opponents, other.best)
    assert one.ratio.median == pytest.approx(other.ratio.median)
    assert (one.ratio.low, one.ratio.high) == pytest.approx((other.ratio.low, other.ratio.high))


# --- two cadences ----------------------------------------------------------------------------------------------------------------


def test_single_calls_each_come_after_idle_time_and_bursts_do_not(monkeypatch):
    class Worker:
        """Takes 1 ms right after a run and 3 ms after a sleep."""

        version, note, choices, mixed, ran = "1", "", {}, {}, []

        def run(self, key, first, count, untimed):
            self.ran.append((first, count, untimed))
            ms = 3.0 if clock.pop("slept", 0) else 1.0
            return Burst([ms] * count, ms, 0.0)

    clock, pool = {}, Pool([], 1)
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: clock.update(slept=seconds))
    pool.workers["a"] = worker = Worker()
    assert pool.turn("a", "32", 4, 12, 5).wall == [1.0] * 12
    pool.gap_ms = 100.0
    assert pool.turn("a", "32", 4, 12, 5).wall == [3.0] * SINGLES
    # one untimed inference, on another input than the first timed one, then the calls
    assert worker.ran[1:] == [(4 + SINGLES - 1, 1, 0), *((i, 1, 0) for i in range(4, 4 + SINGLES))]


def make_cadence(**times):
    return make_result(make_part({n: [t] * 12 for n, t in times.items()}, length="32", singles=SINGLES))


def test_each_cadence_is_judged_by_its_own_choice(tmp_path):
    batch = make_cadence(**{BASELINE: 1.0, RIVAL: 2.0, FASTEST: 1.0, INTERACTIVE: 2.0})
    single = make_cadence(**{BASELINE: 3.0, RIVAL: 2.0, FASTEST: 3.0, INTERACTIVE: 2.0})
    found = write_page({0.0: [batch], 100.0: [single]}, tmp_path / "page.md")
    assert [(v.fit.best, v.fit.ratio.median) for v in found] == [(BASELINE, 1.0), (RIVAL, 1.0)]
    assert [v.other.median for v in found if v.other] == pytest.approx([0.5, 2 / 3])
    page = (tmp_path / "page.md").read_text()
    assert "2 of 2 cells within 5% of the best engine" in page
    assert "3 / 3" in page
    slow = make_cadence(**{BASELINE: 3.0, RIVAL: 2.0, INTERACTIVE: 2.4})
    [found] = write_page({100.0: [slow]}, tmp_path / "page.md")
    assert found.fit.ratio.median == pytest.approx(1.2)
    assert "0 of 1 cells within 5%" in (tmp_path / "page.md").read_text()
    alone = make_cadence(**{INTERACTIVE: 1.0})
    assert verdict(alone, alone.cells()[0], 100.0) is None


@pytest.mark.parametrize(("others", "busy"), [([0.0, 0.01, 0.4], False), ([0.3, 0.01, 0.4], True)])
def test_a_busy_machine_is_told_on_the_page(tmp_path, others, busy):
    result = make_cadence(**{BASELINE: 1.0, FASTEST: 1.0})
    result.parts[0].others = others * 4
    write_page({0.0: [result]}, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert f"{8 - 4 * busy} of 12 rounds were quiet" in page
    assert ("The machine was busy" in page) == busy


# --- repeats of a comparison -----------------------------------------------------------------------------------------------------


def make_repeats(*medians, others=(), **more):
    def one(median, share):
        ratio = Ratio(median=median, low=median * 0.98, high=median * 1.02, pairs=60, confidence=0.95)
        return repeats.Repeat(ratios={"int8, 1, 32, 0": ratio}, others=share, noticed=share > 0.1)

    made = [one(m, share) for m, share in zip(medians, others or [0.0] * len(medians), strict=True)]
    return repeats.Repeats(key="k", machine="cpu", repeats=made, **more)


def test_ratios_are_counted_in_the_first_interval_widened():
    low, high = repeats.widened(make_repeats(0.5).repeats[0].ratios["int8, 1, 32, 0"])
    assert math.log(high / 0.5) == pytest.approx(math.sqrt(2) * math.log(1.02))
    assert math.log(0.5 / low) == pytest.approx(-math.sqrt(2) * math.log(0.98))
    inside = [0.5 * 1.025] * 9
    kept = make_repeats(0.5, *inside, 0.6)
    assert repeats.held(kept) == {"int8, 1, 32, 0": (9, 10)}
    assert "9 of 10 ratios repeat; the goal of 90% is met" in repeats.summary(kept)[-1]
    missed = make_repeats(0.5, 0.4, *inside[1:], 0.6)
    assert "8 of 10 ratios repeat; the goal of 90% is missed" in repeats.summary(missed)[-1]


def test_other_processes_are_counted_and_a_busy_core_that_is_not_reported_is_told():
    kept = make_repeats(0.5, 0.5, 0.5, others=(0.0, 0.4, 0.05))
    assert "in 1 of 3 runs other processes had more than 10% of the CPU time" in repeats.summary(kept)
    noticed = make_repeats(0.5, busy=make_repeats(0.5, others=[0.4]).repeats[0])
    assert repeats.summary(noticed)[-1] == "a busy process on another core had 40% of the CPU time: reported"
    assert "NOT reported" in repeats.summary(make_repeats(0.5, busy=make_repeats(0.5).repeats[0]))[-1]


def test_repeats_of_other_files_are_forgotten(tmp_path):
    path = tmp_path / "repeats.json"
    path.write_text(make_repeats(0.5).model_dump_json())
    assert len(repeats.resume(path, "k").repeats) == 1
    assert not repeats.resume(path, "other").repeats
    path.write_text("{")
    assert not repeats.resume(path, "k").repeats


# --- two ONNX files of one model -------------------------------------------------------------------------------------------------


def test_ratios_are_paired_by_round_and_their_interval_is_that_of_processes():
    first = [1.0] * 4 + [3.0] * 4  # a machine that becomes three times as slow: the ratio stays
    generations = [{FIRST: first, SECOND: [t * r for t in first], AGAIN: first} for r in (1.9, 2.0, 2.1)]
    assert compare_files.ratio_of(generations, SECOND) == "1.998 [1.765, 2.263]"
    assert compare_files.ratio_of(generations, AGAIN) == "1.000 [1.000, 1.000]"


def test_files_take_turns_on_the_same_row(monkeypatch):
    class TimedFile:
        """Takes as many clock steps of CPU time as it is told."""

        def __init__(self, ms):
            self.ms, self.rows = ms, []

        def prepare(self, row):
            self.rows.append(row)
            return row

        def run(self, feed):
            clock[0] += int(self.ms * 1e6)

    clock = [0]
    monkeypatch.setattr(compare_files.time, "process_time_ns", lambda: clock[0])
    files = {FIRST: TimedFile(1.0), SECOND: TimedFile(2.0), AGAIN: TimedFile(1.0)}
    times = compare_files.measure(files, length=16, rounds=3, burst=2, seed=1)
    assert times == {FIRST: [1.0] * 3, SECOND: [2.0] * 3, AGAIN: [1.0] * 3}
    assert {f.rows[0]["input_ids"].shape for f in files.values()} == {(1, 16)}
    assert files[FIRST].rows[0]["attention_mask"].all()


# --- what files of several data sets score ---------------------------------------------------------------------------------------


def make_score(scheme, size, path="onnx/model.onnx", **more):
    figures = {"value": 0.8, "against": 0.9, "low": -0.2, "high": 0.0, "rel": 0.05, "rows": 10, "rows_digest": "r"}
    about = {"path": path, "format": Format.ONNX, "machine": "a machine", "sha256": f"{scheme}{size}"}
    return FileScore(scheme=scheme, bytes=size, **about, **figures, **more)


@pytest.fixture
def show_table(tmp_path, monkeypatch, capsys):
    """`show_table(name=scores, ...)`: the lines of the table of these data sets."""

    def show(**sets):
        paths = [tmp_path / f"{name}.json" for name in sets]
        for path, scores in zip(paths, sets.values(), strict=True):
            path.write_text(json.dumps([s.model_dump(mode="json") for s in scores]))
        monkeypatch.setattr(sys, "argv", ["scheme_table.py", *map(str, paths)])
        scheme_table.main()
        return capsys.readouterr().out.splitlines()

    return show


def test_sizes_are_those_of_all_sets_and_loads_those_at_which_times_were_taken(show_table):
    speeds = [Speed(ms=1.0, ratio=(0.9, 1.0, 1.1), load=load) for load in (4.1, 17.5)]
    timed = [make_score(f"s{i}", 1, speed=speed) for i, speed in enumerate(speeds)]
    first = [*timed, make_score("int8", 17_690_000), make_score("w8", 17_690_100)]
    second = [make_score("int8", 17_510_000), make_score("w4", 11_000_000), make_score("w8", 17_690_000)]
    lines = show_table(a=first, b=second)
    rows = {line.split(" | ")[1]: line for line in lines if line.startswith("| onnx")}
    assert rows["int8"].startswith("| onnx | int8 | 17.51–17.69 | 80.00, -10.00 [-20.00, +0.00] |")
    assert rows["w4"].startswith("| onnx | w4 | 11.00 | – |")
    assert rows["w8"].startswith("| onnx | w8 | 17.69 |")  # sizes with the same figure are given once
    assert "load, a: 4.1 to 17.5" in lines
    assert "load, b: no times" in lines


def test_naive_files_have_rows_next_to_the_scheme_of_the_project_and_every_format_has_one(show_table):
    titles = dict.fromkeys(title for _, title, _ in WRITERS)
    naive = [make_score("a8w8", 1_000_000 + i, title) for i, title in enumerate(titles)]
    lines = show_table(a=[make_score("a8w8", 2_000_000), *naive])
    assert [line.split(" | ")[1] for line in lines[2:5]] == [NAIVE, f"{NAIVE}, all rows", "a8w8"]
    assert {format for format, _, _ in WRITERS} == set(Format)
