"""Temperatures and thresholds: the fits against scipy, their laws, and the calibration error by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import binom

from pocketbert.core.metrics import ACCURACY, CROSS_ENTROPY, MEAN_OF_HEADS
from pocketbert.core.predict.scores import (
    LEAST_FIT_ROWS,
    Score,
    _binomial_tail,
    apply_score_function,
    apply_temperature,
    calibration_error,
    fit_temperature,
    fit_threshold,
    measure_coverage,
)
from pocketbert.core.tasks import ScoreFunction

TEMPERATURES = st.floats(0.1, 10)
LOGITS = arrays(np.float32, (8, 5), elements=st.floats(-30, 30, width=32))


def softmax(logits: np.ndarray) -> np.ndarray:
    return apply_score_function(logits, ScoreFunction.SOFTMAX)


def loss(logits: np.ndarray, gold: np.ndarray, temperature: float) -> float:
    return -float(log_softmax(logits.astype(np.float64) / temperature, axis=-1)[np.arange(len(gold)), gold].mean())


def draw_logits(temperature: float, rows: int = 4000, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits, and labels that follow their softmax at a temperature."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 2, (rows, 4)).astype(np.float32)
    chances = softmax(logits / temperature).cumsum(-1)
    return logits, (random.random((rows, 1)) > chances).sum(-1).clip(0, 3)


@settings(max_examples=40)
@given(LOGITS, TEMPERATURES)
def test_a_temperature_never_changes_the_label(logits: np.ndarray, temperature: float) -> None:
    scaled = apply_temperature(logits, temperature)
    best = logits.argmax(-1)
    assert (scaled.argmax(-1) == best).all()
    scores = softmax(scaled)
    assert (scores[np.arange(len(best)), best] == scores.max(-1)).all()
    assert apply_temperature(logits, 1.0) is logits
    # probabilities are scaled like the logits that they are made of
    np.testing.assert_allclose(apply_temperature(softmax(logits), temperature, inside=True), scores, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_labels_were_drawn_at_is_found(temperature: float) -> None:
    logits, gold = draw_logits(temperature)
    fit = fit_temperature(logits, gold)
    assert fit.temperature == pytest.approx(temperature, rel=0.08)
    exact = minimize_scalar(
        lambda t: loss(logits, gold, t), bounds=(0.1, 10), method="bounded", options={"xatol": 1e-6}
    )
    assert fit.temperature == pytest.approx(exact.x, abs=2e-4)


@settings(max_examples=25)
@given(st.integers(0, 500), st.floats(0.2, 5))
def test_the_likelihood_on_the_rows_of_the_fit_never_gets_worse(seed: int, temperature: float) -> None:
    logits, gold = draw_logits(temperature, LEAST_FIT_ROWS, seed)
    fit = fit_temperature(logits, gold)
    assert loss(logits, gold, fit.temperature) <= loss(logits, gold, 1.0) + 1e-9


def test_nothing_is_fitted_where_the_rows_do_not_show_it() -> None:
    logits, gold = draw_logits(2.0, 200)
    broken = logits.copy()
    broken[7, 1] = np.nan
    for rows, labels, why in (
        (logits[:99], gold[:99], "99 held-out rows are too few to fit a temperature; at least 100 are needed"),
        (logits, logits.argmax(-1), "each smaller one fits them better"),
        (logits, logits.argmin(-1), "each larger one fits them better"),
        (broken, gold, "the file answers numbers that are not finite"),
    ):
        fit = fit_temperature(rows, labels)
        assert fit.temperature == 1.0
        assert why in fit.why_not
    sure, right = draw_answers(LEAST_FIT_ROWS)
    assert fit_threshold(sure[1:], right[1:], 0.8).why_not.startswith("99 held-out rows are too few")
    sure[3] = np.nan
    assert fit_threshold(sure, right, 0.8).why_not == "the file answers numbers that are not finite"


# The calibration error


def test_the_calibration_error_by_hand() -> None:
    # two rows in the bin (0.8, 13/15], one of them right; one right row in (14/15, 1]
    scores = np.array([[0.85, 0.15], [0.15, 0.85], [0.0, 1.0]])
    assert calibration_error(scores, np.array([0, 0, 1])) == pytest.approx(2 / 3 * abs(0.5 - 0.85))
    # 0.8 is the upper end of its bin, not the lower end of the next one: the two rows are of different bins
    apart = np.array([[0.8, 0.2], [0.81, 0.19]])
    assert calibration_error(apart, np.array([0, 1])) == pytest.approx((0.2 + 0.81) / 2)
    assert calibration_error(scores[:0], np.array([], int)) == 0.0


def test_the_calibration_error_is_that_of_the_definition_and_a_fit_makes_it_smaller() -> None:
    logits, gold = draw_logits(2.5)
    scores = softmax(logits)
    sure, right = scores.max(-1), scores.argmax(-1) == gold
    expected = 0.0
    for number in range(15):
        inside = (sure > number / 15) & (sure <= (number + 1) / 15)
        if inside.any():
            expected += inside.sum() / len(gold) * abs(right[inside].mean() - sure[inside].mean())
    assert calibration_error(scores, gold) == pytest.approx(expected, abs=1e-12)
    others, truth = draw_logits(2.5, seed=2)
    scaled = softmax(apply_temperature(others, fit_temperature(logits, gold).temperature))
    assert calibration_error(scaled, truth) < calibration_error(softmax(others), truth) / 3


# Thresholds for unknown answers


def draw_answers(rows: int, seed: int = 1, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw largest probabilities, and answers that are right as often as these say, or more seldom by a shift."""
    random = np.random.default_rng(seed)
    sure = random.uniform(0.34, 1, rows)
    return sure, random.random(rows) < sure - shift


