"""Answers of a device against those of this machine: every output has its own bound."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pocketbert.benchmarks.inputs import compare_answers
from pocketbert.core.types import Provenance, Scheme

HERE = {"last_hidden_state": np.full((1, 3, 2), 6.0), "sentence_embedding": np.full((1, 4), 0.35)}


def checked(scheme: Scheme = Scheme.INT8, **told: Any) -> Any:
    predictor = SimpleNamespace(inputs=("input_ids",), lengths=(), run=lambda _: HERE)
    variant: Any = SimpleNamespace(name="v", scheme=scheme, file=SimpleNamespace(open=lambda _: predictor))
    return compare_answers(variant, [{"input_ids": np.ones((1, 3))}], [{**HERE, **told}], Provenance.MEASURED)


def test_equal_answers_pass() -> None:
    assert checked().passed
    assert checked().largest == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("sentence_embedding", np.zeros((1, 4))), ("last_hidden_state", np.full((1, 3, 2), 5.0))],
)
def test_one_wrong_output_fails_beside_an_output_of_larger_numbers(name: str, value: Any) -> None:
    check = checked(**{name: value})
    assert not check.passed
    assert check.largest == pytest.approx(float(np.abs(HERE[name] - value).max()))
    assert check.tolerance == pytest.approx(0.1 * float(HERE[name].max()))


@pytest.mark.parametrize("value", [np.full((1, 4), np.nan), np.zeros((1, 5)), None])
def test_what_is_no_answer_fails(value: Any) -> None:
    check = checked(sentence_embedding=np.asarray(np.nan if value is None else value))
    assert not check.finite
    assert not check.passed
