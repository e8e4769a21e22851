import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.benchmarks.statistics import Statistics, nearest_rank, paired_ratio, repeat_interval, student_t

times = st.floats(1e-3, 1e4)
few = settings(max_examples=25)


@settings(max_examples=50)
@given(st.lists(times, min_size=1, max_size=300), st.integers(1, 100))
def test_percentiles_are_samples_with_the_right_rank(samples, percent):
    value = nearest_rank(samples, percent)
    assert value in samples
    # The definition, counted out: the smallest sample that at least percent % of all do not exceed.
    assert 100 * sum(s <= value for s in samples) >= percent * len(samples)
    assert 100 * sum(s < value for s in samples) < percent * len(samples)
    exact = percent / 100 * len(samples)
    if abs(exact - round(exact)) >= 1e-6:  # else numpy may round up: it computes the rank in floating point
        assert value == np.percentile(samples, percent, method="inverted_cdf")


@few
@given(st.lists(times, min_size=2, max_size=50))
def test_statistics_match_numpy(samples):
    s = Statistics.of(samples)
    assert (s.n, s.min) == (len(samples), min(samples))
    assert s.mean == pytest.approx(np.mean(samples))
    assert s.stdev == pytest.approx(np.std(samples, ddof=1), abs=1e-9)
    assert [s.p50, s.p90, s.p99] == [nearest_rank(samples, p) for p in (50, 90, 99)]


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
    assert (interval.low, interval.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-3)
    assert repeat_interval([1.0, 1.1]) is None


@few
@given(st.lists(st.tuples(times, times, st.floats(0.1, 50)), min_size=1, max_size=60))
def test_ratios_turn_round_with_the_series_and_a_disturbance_of_whole_rounds_changes_nothing(rounds):
    a, b, slow = zip(*rounds, strict=True)
    same, there, back = paired_ratio(a, a), paired_ratio(a, b), paired_ratio(b, a)
    assert (same.median, same.decided) == (1, False)
    assert there.median == pytest.approx(1 / back.median)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert there.low * (1 - 1e-12) <= there.median <= there.high * (1 + 1e-12)
    rough = paired_ratio([x * s for x, s in zip(a, slow, strict=True)], [x * s for x, s in zip(b, slow, strict=True)])
    assert (rough.median, rough.low, rough.high) == pytest.approx((there.median, there.low, there.high))


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9, 17, 30, 100, 20_001])
def test_the_interval_covers_what_it_says(n):
    ratio = paired_ratio([float(i + 1) for i in range(n)], [1.0] * n)
    cut = round(ratio.low) - 1  # the series are 1..n, so the lower end tells its rank
    assert round(ratio.high) == n - cut
    assert ratio.confidence == pytest.approx(max(0.0, 1 - 2 * scipy.stats.binom.cdf(cut, n, 0.5)))
    if n >= 6:
        assert ratio.confidence >= 0.95
        assert 1 - 2 * scipy.stats.binom.cdf(cut + 1, n, 0.5) < 0.95  # and no narrower one would do
    else:
        assert cut == 0
    assert ratio.has_interval == (n >= 6)
    assert ratio.decided == (n >= 6 and ratio.low > 1)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    draw = np.random.default_rng(7)
    ratios = [paired_ratio(draw.lognormal(0.3, 0.5, 15), np.ones(15)) for _ in range(800)]
    assert np.mean([r.low <= math.exp(0.3) <= r.high for r in ratios]) > 0.93


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0])])
def test_unpaired_series_are_refused(a, b):
    with pytest.raises(ValueError, match="paired series"):
        paired_ratio(a, b)
