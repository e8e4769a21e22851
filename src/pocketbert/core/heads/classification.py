"""text-classification: one label of several, for a text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.examples import Example
from pocketbert.core.data.labels import Labels
from pocketbert.core.heads.head import Labelled, Prepared, all_finite
from pocketbert.core.metrics import chance_ceiling, classification_scores
from pocketbert.core.predict.answers import Answer, Prediction
from pocketbert.core.predict.readout import Matrix, whole
from pocketbert.core.predict.score import Score, probabilities
from pocketbert.core.tasks import Task


class ClassificationHead(Labelled):
    """See `pocketbert.core.heads.head.Head`; matrices are [1, labels].

    Args:
        task: Its row of the table.
        labels: Label names in order of their ids.
    """

    def __init__(self, task: Task, labels: Labels) -> None:
        self.task, self.labels = task, labels

    def _gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """Label ids, int64 [N]."""
        ids = self.labels.ids(examples, title)
        return ids, ids

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Accuracy, macro F1 and MCC."""
        gold, finite = np.asarray(prepared.truth, np.int64), all_finite(reduced)
        predicted = whole(reduced).argmax(-1).astype(np.int64)
        scores = classification_scores(gold, predicted, len(self.labels))
        value = scores.pop(self.task.metric.name)
        return Score.of(self.task.metric, value, scores, len(gold), chance_ceiling(gold, len(self.labels)), finite)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """The most probable label of each text."""
        scores = np.concatenate(list(outputs)) if inside else probabilities(whole(outputs), self.task.score)
        names = self.labels.names
        return [
            Prediction(names[b], float(s[b]), dict(zip(names, map(float, s), strict=True)), e.truncated)
            for s, b, e in zip(scores, scores.argmax(-1), prepared.encoded, strict=True)
        ]
