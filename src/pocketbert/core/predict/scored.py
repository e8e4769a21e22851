"""A predictor's logits as scores: what a file with the score function inside is compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.predictor import PROBABILITIES, Arrays, Predictor
from pocketbert.core.predict.score import probabilities
from pocketbert.core.tasks import ScoreFunction


class ScoredPredictor:
    """Applies a score function to the first output of another predictor.

    Args:
        inner: Gives logits.
        score: The score function.
    """

    outputs: tuple[str, ...] = (PROBABILITIES,)

    def __init__(self, inner: Predictor, score: ScoreFunction) -> None:
        self.inner, self.score = inner, score
        self.engine, self.engine_version = inner.engine, inner.engine_version
        self.inputs, self.lengths = inner.inputs, inner.lengths

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch; see `pocketbert.core.predict.predictor.Predictor`."""
        logits = np.asarray(self.inner.run(inputs)[self.inner.outputs[0]], np.float32)
        return {PROBABILITIES: probabilities(logits, self.score)}
