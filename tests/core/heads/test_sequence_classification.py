"""Heads with one row of outputs per text: one label, several labels, a number."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import AnswerSettings, Head, make_head
from pocketbert.core.heads.sequence_classification import fit_label_thresholds
from pocketbert.core.predict.answers import Prediction, Value, mark_unknown_answers
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import ScoreFunction, task_of
from support.head_rows import check_not_finite_spoils, make_rows, score_outputs

NAMES = ("bad", "so so", "good")
ONE = make_head(task_of("text-classification"), Labels(NAMES))
SEVERAL_TASK, SEVERAL_LABELS = task_of("multi-label"), Labels(("joy", "anger", "fear"))
SEVERAL = make_head(SEVERAL_TASK, SEVERAL_LABELS)
NUMBER = make_head(task_of("regression"), Labels(()))
RERANKER = make_head(replace(task_of("regression"), score=ScoreFunction.SIGMOID), Labels(()))


def prepare(head: Head, tokenizer: TextTokenizer, gold: list[Any]) -> Any:
    return head.prepare(make_rows(*((f"good {'day ' * i}", g) for i, g in enumerate(gold))), tokenizer, "a.csv")


def prepare_texts(head: Head, folder: Path, count: int = 2) -> Any:
    """A short text and long ones, without labels, for a model that takes 6 tokens."""
    rows = make_rows(("good", None), *(("bad " * 9, None),) * (count - 1))
    return head.prepare(rows, TextTokenizer(folder, 6), "texts", labelled=False)


def outputs(values: Any) -> list[np.ndarray]:
    return [np.atleast_1d(np.asarray(v, np.float32))[None] for v in values]


# One label

GOLD = ["good", "bad", "good", "so so", "bad", "good"]
IDS = [2, 0, 2, 1, 0, 2]


def test_names_become_targets_and_chance_is_the_commonest(tokenizer: TextTokenizer) -> None:
    made = prepare(ONE, tokenizer, GOLD)
    assert np.asarray(made.targets["labels"]).tolist() == IDS
    assert made.owner.tolist() == list(range(6))
    assert [len(e) for e in made.encoded] == [3, 4, 5, 6, 7, 8]
    with pytest.raises(InputError, match="a.csv:2: label 'god'.*did you mean 'good'"):
        prepare(ONE, tokenizer, ["bad", "god"])
    made = prepare(ONE, tokenizer, GOLD * 20)
    score = score_outputs(ONE, made, outputs(np.eye(3)[IDS * 20]))
    assert (score.metric, score.value, score.rows, score.finite) == ("accuracy", 1.0, 120, True)
    assert score.others == {"macro_f1": 1.0, "mcc": pytest.approx(1.0)}
    assert score.chance == pytest.approx(0.5 + 3 * math.sqrt(0.25 / 120))
    assert score_outputs(ONE, made, outputs(np.eye(3)[[2] * 120])).value == 0.5


@settings(max_examples=25)
@given(st.permutations(range(3)), st.integers(0, 99))
def test_labels_and_logits_in_another_order_score_the_same(folder: Path, order: list[int], seed: int) -> None:
    tokenizer = TextTokenizer(folder, 32)
    logits = np.random.default_rng(seed).normal(size=(6, 3))
    other = make_head(task_of("text-classification"), Labels(tuple(NAMES[i] for i in order)))
    first = score_outputs(ONE, prepare(ONE, tokenizer, GOLD), outputs(logits))
    second = score_outputs(other, prepare(other, tokenizer, GOLD), outputs(logits[:, order]))
    assert second.value == first.value == np.mean(logits.argmax(1) == IDS)
    assert second.others == pytest.approx(first.others)


def test_answers_are_probabilities(folder: Path) -> None:
    made = prepare_texts(ONE, folder)
    logits = [[0.0, 1.0, 3.0], [2.0, 0.0, 2.0 - 1e-3]]
    first, second = ONE.answers(outputs(logits), made)
    assert isinstance(first, Prediction)
    assert isinstance(second, Prediction)
    share = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert (first.label, second.label) == ("good", "bad")
    assert first.scores == pytest.approx(dict(zip(NAMES, share, strict=True)))
    assert first.score == pytest.approx(share[2])
    assert (first.truncated, second.truncated) == (False, True)
    [inside, _] = ONE.answers(outputs([[0.0, 0.1, 0.3], [1, 0, 0]]), made, inside=True)
    assert inside.scores == pytest.approx({"bad": 0, "so so": 0.1, "good": 0.3})


@pytest.mark.parametrize(
    ("least", "unknown"),
    [
        ([None, None], [None, None]),
        ([0.6, 0.6], [True, False]),
        ([0.99, 0.99], [True, True]),
        ([0.6, None], [True, None]),
    ],
)
def test_an_answer_below_the_threshold_is_unknown(folder: Path, least: list[Any], unknown: list[Any]) -> None:
    answers = ONE.answers(outputs([[0.0, 0.0, np.log(2.0)], [0.0, 0.0, 5.0]]), prepare_texts(ONE, folder))
    found: Any = mark_unknown_answers(answers, least)
    assert [(a.label, a.unknown) for a in found] == [("good", u) for u in unknown]


# Several labels

SETS = [("joy",), (), ("anger", "joy"), ("fear",)]
TRUTH = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1]], bool)


def test_several_labels_become_ones_and_chance_is_the_best_constant_answer(tokenizer: TextTokenizer) -> None:
    labels = np.asarray(prepare(SEVERAL, tokenizer, SETS).targets["labels"])
    assert labels.dtype == np.float32
    assert labels.tolist() == TRUTH.astype(float).tolist()
    with pytest.raises(InputError, match="a.csv:1: label 'joyy'.*did you mean 'joy'"):
        prepare(SEVERAL, tokenizer, [("fear", "joyy")])
    made = prepare(SEVERAL, tokenizer, SETS * 25)
    score = score_outputs(SEVERAL, made, outputs(np.tile(TRUTH, (25, 1)) * 8.0 - 4))
    assert (score.metric, score.value, score.others) == ("micro_f1", 1.0, {"exact_rows": 1.0})
    # of 4 rows with 2, 1, 1 labels: {joy} 2*2/(4+4) = 1/2, {joy, anger} 2*3/(8+4) = 1/2, all 2*4/(12+4) = 1/2
    assert score.chance == pytest.approx(0.5 + 3 * math.sqrt(0.25 / 100))
    assert score_outputs(SEVERAL, made, outputs(np.full((100, 3), -9))).value == 0.0


@settings(max_examples=25)
@given(st.integers(0, 999))
def test_scores_of_several_labels_equal_scikit_learn(folder: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    logits, truth = draw.normal(size=(6, 3)), draw.random((6, 3)) < 0.4
    gold = [tuple(n for n, t in zip(SEVERAL_LABELS.names, row, strict=True) if t) for row in truth]
    score = score_outputs(SEVERAL, prepare(SEVERAL, TextTokenizer(folder, 32), gold), outputs(logits))
    assert score.value == pytest.approx(f1_score(truth, logits >= 0, average="micro", zero_division=0))
    assert score.others["exact_rows"] == pytest.approx((truth == (logits >= 0)).all(1).mean())


@pytest.mark.parametrize(
    ("thresholds", "labels", "f1"),
    [
        ([0.9, 0.2, 0.5], ("fear", "anger"), 1.0),  # the most probable first
        (0.2, ("joy", "fear", "anger"), 0.8),
        (None, ("joy", "fear"), 0.5),
    ],
)
def test_every_label_has_its_own_threshold(
    tokenizer: TextTokenizer, thresholds: Any, labels: tuple[str, ...], f1: float
) -> None:
    head = make_head(SEVERAL_TASK, SEVERAL_LABELS, AnswerSettings(thresholds=thresholds))
    chances = np.array([[0.85, 0.25, 0.6]])
    logits = outputs(np.log(chances / (1 - chances)))
    made = prepare(head, tokenizer, [("anger", "fear")])
    assert score_outputs(head, made, logits).value == pytest.approx(f1)
    [answer] = head.answers(logits, made)
    assert answer.labels == labels
    assert answer.scores == pytest.approx({"joy": 0.85, "anger": 0.25, "fear": 0.6})
    assert head.answers(outputs(chances), made, inside=True)[0].labels == labels


@settings(max_examples=25)
@given(st.integers(0, 999))
def test_chosen_thresholds_are_the_best_hundredths(seed: int) -> None:
    draw = np.random.default_rng(seed)
    logits, gold = draw.normal(size=(20, 2)).astype(np.float32), draw.random((20, 2)) < 0.4
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    for i, threshold in enumerate(fit_label_thresholds(logits, gold)):
        f1 = {}
        for t in range(5, 96):
            found = scores[:, i] >= t / 100
            f1[t / 100] = 2 * (found & gold[:, i]).sum() / max(1, found.sum() + gold[:, i].sum())
        best = [t for t, value in f1.items() if value >= max(f1.values()) - 1e-12]
        assert threshold == pytest.approx(min(best, key=lambda t: abs(t - 0.5)))


def test_a_label_without_rows_keeps_one_half() -> None:
    gold = np.array([[True, False], [False, False]])
    assert fit_label_thresholds(np.array([[-2.0, 4], [-3, 4]], np.float32), gold) == [pytest.approx(0.11), 0.5]


# A number


def test_chance_of_a_number_is_three_standard_errors(tokenizer: TextTokenizer, folder: Path) -> None:
    gold = [0.0, 2.5, 5.0, 1.25, 2.5]
    made = prepare(NUMBER, tokenizer, gold * 20)
    assert np.asarray(made.targets["labels"]).dtype == np.float32
    score = score_outputs(NUMBER, made, outputs(np.array(gold * 20) * -2 + 7))
    assert (score.metric, score.rows, score.chance) == ("pearson", 100, pytest.approx(0.3))
    assert score.others["rmse"] == pytest.approx(math.sqrt(np.mean((3 * np.array(gold) - 7) ** 2)))
    assert not prepare_texts(NUMBER, folder).targets


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=12))
def test_scores_of_numbers_equal_scipy(folder: Path, pairs: list[tuple[int, int]]) -> None:
    gold, values = (list(map(float, side)) for side in zip(*pairs, strict=True))
    score = score_outputs(NUMBER, prepare(NUMBER, TextTokenizer(folder, 32), gold), outputs(values))
    if len(set(gold)) > 1 and len(set(values)) > 1:
        assert score.value == pytest.approx(pearsonr(gold, values).statistic, abs=1e-9)
        assert score.others["spearman"] == pytest.approx(spearmanr(gold, values).statistic, abs=1e-9)


def test_a_reranker_answers_and_is_scored_through_a_sigmoid(folder: Path, tokenizer: TextTokenizer) -> None:
    assert NUMBER.answers(outputs([0.5, -2]), prepare_texts(NUMBER, folder)) == [Value(0.5, False), Value(-2.0, True)]
    answers = RERANKER.answers(outputs([0.0, 2.0, -800.0]), prepare_texts(RERANKER, folder, 3))
    assert [a.fields()["value"] for a in answers] == pytest.approx([0.5, 0.880797, 0.0], abs=1e-6)
    gold, logits = [0.0, 1.0, 0.5, 0.1], [-3.0, 4.0, 0.2, -1.0]
    score = score_outputs(RERANKER, prepare(RERANKER, tokenizer, gold), outputs(logits))
    assert score.value == pytest.approx(pearsonr(gold, 1 / (1 + np.exp(-np.array(logits))))[0])
    with pytest.raises(InputError, match=r"1 labels are not between 0 and 1, the first is 2.5 in row 2"):
        prepare(RERANKER, tokenizer, [1.0, 2.5])


@pytest.mark.parametrize(
    ("head", "gold", "width"), [(ONE, ["good", "bad"], 3), (SEVERAL, SETS[:2], 3), (NUMBER, [1.0, 2.0], 1)]
)
def test_one_number_that_is_not_finite_spoils_the_score(
    tokenizer: TextTokenizer, head: Head, gold: list[Any], width: int
) -> None:
    check_not_finite_spoils(
        head, prepare(head, tokenizer, gold), outputs(np.eye(2, width)), [(1, 0, 0), (0, 0, width - 1)]
    )
