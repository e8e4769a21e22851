from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pocketbert.core.compare.evaluate import EvalSet, _score, label_agreement, logit_spread, rms_error, worst_difference
from pocketbert.core.data.examples import Example
from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import Prepared, make_head
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.scores import Score, apply_score_function
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
MATRIX = hnp.arrays(np.float64, (4, 3), elements=st.floats(-50, 50))


HEAD = make_head(TASK, Labels(("a", "b", "c")))


def row(size: int) -> Encoded:
    return Encoded(np.arange(size), np.zeros(size, np.int64), False)


def rows_of(gold: list[int], sizes: list[int]) -> EvalSet:
    examples = [Example(f"text {i}", None, label, i) for i, label in enumerate(gold, 1)]
    encoded = [row(size) for size in sizes]
    return EvalSet("eval", HEAD, Prepared(examples, encoded, np.arange(len(gold)), truth=np.array(gold)))


def scored(logits: np.ndarray, gold: list[int]) -> Score:
    return _score([one[None] for one in logits], rows_of(gold, [3] * len(gold)))


def test_logits_are_scored() -> None:
    logits = np.array([[2, 1, 0], [0, 1, 2], [0, 3, 1], [5, 1, 0]], np.float32)
    found = scored(logits, [0, 2, 1, 2])
    assert (found.metric, found.value, found.rows, found.finite) == ("accuracy", 0.75, 4, True)
    assert set(found.others) == {"macro_f1", "mcc"}


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 3])
def test_one_number_that_is_not_finite_spoils_the_score(broken: float, row: int) -> None:
    logits = np.eye(4, 3, dtype=np.float32)
    logits[row, 2] = broken
    found = scored(logits, [0, 1, 2, 0])
    assert math.isnan(found.value)
    assert not found.finite


@given(MATRIX, MATRIX, st.integers(0, 3), st.integers(0, 2))
def test_the_worst_difference_keeps_a_nan(a: np.ndarray, b: np.ndarray, row: int, column: int) -> None:
    assert worst_difference(a, b) == pytest.approx(np.abs(a - b).max())
    a[row, column] = np.nan
    assert math.isnan(worst_difference(a, b))
    assert math.isnan(rms_error(a, b))
    assert label_agreement(a, b) == 0.0


def test_another_shape_is_no_agreement() -> None:
    assert math.isnan(worst_difference(np.zeros((2, 3)), np.zeros((2, 1))))
    assert worst_difference(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
    assert worst_difference(np.array([np.inf]), np.array([0.0])) == math.inf


@given(MATRIX, st.floats(-1000, 1000))
def test_offsets_of_a_class_do_not_change_the_spread(logits: np.ndarray, offset: float) -> None:
    moved = logits + np.array([offset, 0, -offset])
    assert logit_spread(moved) == pytest.approx(logit_spread(logits), abs=1e-6)
    assert logit_spread(logits) == pytest.approx(logits.std(0).max())


def test_rms_error_is_relative_to_the_spread() -> None:
    reference = np.array([[0.0, 1.0], [2.0, -1.0]])
    assert rms_error(reference, reference) == 0.0
    assert rms_error(reference + 0.5, reference) == pytest.approx(0.5 / logit_spread(reference))


def test_agreement_is_the_share_of_equal_answers() -> None:
    a, b = np.array([[1.0, 0], [0, 1], [0, 1], [1, 0]]), np.array([[2.0, 1], [1, 0], [0, 9], [1, 0]])
    assert label_agreement(a, b) == 0.75


@given(MATRIX)
def test_softmax_adds_up_to_one_and_keeps_the_order(logits: np.ndarray) -> None:
    scores = apply_score_function(logits * 100, ScoreFunction.SOFTMAX)
    np.testing.assert_allclose(scores.sum(-1), 1)
    best = np.take_along_axis(scores, logits.argmax(-1)[:, None], -1)
    np.testing.assert_array_equal(best[:, 0], scores.max(-1))


def test_sigmoid_and_none() -> None:
    np.testing.assert_allclose(
        apply_score_function(np.array([0.0, 2.0]), ScoreFunction.SIGMOID), [0.5, 1 / (1 + math.exp(-2))]
    )
    np.testing.assert_array_equal(apply_score_function(np.array([0.5, -3.0]), ScoreFunction.NONE), [0.5, -3.0])


def test_rows_within_a_length_are_cut_and_the_labels_stay() -> None:
    rows = rows_of([0, 1, 0], [3, 9, 5])
    assert rows.within(9).rows is rows.rows
    short = rows.within(5)
    assert [len(e) for e in short.rows.encoded] == [3, 5, 5]
    assert [e.truncated for e in short.rows.encoded] == [False, True, False]
    assert short.rows.encoded[1].ids.tolist() == [0, 1, 2, 3, 8]
    assert (short.name, short.head) == ("eval", HEAD)
    assert np.asarray(short.rows.truth).tolist() == [0, 1, 0]
    assert [len(e) for e in rows.rows.encoded] == [3, 9, 5]
