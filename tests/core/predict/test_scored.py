from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from pocketbert.core.predict.predictor import PROBABILITIES, Arrays, Predictor, ScoredPredictor
from pocketbert.core.tasks import ScoreFunction

LOGITS = np.array([[2.0, 0.0, -1.0], [-30.0, 40.0, 0.0]], np.float32)


class Fixed:
    """Answers the same logits to everything, and notes what it was asked."""

    engine, engine_version = "fixed", "1"
    inputs, outputs, lengths = ("input_ids", "attention_mask"), ("logits", "more"), (4, 8)

    def __init__(self) -> None:
        self.asked: list[Mapping[str, NDArray[np.generic]]] = []

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        self.asked.append(inputs)
        return {"more": np.zeros(2), "logits": LOGITS}


@pytest.mark.parametrize("score", ScoreFunction)
def test_the_first_output_becomes_scores(score: ScoreFunction) -> None:
    inner = Fixed()
    predictor: Predictor = ScoredPredictor(inner, score)
    inputs = {"input_ids": np.ones((2, 4), np.int64)}
    found = predictor.run(inputs)
    assert list(found) == [PROBABILITIES] == list(predictor.outputs)
    exact = {
        ScoreFunction.SOFTMAX: np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True),
        ScoreFunction.SIGMOID: 1 / (1 + np.exp(-LOGITS)),
        ScoreFunction.NONE: LOGITS,
    }
    np.testing.assert_allclose(found[PROBABILITIES], exact[score], atol=1e-6)
    assert inner.asked == [inputs]


def test_it_takes_what_the_other_takes() -> None:
    predictor = ScoredPredictor(Fixed(), ScoreFunction.SOFTMAX)
    assert predictor.inputs == Fixed.inputs
    assert predictor.lengths == Fixed.lengths
    assert (predictor.engine, predictor.engine_version) == ("fixed", "1")
