"""The laboratory's arithmetic: whoever is picked as the best is not flattered, pairs are pairs, arms differ in one thing."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

LAB = Path(__file__).resolve().parents[2] / "lab"
sys.path += [str(LAB), str(LAB / "peers"), str(LAB / "runtimes")]

import compare_files
import repeats
from compare_files import AGAIN, FIRST, SECOND
from engine.columns import FASTEST
from engine.measure import Engine, Part
from engine.results import Cell
from engine.verdict import cross_fit, ratio_to
from naive.writers import WRITERS
from study.arms import ARMS, BASE_MINUTES, arm_recipe, teacher_recipe
from study.bootstrap import Estimate, Verdict, bootstrap, paired
from study.comparisons import COMPARISONS
from study.sources import sources

from pocketbert.benchmarks.statistics import Ratio
from pocketbert.core.recipe.file import dump_recipe, load_recipe
from pocketbert.core.types import Format

# --- engines compared in rounds --------------------------------------------------------------------------------------------------


def make_part(times, generation=0):
    """Engines with one time for each of their rounds."""
    engines = {n: Engine(wall=[[t] for t in ts], cpu=ts, after=[0.0] * len(ts)) for n, ts in times.items()}
    rounds = max(map(len, times.values()))
    finalists = [n for n, ts in times.items() if len(ts) == rounds]
    about = {"threads": 1, "length": "128", "generation": generation, "others": [0.0] * rounds}
    return Part(finalists=finalists, engines=engines, **about)


def test_an_engine_that_left_is_compared_in_the_rounds_it_had():
    # The machine gets twice as slow when the engine has gone: only common rounds say who is faster.
    first = make_part({"a": [1.0] * 6 + [2.0] * 20, "b": [1.5] * 6, FASTEST: [1.0] * 6 + [2.0] * 20})
    second = make_part({"a": [4.0] * 20, FASTEST: [2.0] * 20}, generation=1)
    cell = Cell(1, "128", (first, second))
    assert (cell.ratio("b", "a").median, cell.ratio("b", "a").pairs) == (1.5, 6)
    assert cell.ratio("a", FASTEST).pairs == 46
    assert cell.finalists == ["a", FASTEST]
    assert cell.median("b") == 1.5


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


def test_ratios_repeat_within_the_widened_interval_of_the_first():
    def repeat(median):
        ratio = Ratio(median=median, low=median * 0.98, high=median * 1.02, pairs=60, confidence=0.95)
        return repeats.Repeat(ratios={"int8, 1, 32, 0": ratio}, others=0.0, noticed=False)

    low, high = repeats.widened(repeat(0.5).ratios["int8, 1, 32, 0"])
    assert math.log(high / 0.5) == pytest.approx(math.sqrt(2) * math.log(1.02))
    assert math.log(0.5 / low) == pytest.approx(-math.sqrt(2) * math.log(0.98))
    kept = repeats.Repeats(key="k", machine="cpu", repeats=[repeat(m) for m in (0.5, *[0.5 * 1.025] * 9, 0.6)])
    assert repeats.held(kept) == {"int8, 1, 32, 0": (9, 10)}


def test_ratios_are_paired_by_round_and_their_interval_is_that_of_processes():
    first = [1.0] * 4 + [3.0] * 4  # a machine that becomes three times as slow: the ratio stays
    generations = [{FIRST: first, SECOND: [t * r for t in first], AGAIN: first} for r in (1.9, 2.0, 2.1)]
    assert compare_files.ratio_of(generations, SECOND) == "1.998 [1.765, 2.263]"
    assert compare_files.ratio_of(generations, AGAIN) == "1.000 [1.000, 1.000]"


def test_every_format_has_a_naive_writer_to_compare_with():
    assert {format for format, _, _ in WRITERS} == set(Format)


# --- the study of methods --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda c: f"{c.having}-{c.lacking}")
def test_compared_arms_differ_in_one_thing_and_see_as_many_task_rows(comparison):
    by_name = {a.name: a for a in ARMS}
    having, lacking = by_name[comparison.having], by_name[comparison.lacking]
    assert having.student == lacking.student
    for minutes in (0.01, 0.5, 1.7, 6.0, 90.0):
        factor = minutes / BASE_MINUTES
        assert having.task_rows(factor) == lacking.task_rows(factor) > 0
    if "instead" in comparison.what:
        one, other = having.stages, lacking.stages
        assert one[1:] == other[1:]
        assert one[0].strategy != other[0].strategy
        same = {"strategy": "joint", "transfer_steps": None}
        assert one[0].model_copy(update=same) == other[0].model_copy(update=same)
    elif "general" in comparison.what or "transfer" in comparison.what:
        assert having.stages[1:] == lacking.stages
        assert having.stages[0].general
    elif "Augmentation" in comparison.what:
        assert [s.model_copy(update={"augmented": False}) for s in having.stages] == list(lacking.stages)
        assert having.augmented and not lacking.augmented
    else:
        methods = {s.method for s in lacking.stages}
        assert [s.method for s in having.stages if s.method not in methods] == ["tinybert-intermediate"]
        assert having.augmented == lacking.augmented


@pytest.mark.parametrize("arm", ARMS, ids=lambda a: a.name)
def test_an_arm_is_a_recipe_that_can_be_run_alone_with_the_teacher_of_its_seed(arm, tmp_path):
    data = sources(None, None)
    recipe, teacher = arm_recipe(arm, data, seed=5, factor=0.1, teacher_steps=9), teacher_recipe(data, 5, 9)
    path = tmp_path / "arm.yaml"
    path.write_text(dump_recipe(recipe))
    assert load_recipe(path) == recipe
    assert (recipe.data.corpus is not None) == arm.general
    assert (recipe.data.augment is not None) == arm.augmented
    for name in ("teacher", "seed", "task", "answer"):
        assert getattr(recipe, name) == getattr(teacher, name)
    assert recipe.data.model_copy(update={"corpus": None, "augment": None}) == teacher.data


ROWS = np.arange(400)


@settings(max_examples=25)
@given(arrays(np.bool_, st.tuples(st.integers(1, 4), st.integers(1, 40))), st.integers(0, 2**31))
def test_intervals_hold_their_mean_and_turn_round_with_the_arms(table, seed):
    found = bootstrap(table, 500)
    assert found.mean == pytest.approx(table.mean())
    assert 0 <= found.low <= found.high <= 1
    if table.all() or not table.any():
        assert found.low == found.high == found.mean
    same = paired(table, table)
    assert (same.mean, same.low, same.high, same.verdict) == (0, 0, 0, Verdict.NOT_VISIBLE)
    other = np.random.default_rng(seed).random(table.shape) < 0.5
    one, two = paired(table, other), paired(other, table)
    assert (one.mean, one.low, one.high) == pytest.approx((-two.mean, -two.high, -two.low))


def test_one_seeds_interval_is_as_wide_as_the_normal_one_and_seeds_that_disagree_widen_it():
    found, share = bootstrap((ROWS < 320)[None]), 0.8
    error = 1.96 * np.sqrt(share * (1 - share) / 400)
    assert (found.low, found.high) == pytest.approx((share - error, share + error), abs=4e-3)
    alike = bootstrap(np.stack([ROWS < 320, ROWS < 320]))
    apart = bootstrap(np.stack([ROWS < 260, ROWS < 380]))
    assert apart.high - apart.low > 2 * (alike.high - alike.low)


def test_pairing_sees_what_separate_intervals_do_not():
    worse, better = (ROWS < 320)[None], (ROWS < 335)[None]
    assert paired(better, worse).verdict is Verdict.HELPS
    assert paired(worse, better).verdict is Verdict.HURTS
    assert bootstrap(worse).high > bootstrap(better).low
    assert Estimate(0.1, 0.0, 0.2).verdict is Verdict.NOT_VISIBLE  # an interval that touches 0 shows nothing
