"""Metrics and their chance bounds, held against scikit-learn and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, matthews_corrcoef

from pocketbert.core.metrics import (
    ACCURACY,
    CROSS_ENTROPY,
    chance_bound,
    classification_scores,
    confusion_counts,
    constant_f1,
    entropy,
    majority_bound,
    most_confused_labels,
    multi_label_f1,
    pearson,
    spearman,
)


def draw(seed: int, rows: int, labels: int, skill: float = 0.5) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    gold = random.integers(0, labels, rows)
    guess = random.integers(0, labels, rows)
    return gold, np.where(random.random(rows) < skill, gold, guess)


@pytest.mark.parametrize("labels", [2, 3, 7])
@pytest.mark.parametrize("skill", [0.0, 0.5, 1.0])
def test_scores_equal_scikit_learn(labels: int, skill: float) -> None:
    gold, predicted = draw(labels, 200, labels, skill)
    ours = classification_scores(gold, predicted, labels)
    assert ours["accuracy"] == pytest.approx(accuracy_score(gold, predicted), abs=1e-12)
    assert ours["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro"), abs=1e-12)
    assert ours["mcc"] == pytest.approx(matthews_corrcoef(gold, predicted), abs=1e-12)
    theirs = confusion_matrix(gold, predicted, labels=range(labels))
    np.testing.assert_array_equal(confusion_counts(gold, predicted, labels), theirs)


def test_scores_entropy_and_confused_pairs_by_hand() -> None:
    gold, predicted = np.array([0, 0, 1]), np.array([0, 1, 1])
    without = f1_score(gold, predicted, average="macro", labels=[0, 1])
    assert classification_scores(gold, predicted, 5)["macro_f1"] == pytest.approx(without)
    assert classification_scores(gold, np.zeros(3, np.int64), 2)["mcc"] == 0.0
    none = np.zeros(0, np.int64)
    assert math.isnan(classification_scores(none, none, 2)["accuracy"])
    assert math.isnan(majority_bound(none, 2))
    assert entropy(np.array([3, 3, 7, 9])) == pytest.approx(1.5 * math.log(2))
    assert entropy(np.array([5, 5])) == 0.0
    counts = np.array([[50, 2, 0], [7, 60, 0], [0, 3, 9]])
    assert most_confused_labels(counts, ["a", "b", "c"], most=2) == [("b", "a", 7), ("c", "b", 3)]
    assert most_confused_labels(counts, ["a", "b", "c"]) == [("b", "a", 7), ("c", "b", 3), ("a", "b", 2)]


def test_what_was_lost_is_told_in_the_unit_of_the_metric() -> None:
    assert ACCURACY.drop(0.90, 0.88) == pytest.approx(0.02)
    assert ACCURACY.drop(0.90, 0.95) == pytest.approx(-0.05)
    assert CROSS_ENTROPY.drop(2.0, 2.1) == pytest.approx(0.05)
    assert ACCURACY.kept(0.8, 0.6) == pytest.approx(0.75)
    assert CROSS_ENTROPY.kept(1.0, 2.0) == pytest.approx(0.5)
    assert math.isnan(ACCURACY.kept(0.0, 0.5))
    assert ACCURACY.format(0.9125) == "91.25"
    assert CROSS_ENTROPY.format(1.25) == "1.2500 nats"
    assert ACCURACY.format(float("nan")) == "not a number"
    assert ACCURACY.lost(-1e-6) == "no difference", "not -0.00 points"
    assert (CROSS_ENTROPY.lost(0.05), ACCURACY.lost(0.0025)) == ("5.00 per cent worse", "0.25 points worse")
    assert (ACCURACY.lost(-0.0042), ACCURACY.lost(float("nan"))) == ("0.42 points better", "not comparable")
    assert CROSS_ENTROPY.beats(1.0, 2.0)
    assert not CROSS_ENTROPY.beats(2.0, 1.0)
    assert not CROSS_ENTROPY.beats(math.nan, 1.0)
    assert not ACCURACY.beats(math.nan, 0.1)


def test_chance_by_hand_and_correlations_of_numbers_far_from_zero() -> None:
    gold = np.array([0] * 60 + [1] * 40)
    assert majority_bound(gold, 2) == pytest.approx(0.6 + 3 * math.sqrt(0.6 * 0.4 / 100))
    assert majority_bound(np.zeros(5, np.int64), 2) == 1.0
    assert chance_bound(0.2, 100) == pytest.approx(0.2 + 3 * 0.04)
    assert chance_bound(0.99, 4) == 1.0
    assert math.isnan(chance_bound(0.5, 0))
    gold = np.array([0.0, 1, 2, 3], np.float32)
    assert pearson(gold, (gold + 1e6).astype(np.float32)) == pytest.approx(1.0)
    assert math.isnan(pearson(gold, np.array([1, np.nan, 2, 3])))


NUMBERS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=30)


@given(NUMBERS)
def test_correlations_equal_scipy_with_and_without_ties(pairs: list[tuple[int, int]]) -> None:
    gold, values = np.array(pairs, np.float64).T
    if len(set(gold)) == 1 or len(set(values)) == 1:
        assert (pearson(gold, values), spearman(gold, values)) == (0.0, 0.0)
        return
    assert pearson(gold, values) == pytest.approx(pearsonr(gold, values).statistic, abs=1e-12)
    assert spearman(gold, values) == pytest.approx(spearmanr(gold, values).statistic, abs=1e-12)


@settings(max_examples=40)
@given(st.integers(0, 9999))
def test_micro_f1_and_the_best_constant_answer(seed: int) -> None:
    draw = np.random.default_rng(seed)
    gold, found = draw.random((7, 4)) < 0.3, draw.random((7, 4)) < 0.3
    assert multi_label_f1(gold, found) == pytest.approx(f1_score(gold, found, average="micro", zero_division=0))
    every = (np.array([bool(n >> i & 1) for i in range(4)]) for n in range(1, 16))
    best = max(2 * (gold & answer).sum() / (gold.sum() + 7 * answer.sum()) for answer in every)
    assert constant_f1(gold) == pytest.approx(best)
    none = np.zeros((3, 2), bool)
    assert multi_label_f1(none, none) == constant_f1(none) == 0.0
