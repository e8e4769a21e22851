"""multi-label: any number of labels for a text, each with a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.examples import Example
from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import Labelled, Prepared, all_finite
from pocketbert.core.metrics import (
    PEARSON,
    SPEARMAN,
    chance_ceiling,
    classification_scores,
    constant_f1,
    luck,
    multi_label_f1,
    pearson,
    spearman,
)
from pocketbert.core.predict.answers import Answer, Labelling, Prediction, Value
from pocketbert.core.predict.predictor import Matrix, whole
from pocketbert.core.predict.scores import Score, probabilities
from pocketbert.core.tasks import ScoreFunction, Task

# --- classification ---
# text-classification: one label of several, for a text or a pair.


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


_CANDIDATES = np.round(np.arange(0.05, 0.96, 0.01), 2)


class MultiLabelHead(Labelled):
    """See `pocketbert.core.heads.head.Head`; matrices are [1, labels].

    Args:
        task: Its row of the table.
        labels: Label names in order of their ids.
        thresholds: Probability from which each label is given.
    """

    def __init__(self, task: Task, labels: Labels, thresholds: Sequence[float]) -> None:
        self.task, self.labels = task, labels
        self.thresholds = np.asarray(thresholds, np.float64)

    def _gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """Which labels are given, bool [N, labels]; to train on 1 where one is, float32."""
        given = self.labels.sets(examples, title)
        return given, given.astype(np.float32)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Micro F1 at the thresholds, and the share of rows whose labels are all right."""
        gold, finite = np.asarray(prepared.truth, bool), all_finite(reduced)
        found = probabilities(whole(reduced), self.task.score) >= self.thresholds
        value = multi_label_f1(gold, found)
        exact = float((gold == found).all(-1).mean())
        return Score.of(
            self.task.metric, value, {"exact_rows": exact}, len(gold), luck(constant_f1(gold), len(gold)), finite
        )

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """The labels that reach their thresholds."""
        scores = np.concatenate(list(outputs)) if inside else probabilities(whole(outputs), self.task.score)
        names, out = self.labels.names, list[Answer]()
        for row, encoded in zip(scores, prepared.encoded, strict=True):
            order = np.argsort(-row, kind="stable")
            given = tuple(names[i] for i in order if row[i] >= self.thresholds[i])
            out.append(Labelling(given, dict(zip(names, map(float, row), strict=True)), encoded.truncated))
        return out


def best_thresholds(logits: Matrix, gold: NDArray[np.bool_]) -> list[float]:
    """One threshold per label that gives the best F1 of that label; 0.5 where a label has no row.

    Args:
        logits: [N, labels] of rows that do not decide the score.
        gold: Whether each label is given, [N, labels].

    Returns:
        Thresholds, labels of them, in hundredths; of equally good ones the one nearest to 0.5.
    """
    scores = probabilities(logits, ScoreFunction.SIGMOID)
    out = []
    for column, truth in zip(scores.T, gold.T, strict=True):
        found = column[:, None] >= _CANDIDATES
        hits = (found & truth[:, None]).sum(0)
        both = found.sum(0) + truth.sum()
        f1 = np.where(both > 0, 2 * hits / np.maximum(both, 1), 0.0)
        best = _CANDIDATES[f1 >= f1.max() - 1e-12]
        out.append(float(best[np.abs(best - 0.5).argmin()]) if truth.any() else 0.5)
    return out


# --- regression ---
# regression: one number for a text or a pair.


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
