"""text-classification: one label of several, for a text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pocketbert.core.answers import Answer, Prediction
from pocketbert.core.data import Example
from pocketbert.core.heads.head import Prepared, all_finite, per_text
from pocketbert.core.labels import Labels
from pocketbert.core.metrics import chance_ceiling, classification_scores
from pocketbert.core.readout import Matrix, whole
from pocketbert.core.score import Score, probabilities
from pocketbert.core.tasks import Task
from pocketbert.core.tokenization import TextTokenizer


class ClassificationHead:
    """See `pocketbert.core.heads.head.Head`; matrices are [1, labels].

    Args:
        task: Its row of the table.
        labels: Label names in order of their ids.
    """

    def __init__(self, task: Task, labels: Labels) -> None:
        self.task, self.labels = task, labels

    def prepare(
        self, examples: list[Example], tokenizer: TextTokenizer, title: str, labelled: bool = True
    ) -> Prepared:
        """Targets ``labels``: label ids, int64 [N]."""
        rows = per_text(examples, tokenizer)
        if not labelled:
            return rows
        ids = self.labels.ids(examples, title)
        return replace(rows, targets={"labels": ids}, truth=ids)

    def reduce(self, row: int, matrix: Matrix, prepared: Prepared) -> Matrix:
        """The logits."""
        return matrix

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Accuracy, macro F1 and MCC."""
        gold, finite = np.asarray(prepared.truth, np.int64), all_finite(reduced)
        predicted = whole(reduced).argmax(-1).astype(np.int64)
        scores = classification_scores(gold, predicted, len(self.labels))
        value = scores.pop(self.task.metric.name)
        return Score(
            metric=self.task.metric.name, value=value if finite else float("nan"), others=scores, rows=len(gold),
            chance=chance_ceiling(gold, len(self.labels)), finite=finite,
        )  # fmt: skip

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """The most probable label of each text."""
        scores = np.concatenate(list(outputs)) if inside else probabilities(whole(outputs), self.task.score)
        names = self.labels.names
        return [
            Prediction(names[b], float(s[b]), dict(zip(names, map(float, s), strict=True)), e.truncated)
            for s, b, e in zip(scores, scores.argmax(-1), prepared.encoded, strict=True)
        ]
