"""regression: one number for a text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.examples import Example
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import Labelled, Prepared, all_finite
from pocketbert.core.metrics import PEARSON, SPEARMAN, pearson, spearman
from pocketbert.core.predict.answers import Answer, Value
from pocketbert.core.predict.readout import Matrix, whole
from pocketbert.core.predict.score import Score, probabilities
from pocketbert.core.tasks import ScoreFunction, Task


class RegressionHead(Labelled):
    """See `pocketbert.core.heads.head.Head`; matrices are [1, 1].

    They are in the units of the training data, or logits where the task's score function is the sigmoid.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def _gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """The numbers, float64 [N]; to train on float32."""
        gold = np.array([e.label for e in examples], np.float64)
        outside = np.flatnonzero((gold < 0) | (gold > 1))
        if len(outside) and self.task.score is ScoreFunction.SIGMOID:
            row = examples[outside[0]]
            what = f"{len(outside):,} labels are not between 0 and 1, the first is {row.label} in row {row.row}."
            fix = "The model's answers go through a sigmoid: scale the labels, or train a new head (teacher.finetune)."
            raise InputError(Problem(title, what, fix))
        return gold, gold.astype(np.float32)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Pearson, Spearman and the root mean square error."""
        gold = np.asarray(prepared.truth, np.float64)
        values = probabilities(whole(reduced)[:, 0].astype(np.float64), self.task.score)
        finite = all_finite(reduced)
        return Score.of(
            PEARSON,
            pearson(gold, values),
            {SPEARMAN.name: spearman(gold, values), "rmse": float(np.sqrt(((gold - values) ** 2).mean()))}
            if finite
            else {},
            len(gold),
            min(1.0, 3 / np.sqrt(max(1, len(gold)))),
            finite,
        )

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """The number of each text."""
        values = [float(m[0, 0] if inside else probabilities(m[0, 0], self.task.score)) for m in outputs]
        return [Value(value, row.truncated) for value, row in zip(values, prepared.encoded, strict=True)]
