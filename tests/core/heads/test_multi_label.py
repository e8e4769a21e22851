from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import AnswerSettings, make_head
from pocketbert.core.heads.sequence_classification import fit_label_thresholds
from pocketbert.core.heads.table import label_thresholds
from pocketbert.core.metrics import constant_f1
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of

TASK, LABELS = task_of("multi-label"), Labels(("joy", "anger", "fear"))
HEAD = make_head(TASK, LABELS)
GOLD = [("joy",), (), ("anger", "joy"), ("fear",)]
TRUTH = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1]], bool)


def prepared_of(rows: Any, tokenizer: TextTokenizer, gold: list[Any], head: Any = HEAD) -> Any:
    return head.prepare(rows(*((f"good {'day ' * i}", g) for i, g in enumerate(gold))), tokenizer, "a.csv")


def outputs(values: Any) -> list[np.ndarray]:
    return [np.asarray(v, np.float32)[None] for v in values]


def test_targets_are_one_where_a_label_is_given(rows: Any, tokenizer: TextTokenizer) -> None:
    made = prepared_of(rows, tokenizer, [*GOLD, ("fear", "joy")])
    labels = np.asarray(made.targets["labels"])
    assert labels.dtype == np.float32
    assert labels.tolist() == [*TRUTH.astype(float).tolist(), [1, 0, 1]]
    with pytest.raises(InputError, match="a.csv:1: label 'joyy'.*did you mean 'joy'"):
        prepared_of(rows, tokenizer, [("fear", "joyy")])


def test_perfect_outputs_and_the_best_constant_answer(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    made = prepared_of(rows, tokenizer, GOLD)
    score = scored(HEAD, made, outputs(TRUTH * 8.0 - 4))
    assert (score.metric, score.value, score.others, score.finite) == (
        "micro_f1",
        1.0,
        {"exact_rows": 1.0},
        True,
    )
    # of 4 rows with 2, 1, 1 labels: {joy} 2*2/(4+4) = 1/2, {joy, anger} 2*3/(8+4) = 1/2, all 2*4/(12+4) = 1/2
    assert constant_f1(TRUTH) == 0.5
    assert score.chance == 1.0, "0.5 + 3 * sqrt(0.25 / 4), at most 1"
    many = scored(HEAD, prepared_of(rows, tokenizer, GOLD * 25), outputs(np.tile(TRUTH, (25, 1)) * 8.0 - 4))
    assert many.chance == pytest.approx(0.5 + 3 * math.sqrt(0.25 / 100))
    assert scored(HEAD, made, outputs(np.full((4, 3), -9))).value == 0.0


@settings(max_examples=30)
@given(st.integers(0, 999), st.permutations(range(6)))
def test_scores_equal_scikit_learn_in_any_order(
    rows: Any, folder: Any, scored: Any, seed: int, order: list[int]
) -> None:
    draw = np.random.default_rng(seed)
    logits, truth = draw.normal(size=(6, 3)), draw.random((6, 3)) < 0.4
    gold = [tuple(n for n, t in zip(LABELS.names, row, strict=True) if t) for row in truth]
    made = prepared_of(rows, TextTokenizer(folder, 32), [gold[i] for i in order])
    score = scored(HEAD, made, outputs(logits[order]))
    assert score.value == pytest.approx(f1_score(truth, logits >= 0, average="micro", zero_division=0))
    assert score.others["exact_rows"] == pytest.approx((truth == (logits >= 0)).all(1).mean())


@settings(max_examples=30)
@given(st.integers(0, 999))
def test_no_fixed_set_of_labels_beats_the_constant_answer(seed: int) -> None:
    truth = np.random.default_rng(seed).random((9, 4)) < 0.3
    every = (np.array([bool(n >> i & 1) for i in range(4)]) for n in range(1, 16))
    best = max(2 * (truth & answer).sum() / (truth.sum() + 9 * answer.sum()) for answer in every)
    assert constant_f1(truth) == pytest.approx(best)


def test_a_nan_spoils_the_score(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    logits = TRUTH * 8.0 - 4
    logits[1, 2] = np.nan
    score = scored(HEAD, prepared_of(rows, tokenizer, GOLD), outputs(logits))
    assert math.isnan(score.value)
    assert not score.finite


def test_every_label_has_its_own_threshold(rows: Any, tokenizer: TextTokenizer, scored: Any) -> None:
    head = make_head(TASK, LABELS, AnswerSettings(thresholds=[0.9, 0.2, 0.5]))
    logits = np.log(np.array([[0.85, 0.25, 0.6]]) / (1 - np.array([[0.85, 0.25, 0.6]])))
    made = prepared_of(rows, tokenizer, [("anger", "fear")], head)
    assert scored(head, made, outputs(logits)).value == 1.0
    assert scored(HEAD, made, outputs(logits)).value == 0.5
    [answer] = head.answers(outputs(logits), made)
    assert answer.labels == ("fear", "anger"), "the most probable first"
    assert answer.scores == pytest.approx({"joy": 0.85, "anger": 0.25, "fear": 0.6})
    [inside] = head.answers(outputs([[0.91, 0.19, 0.49]]), made, inside=True)
    assert inside.labels == ("joy",)
    assert list(label_thresholds(AnswerSettings(thresholds=0.3), 2)) == [0.3, 0.3]
    assert list(label_thresholds(AnswerSettings(), 2)) == [0.5, 0.5]


@settings(max_examples=30)
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
