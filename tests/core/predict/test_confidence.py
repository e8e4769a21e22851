"""Temperatures: the laws of scaling, the fit against scipy, and the calibration error by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize_scalar

from pocketbert.core.predict.scores import (
    LEAST_FIT_ROWS,
    _negative_log_likelihood,
    apply_score_function,
    apply_temperature,
    calibration_error,
    fit_temperature,
)
from pocketbert.core.tasks import ScoreFunction

TEMPERATURES = st.floats(0.1, 10)
LOGITS = arrays(np.float32, (8, 5), elements=st.floats(-30, 30, width=32))


def softmax(logits: np.ndarray) -> np.ndarray:
    return apply_score_function(logits, ScoreFunction.SOFTMAX)


def drawn(temperature: float, rows: int = 4000, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels that follow their softmax at a temperature."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (rows, 4)).astype(np.float32)
    chances = softmax(logits / temperature).cumsum(-1)
    return logits, (random.random((rows, 1)) > chances).sum(-1).clip(0, 3)


@given(LOGITS, TEMPERATURES)
def test_the_label_never_changes(logits: np.ndarray, temperature: float) -> None:
    scaled = apply_temperature(logits, temperature)
    best = logits.argmax(-1)
    assert (scaled.argmax(-1) == best).all()
    scores = softmax(scaled)
    assert (scores[np.arange(len(best)), best] == scores.max(-1)).all()


@given(LOGITS, TEMPERATURES)
def test_probabilities_are_scaled_like_the_logits_that_they_are_made_of(logits: np.ndarray, temperature: float) -> None:
    inside = apply_temperature(softmax(logits), temperature, inside=True)
    np.testing.assert_allclose(inside, softmax(apply_temperature(logits, temperature)), atol=1e-6)


@given(LOGITS)
def test_temperature_1_leaves_numbers_as_they_are(logits: np.ndarray) -> None:
    assert apply_temperature(logits, 1.0) is logits


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_labels_were_drawn_at_is_found(temperature: float) -> None:
    logits, gold = drawn(temperature)
    fit = fit_temperature(logits, gold)
    assert fit.temperature == pytest.approx(temperature, rel=0.08)
    exact = minimize_scalar(
        lambda t: _negative_log_likelihood(logits, gold, t), bounds=(0.1, 10), method="bounded", options={"xatol": 1e-6}
    )
    assert fit.temperature == pytest.approx(exact.x, abs=2e-4)


@given(st.integers(0, 500), st.floats(0.2, 5))
def test_the_likelihood_on_the_rows_of_the_fit_never_gets_worse(seed: int, temperature: float) -> None:
    logits, gold = drawn(temperature, LEAST_FIT_ROWS, seed)
    fit = fit_temperature(logits, gold)
    assert _negative_log_likelihood(logits, gold, fit.temperature) <= _negative_log_likelihood(logits, gold)


def test_nothing_is_fitted_on_too_few_rows_or_on_answers_that_are_all_right() -> None:
    logits, gold = drawn(2.0, LEAST_FIT_ROWS - 1)
    few = fit_temperature(logits, gold)
    assert (few.temperature, few.why_not) == (
        1.0,
        "99 held-out rows are too few to fit a temperature; at least 100 are needed",
    )
    logits, _ = drawn(2.0, 200)
    right = fit_temperature(logits, logits.argmax(-1))
    assert right.temperature == 1.0
    assert "each smaller one fits them better" in right.why_not
    wrong = fit_temperature(logits, logits.argmin(-1))
    assert "each larger one fits them better" in wrong.why_not


def test_nothing_is_fitted_on_numbers_that_are_not_finite() -> None:
    logits, gold = drawn(2.0, 200)
    logits[7, 1] = np.nan
    fit = fit_temperature(logits, gold)
    assert (fit.temperature, fit.why_not) == (1.0, "the file answers numbers that are not finite")


def test_the_likelihood_by_hand() -> None:
    logits, gold = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), np.array([0, 2])
    assert _negative_log_likelihood(logits, gold) == pytest.approx(-(np.log(0.5) + np.log(0.1)) / 2)


def test_the_calibration_error_by_hand() -> None:
    # two rows in the bin (0.8, 13/15], one of them right; one right row in (14/15, 1]
    scores = np.array([[0.85, 0.15], [0.15, 0.85], [0.0, 1.0]])
    assert calibration_error(scores, np.array([0, 0, 1])) == pytest.approx(2 / 3 * abs(0.5 - 0.85))
    # 0.8 is the upper end of its bin, not the lower end of the next one: the two rows are of different bins
    apart = np.array([[0.8, 0.2], [0.81, 0.19]])
    assert calibration_error(apart, np.array([0, 1])) == pytest.approx((0.2 + 0.81) / 2)
    assert calibration_error(scores[:0], np.array([], int)) == 0.0


def test_the_calibration_error_is_that_of_the_definition() -> None:
    logits, gold = drawn(2.0, 700)
    scores = softmax(logits)
    sure, right = scores.max(-1), scores.argmax(-1) == gold
    expected = 0.0
    for number in range(15):
        inside = (sure > number / 15) & (sure <= (number + 1) / 15)
        if inside.any():
            expected += inside.sum() / len(gold) * abs(right[inside].mean() - sure[inside].mean())
    assert calibration_error(scores, gold) == pytest.approx(expected, abs=1e-12)


def test_the_right_temperature_makes_the_calibration_error_smaller() -> None:
    logits, gold = drawn(2.5)
    fitted = fit_temperature(logits, gold).temperature
    others, truth = drawn(2.5, seed=2)
    assert (
        calibration_error(softmax(apply_temperature(others, fitted)), truth)
        < calibration_error(softmax(others), truth) / 3
    )
