import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.benchmarks.statistics import (
    Statistics,
    nearest_rank,
    paired_ratio,
    repeat_interval,
    student_t,
)

times = st.floats(1e-3, 1e4)


@given(st.lists(times, min_size=1, max_size=300), st.integers(1, 100))
def test_percentiles_are_samples_with_the_right_rank(samples, percent):
    value = nearest_rank(samples, percent)
    assert value in samples
    # The definition, counted out: the smallest sample that at least percent % of all do not exceed.
    assert 100 * sum(s <= value for s in samples) >= percent * len(samples)
    assert 100 * sum(s < value for s in samples) < percent * len(samples)


@given(st.lists(times, min_size=1, max_size=200), st.integers(1, 100))
def test_percentiles_equal_numpys_inverted_cdf(samples, percent):
    exact = percent / 100 * len(samples)
    if abs(exact - round(exact)) < 1e-6:
        return  # numpy computes the rank in floating point: on exact ranks it may round up
    assert nearest_rank(samples, percent) == np.percentile(samples, percent, method="inverted_cdf")


def test_percentiles_of_one_to_a_hundred():
    samples = list(range(100, 0, -1))
    assert [nearest_rank(samples, p) for p in (1, 7, 29, 50, 90, 99, 100)] == [1, 7, 29, 50, 90, 99, 100]
    assert nearest_rank([5.0], 99) == 5.0
    assert nearest_rank([1.0, 2.0], 50) == 1.0


@given(st.lists(times, min_size=2, max_size=50))
def test_statistics_match_numpy(samples):
    s = Statistics.of(samples)
    assert (s.n, s.unit) == (len(samples), "ms")
    assert s.min == min(samples)
    assert s.mean == pytest.approx(np.mean(samples))
    assert s.stdev == pytest.approx(np.std(samples, ddof=1), abs=1e-9)
    assert s.min <= s.p50 <= s.p90 <= s.p99 <= max(samples)


def test_no_samples_are_refused_and_one_has_no_spread():
    with pytest.raises(ValueError, match="no samples"):
        Statistics.of([])
    assert Statistics.of([2.0]).stdev == 0


@pytest.mark.parametrize("freedom", [1, 2, 5, 10, 29, 30, 31, 50, 100, 1000])
def test_student_t_matches_scipy(freedom):
    assert student_t(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=2e-4)


def test_repeat_interval_is_the_t_interval_of_the_logarithms():
    medians = [1.0, 1.1, 0.9, 1.05]
    logs = np.log(medians)
    low, high = scipy.stats.t.interval(0.95, 3, loc=logs.mean(), scale=scipy.stats.sem(logs))
    interval = repeat_interval(medians)
    assert interval is not None
    assert interval.low == pytest.approx(math.exp(low), rel=1e-3)
    assert interval.high == pytest.approx(math.exp(high), rel=1e-3)
    assert repeat_interval([1.0, 1.1]) is None


@given(st.lists(times, min_size=1, max_size=60))
def test_ratio_of_equal_series_is_one(series):
    ratio = paired_ratio(series, series)
    assert ratio.low <= 1 <= ratio.high
    assert ratio.median == 1
    assert not ratio.decided


@given(st.lists(st.tuples(times, times), min_size=1, max_size=60))
def test_swapping_the_series_gives_the_reciprocal(pairs):
    a, b = [p[0] for p in pairs], [p[1] for p in pairs]
    there, back = paired_ratio(a, b), paired_ratio(b, a)
    assert there.median == pytest.approx(1 / back.median)
    assert there.low == pytest.approx(1 / back.high)
    assert there.low <= there.median * (1 + 1e-12)
    assert there.median <= there.high * (1 + 1e-12)


@given(st.lists(st.tuples(times, times, st.floats(0.1, 50)), min_size=1, max_size=40))
def test_a_disturbance_of_whole_rounds_changes_nothing(rounds):
    a, b, slow = zip(*rounds, strict=True)
    calm = paired_ratio(a, b)
    rough = paired_ratio([x * s for x, s in zip(a, slow, strict=True)], [x * s for x, s in zip(b, slow, strict=True)])
    assert rough.median == pytest.approx(calm.median)
    assert (rough.low, rough.high) == pytest.approx((calm.low, calm.high))


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9, 17, 30, 100, 20_001])
def test_the_interval_covers_what_it_says(n):
    ratio = paired_ratio([float(i + 1) for i in range(n)], [1.0] * n)
    cut = round(ratio.low) - 1  # the series are 1..n, so the lower end tells its rank
    assert round(ratio.high) == n - cut
    assert ratio.confidence == pytest.approx(max(0.0, 1 - 2 * scipy.stats.binom.cdf(cut, n, 0.5)))
    if n >= 6:
        assert ratio.confidence >= 0.95
        narrower = 1 - 2 * scipy.stats.binom.cdf(cut + 1, n, 0.5)
        assert narrower < 0.95  # and no narrower one would do
    else:
        assert cut == 0


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    draw = np.random.default_rng(7)
    hits = sum(
        (r := paired_ratio(draw.lognormal(0.3, 0.5, 15), np.ones(15))).low <= math.exp(0.3) <= r.high
        for _ in range(800)
    )
    assert hits / 800 > 0.93


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0])])
def test_unpaired_series_are_refused(a, b):
    with pytest.raises(ValueError, match="paired series"):
        paired_ratio(a, b)


def test_thousands_of_rounds_are_compared():
    """2**n overflows a float from 1024 pairs on."""
    draw = np.random.default_rng(0)
    a, b = (1 + draw.random(3000) for _ in range(2))
    ratio = paired_ratio(a, b)
    assert (ratio.pairs, ratio.low < 1 < ratio.high) == (3000, True)
    assert 0.95 <= ratio.confidence < 0.96
