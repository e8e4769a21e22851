"""The statistics of two models' answers: McNemar's test and the paired bootstrap, compared with scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef

from pocketbert.core.compare.answers import RowAnswer
from pocketbert.core.compare.differences import (
    Differences,
    ScoreChange,
    check_limits,
    compare_answers,
    compare_scores,
    mcnemar,
)
from pocketbert.core.metrics import ACCURACY, EXACT_MATCH, MACRO_F1, MCC, PEARSON, Metric
from pocketbert.core.predict.examples import Example
from pocketbert.core.tasks import TASKS, TaskName


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (9, 3), (3, 9), (25, 25), (80, 50), (5000, 4900)])
def test_mcnemar_is_the_binomial_test_and_of_many_rows_chi_squared(lost: int, gained: int) -> None:
    if lost > 1000:
        statistic = (abs(lost - gained) - 1) ** 2 / (lost + gained)
        assert mcnemar(lost, gained, exact=False) == pytest.approx(stats.chi2.sf(statistic, 1))
        return
    exact = stats.binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert mcnemar(lost, gained) == mcnemar(gained, lost) == pytest.approx(exact)


def right(flags: np.ndarray) -> list[RowAnswer]:
    return [RowAnswer("", terms=(float(flag), 1.0), right=bool(flag)) for flag in flags]


def test_the_interval_of_a_drop_is_that_of_the_rows_differences() -> None:
    draw = np.random.default_rng(5)
    old = draw.random(800) < 0.9
    new = old & (draw.random(800) < 0.97)
    change = compare_scores(right(old), right(new), ACCURACY, seed=1)
    differences = old.astype(float) - new
    error = differences.std() / np.sqrt(800)
    assert change.drop == pytest.approx(differences.mean())
    assert [change.low, change.high] == pytest.approx(
        [change.drop - 1.96 * error, change.drop + 1.96 * error], abs=error / 4
    )
    assert change == compare_scores(right(old), right(new), ACCURACY, seed=1)


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        (MACRO_F1, lambda gold, given: f1_score(gold, given, average="macro")),
        (MCC, matthews_corrcoef),
        (EXACT_MATCH, lambda gold, given: np.mean([a == b for a, b in zip(gold, given, strict=True)])),
    ],
)
def test_other_metrics_than_the_deciding_one_are_computed_anew_on_each_resample(
    metric: Metric, score: Callable[[list[str], list[str]], float]
) -> None:
    draw = np.random.default_rng(7)
    gold = draw.choice(["a", "b", "c"], 400, p=[0.9, 0.07, 0.03]).tolist()
    columns = [np.where(draw.random(400) < p, gold, "a").tolist() for p in (0.9, 0.5)]
    old, new = (
        [RowAnswer("", {"": a}, {"": g}, right=a == g, terms=(0.5, 1.0)) for a, g in zip(given, gold, strict=True)]
        for given in columns
    )
    change = compare_scores(old, new, metric, seed=1)
    before, after = (score(gold, given) for given in columns)
    assert [change.old, change.new] == pytest.approx([before, after])
    assert change.drop == pytest.approx(before - after)
    assert change.low < change.drop < change.high
    assert compare_scores(old, old, metric).high == 0, "both are scored on the same rows"


def test_a_correlation_is_computed_anew_on_each_resample() -> None:
    draw = np.random.default_rng(6)
    truth = draw.normal(size=300)
    columns = [truth + draw.normal(size=300) * noise for noise in (0.3, 0.8)]
    old, new = ([RowAnswer("", value=v, truth=t) for v, t in zip(c, truth, strict=True)] for c in columns)
    change = compare_scores(old, new, PEARSON)
    assert change.old == pytest.approx(stats.pearsonr(truth, columns[0])[0])
    assert 0 < change.low < change.drop < change.high
    assert change != compare_scores(old, new, PEARSON, seed=1)


@pytest.mark.parametrize(
    ("old", "new", "limit", "passes"),
    [(0.91, 0.90, 0.01, True), (0.91, 0.8999, 0.01, False), (0.9, 0.9, 0.0, True), (0.9, float("nan"), 1.0, False)],
)
def test_a_drop_as_large_as_the_limit_passes(old: float, new: float, limit: float, passes: bool) -> None:
    drop = ACCURACY.drop(old, new)
    found = Differences(100, 0, (), score=ScoreChange("accuracy", old, new, drop, drop, drop))
    assert (not check_limits(found, limit, None)) == passes


def test_two_wordings_of_the_right_answer_are_both_right() -> None:
    def answer(words: str, is_right: bool) -> RowAnswer:
        return RowAnswer(words, {"": words}, {"": "hall"}, terms=(float(is_right), 1.0), right=is_right)

    old = [answer(words, words == "the hall") for words in ("the hall", "the hall", "a lamp", "a lamp")]
    new = [answer(words, words == "hall") for words in ("hall", "a box", "hall", "a box")]
    rows = [Example("where?", "in the hall", None, number) for number in range(1, 5)]
    found = compare_answers(old, new, rows, TASKS[TaskName.QUESTION_ANSWERING], labelled=True)
    outcomes = [(2, "lost"), (3, "gained"), (4, "both wrong"), (1, "both right")]
    assert [(flip.row, flip.outcome) for flip in found.flips] == outcomes