@settings(max_examples=40)
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
    assert binom.cdf(45, 590, 0.1) > 0.05 / 4 > binom.cdf(40, 580, 0.1)
    told = measure_coverage(sure, right, found)
    assert (told.share, told.accuracy) == (0.58, pytest.approx(540 / 580))
    assert found == pytest.approx(sure[420], abs=1e-4)
    assert measure_coverage(sure[:9], right[:9], 0.6).accuracy is None, "nothing is answered"
    told = measure_coverage(np.array([0.4, 0.6, 0.6, 0.9]), np.array([True, False, True, True]), 0.6)
    assert (told.share, told.accuracy) == (0.75, pytest.approx(2 / 3))


@pytest.mark.parametrize("accuracy", [0.7, 0.75])
def test_other_rows_keep_the_accuracy(accuracy: float) -> None:
    kept = []
    for seed in range(40):
        found = fit_threshold(*draw_answers(1000, seed), accuracy).value
        assert found is not None
        # the true accuracy: of a uniform probability, right as often as it says, it is the middle of what is answered
        kept.append((found + 1) / 2 >= accuracy)
    assert np.mean(kept) >= 0.95


def test_where_all_are_right_all_are_answered() -> None:
    sure, _ = draw_answers(500)
    found = fit_threshold(sure, np.ones(500, bool), 0.95).value
    assert found is not None
    assert found <= sure.min()
    assert measure_coverage(sure, np.ones(500, bool), found).share == 1
    assert fit_threshold(np.ones(200), np.ones(200, bool), 0.9).value == 0.9999, "below a probability of 1"


def test_an_accuracy_that_no_answers_have_is_refused_with_the_nearest() -> None:
    sure, right = draw_answers(400)
    right &= np.arange(400) % 5 > 0
    fit = fit_threshold(sure, right, 0.99)
    assert fit.value is None
    assert 0.5 < fit.reached < 0.85
    assert f"do not show an accuracy of 0.99 among the surest answers; they show {fit.reached:g} at" in fit.why_not
    assert fit_threshold(sure, right, fit.reached).value is not None
    none = fit_threshold(sure, np.zeros(400, bool), 0.5)
    assert (none.value, none.reached) == (None, 0.0)
    assert none.why_not.endswith("they show none")


def test_what_several_heads_keep_is_that_of_the_heads_that_both_are_scored_for() -> None:
    def join(**values: float | None) -> Score:
        heads = {
            name: Score.of(ACCURACY, value or 0.0, {}, 100 if value else 0, 0.1, True) for name, value in values.items()
        }
        mean = float(np.mean([value for value in values.values() if value]))
        return Score.of(MEAN_OF_HEADS, mean, {}, 100, 0.1, True).model_copy(update={"heads": heads})

    teacher, student = join(intent=0.9, slots=None), join(intent=0.81, slots=0.5)
    assert student.share_kept(teacher) == pytest.approx(0.9), "nobody taught the slots"
    assert student.share_kept(join(intent=0.9, slots=0.5)) == pytest.approx(1.31 / 1.4)
    one = Score.of(ACCURACY, 0.8, {}, 100, 0.1, True)
    assert one.share_kept(Score.of(ACCURACY, 1.0, {}, 100, 0.1, True)) == 0.8
    loss = [Score.of(CROSS_ENTROPY, value, {}, 100, 9.0, True) for value in (2.0, 2.5)]
    assert loss[1].share_kept(loss[0]) == 0.8, "lower is better"
