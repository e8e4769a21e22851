"""Thresholds for unknown answers: the binomial test against scipy, what is found, and that new rows keep the accuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from pocketbert.core.predict.scores import LEAST_FIT_ROWS, _binomial_tail, fit_threshold, measure_coverage


def drawn(rows: int, seed: int = 1, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Largest probabilities, and answers that are right as often as these say, or more seldom by a shift."""
    random = np.random.default_rng(seed)
    sure = random.uniform(0.34, 1, rows)
    return sure, random.random(rows) < sure - shift


@given(st.integers(0, 400), st.integers(0, 400), st.floats(0.001, 0.6))
def test_the_test_is_the_exact_binomial_one(wrong: int, right: int, risk: float) -> None:
    assert _binomial_tail(wrong, wrong + right, risk) == pytest.approx(binom.cdf(wrong, wrong + right, risk), abs=1e-9)


def test_the_threshold_by_hand() -> None:
    # the surer half is right, of the others every second one is
    sure = np.linspace(0.4, 0.9, 1000)
    right = (sure >= 0.65) | (np.arange(1000) % 2 == 0)
    found = fit_threshold(sure, right, 0.9).value
    assert found is not None
    # 580 answers with 40 wrong ones are far fewer than 10 %, 590 with 45 are not
    assert _binomial_tail(45, 590, 0.1) > 0.05 / 4 > _binomial_tail(40, 580, 0.1)
    told = measure_coverage(sure, right, found)
    assert (told.share, told.accuracy) == (0.58, pytest.approx(540 / 580))
    assert found == pytest.approx(sure[420], abs=1e-4)


@pytest.mark.parametrize("accuracy", [0.7, 0.75])
def test_other_rows_keep_the_accuracy(accuracy: float) -> None:
    kept = []
    for seed in range(40):
        sure, right = drawn(1000, seed)
        found = fit_threshold(sure, right, accuracy).value
        assert found is not None
        # the true accuracy: of a uniform probability, right as often as it says, it is the middle of what is answered
        kept.append((found + 1) / 2 >= accuracy)
    assert np.mean(kept) >= 0.95


def test_a_file_that_is_less_often_right_gets_a_higher_threshold() -> None:
    good, bad = (fit_threshold(*drawn(3000, 2, shift), 0.8).value for shift in (0.0, 0.08))
    assert good is not None
    assert bad is not None
    assert bad > good + 0.03


def test_where_all_are_right_all_are_answered() -> None:
    sure, _ = drawn(500)
    found = fit_threshold(sure, np.ones(500, bool), 0.95).value
    assert found is not None
    assert found <= sure.min()
    assert measure_coverage(sure, np.ones(500, bool), found).share == 1


def test_a_probability_of_1_gives_a_threshold_below() -> None:
    assert fit_threshold(np.ones(200), np.ones(200, bool), 0.9).value == 0.9999


def test_an_accuracy_that_no_answers_have_is_refused_with_the_nearest() -> None:
    sure, right = drawn(400)
    right &= np.arange(400) % 5 > 0
    fit = fit_threshold(sure, right, 0.99)
    assert fit.value is None
    assert 0.5 < fit.reached < 0.85
    assert fit.why_not == (
        f"400 held-out rows do not show an accuracy of 0.99 among the surest answers; they show {fit.reached:g} at most"
    )
    assert fit_threshold(sure, right, fit.reached).value is not None
    none = fit_threshold(sure, np.zeros(400, bool), 0.5)
    assert (none.value, none.reached) == (None, 0.0)
    assert none.why_not.endswith("they show none")


def test_nothing_is_fitted_on_too_few_rows_or_numbers_that_are_not_finite() -> None:
    sure, right = drawn(LEAST_FIT_ROWS - 1)
    assert fit_threshold(sure, right, 0.8).why_not.startswith("99 held-out rows are too few to fit a threshold")
    sure, right = drawn(LEAST_FIT_ROWS)
    sure[3] = np.nan
    assert fit_threshold(sure, right, 0.8).why_not == "the file answers numbers that are not finite"


def test_share_and_accuracy_of_the_answered() -> None:
    told = measure_coverage(np.array([0.4, 0.6, 0.6, 0.9]), np.array([True, False, True, True]), 0.6)
    assert (told.share, told.accuracy) == (0.75, pytest.approx(2 / 3))
    nothing = measure_coverage(np.array([0.4]), np.array([True]), 0.6)
    assert (nothing.share, nothing.accuracy) == (0, None)
