"""Scores of a predictor on labelled rows, and differences of outputs: a NaN is never lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import (
    EvalSet,
    evaluate,
    label_agreement,
    logit_spread,
    rms_error,
    worst_difference,
)
from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import Prepared, make_head
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of

HEAD = make_head(task_of("text-classification"), Labels(("a", "b", "c")))
MATRIX = hnp.arrays(np.float64, (4, 3), elements=st.floats(-50, 50))
LOGITS = np.array([[2, 1, 0], [0, 1, 2], [0, 3, 1], [5, 1, 0]], np.float32)


class Table:
    """Answers each row with the logits that its second id names."""

    engine, engine_version = "table", "1"
    inputs, outputs, lengths = ("input_ids", "attention_mask"), ("logits",), ()

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits = logits

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        return {"logits": self.logits[np.asarray(inputs["input_ids"], int)[:, 1]]}


def rows_of(gold: list[int], sizes: list[int]) -> EvalSet:
    examples = [Example(f"text {i}", None, label, i) for i, label in enumerate(gold)]
    encoded = [
        Encoded(np.arange(size) + np.eye(1, size, 1, int)[0] * (i - 1), np.zeros(size, int), False)
        for i, size in enumerate(sizes)
    ]
    return EvalSet("eval", HEAD, Prepared(examples, encoded, np.arange(len(gold)), truth=np.array(gold)))


@pytest.mark.parametrize("broken", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("batch", [1, 3])
def test_logits_are_scored_and_one_number_that_is_not_finite_spoils_the_score(
    tmp_path: Path, make_tokenizer: Callable[..., None], broken: float | None, batch: int
) -> None:
    make_tokenizer(tmp_path)
    logits = LOGITS.copy()
    if broken is not None:
        logits[3, 2] = broken
    score, kept = evaluate(Table(logits), TextTokenizer(tmp_path, 16), rows_of([0, 2, 1, 2], [5, 3, 4, 6]), batch)
    np.testing.assert_array_equal(np.concatenate(kept), logits)
    assert (score.metric, score.rows, score.finite) == ("accuracy", 4, broken is None)
    assert score.value == 0.75 if broken is None else math.isnan(score.value)


def test_rows_within_a_length_are_cut_and_the_labels_stay() -> None:
    rows = rows_of([0, 1, 0], [3, 9, 5])
    assert rows.within(9).rows is rows.rows
    short = rows.within(5)
    assert [(len(e), e.truncated) for e in short.rows.encoded] == [(3, False), (5, True), (5, False)]
    assert short.rows.encoded[1].ids.tolist() == [0, 1, 2, 3, 8]
    assert (short.name, short.head) == ("eval", HEAD)
    assert np.asarray(short.rows.truth).tolist() == [0, 1, 0]
    assert [len(e) for e in rows.rows.encoded] == [3, 9, 5]


@settings(max_examples=50)
@given(MATRIX, MATRIX, st.integers(0, 3), st.integers(0, 2))
def test_the_worst_difference_keeps_a_nan(a: np.ndarray, b: np.ndarray, row: int, column: int) -> None:
    assert worst_difference(a, b) == pytest.approx(np.abs(a - b).max())
    a[row, column] = np.nan
    assert math.isnan(worst_difference(a, b))
    assert math.isnan(rms_error(a, b))
    assert label_agreement(a, b) == 0.0


def test_differences_and_agreement_by_hand() -> None:
    assert math.isnan(worst_difference(np.zeros((2, 3)), np.zeros((2, 1))))
    assert worst_difference(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
    assert worst_difference(np.array([np.inf]), np.array([0.0])) == math.inf
    reference = np.array([[0.0, 1.0], [2.0, -1.0]])
    assert rms_error(reference, reference) == 0.0
    assert logit_spread(reference + np.array([[5.0, 0.0]])) == pytest.approx(1.0), (
        "the largest standard deviation of a class"
    )
    assert rms_error(reference + 0.5, reference) == pytest.approx(0.5 / logit_spread(reference))
    a, b = np.array([[1.0, 0], [0, 1], [0, 1], [1, 0]]), np.array([[2.0, 1], [1, 0], [0, 9], [1, 0]])
    assert label_agreement(a, b) == 0.75
