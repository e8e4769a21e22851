"""The engines page compares `fastest` with the best of several engines: the pick must not flatter the picked one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers"))

from engine.verdict import cross_fit, ratio_to

ROUNDS, OTHERS, NOISE = 30, 6, 0.06


def _times(rng, factors=(1.0,) * OTHERS, rounds=ROUNDS):
    """`fastest` and others that take `factors` of its time, in rounds that are slower or faster as a whole."""
    machine = rng.lognormal(0, 0.3, rounds)
    names = {"fastest": 1.0} | {f"engine {i}": f for i, f in enumerate(factors)}
    return {n: (5 * f * machine * rng.lognormal(0, NOISE, rounds)).tolist() for n, f in names.items()}


def test_equal_engines_are_equal_although_the_best_is_picked():
    rng = np.random.default_rng(0)
    fits = [cross_fit(_times(rng), "fastest") for _ in range(300)]
    ratios = np.log([f.ratio.median for f in fits])
    error = ratios.std() / np.sqrt(len(ratios))
    assert abs(ratios.mean()) < 3 * error < 0.005
    naive = np.log([f.plain.median for f in fits])
    assert naive.mean() > 0.01 > 5 * naive.std() / np.sqrt(len(naive))


def test_the_interval_covers_the_ratio_of_equal_engines():
    rng = np.random.default_rng(1)
    fits = [cross_fit(_times(rng), "fastest") for _ in range(300)]
    assert np.mean([f.ratio.low <= 1 <= f.ratio.high for f in fits]) > 0.92


def test_an_engine_that_is_really_faster_is_found():
    fit = cross_fit(_times(np.random.default_rng(2), (1.02, 1 / 1.1, 1.0, 1.2), 200), "fastest")
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


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.lists(st.floats(0.1, 10), min_size=8, max_size=9))
def test_a_round_that_is_slower_as_a_whole_changes_nothing(seed, slowness):
    times = _times(np.random.default_rng(seed), (0.95, 1.0, 1.1), len(slowness))
    slowed = {n: [t * s for t, s in zip(ms, slowness, strict=True)] for n, ms in times.items()}
    one, other = cross_fit(times, "fastest"), cross_fit(slowed, "fastest")
    assert (one.opponents, one.best) == (other.opponents, other.best)
    assert one.ratio.median == pytest.approx(other.ratio.median)
    assert (one.ratio.low, one.ratio.high) == pytest.approx((other.ratio.low, other.ratio.high))


def test_other_times_are_compared_with_the_same_opponents():
    cpu = {"fastest": [4.0, 4.0], "a": [2.0, 1.0], "b": [8.0, 16.0]}
    assert ratio_to(cpu["fastest"], cpu, ["a", "b"]).median == pytest.approx(0.5**0.5)
    assert ratio_to(cpu["fastest"], cpu, ["a", "a"]).median == pytest.approx(8**0.5)


@pytest.mark.parametrize("times", [{"fastest": [1.0], "a": [1.0]}, {"fastest": [1.0, 1.0]}])
def test_too_little_to_compare_is_refused(times):
    with pytest.raises(ValueError, match="two rounds and two engines"):
        cross_fit(times, "fastest")
