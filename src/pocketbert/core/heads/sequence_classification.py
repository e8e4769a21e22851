"""Heads with one row of outputs per text, as in transformers' classes for sequence classification.

`ClassificationHead` chooses one label of several, `MultiLabelHead` any number of labels (`fit_label_thresholds` finds the
probability from which each is given), and `RegressionHead` predicts a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import LabelledTextHead, Prepared, all_finite, make_score
from pocketbert.core.metrics import (
    PEARSON,
    SPEARMAN,
    chance_bound,
    classification_scores,
    constant_f1,
    majority_bound,
    multi_label_f1,
    pearson,
    spearman,
)
from pocketbert.core.predict.answers import Answer, Labelling, Prediction, Value
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.predictor import Matrix, join_texts
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.tasks import ScoreFunction, Task

if TYPE_CHECKING:
    from pocketbert.core.predict.scores import Score


class ClassificationHead(LabelledTextHead):
    """Head of text-classification; the output matrix of a text is its logits [1, labels].

    Args:
        task: The task's row in the table of tasks.
        labels: Label names in order of their ids.
    """

    def __init__(self, task: Task, labels: Labels) -> None:
        self.task, self.labels = task, labels

    def _read_gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """Return the label ids, int64 [N], twice: as gold labels and as training targets."""
        ids = self.labels.ids(examples, title)
        return ids, ids

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute accuracy, macro F1 and Matthews correlation of the predicted labels."""
        gold, finite = np.asarray(prepared.truth, np.int64), all_finite(reduced)
        predicted = join_texts(reduced).argmax(-1).astype(np.int64)
        scores = classification_scores(gold, predicted, len(self.labels))
        value = scores.pop(self.task.metric.name)
        return make_score(self.task.metric, value, scores, len(gold), majority_bound(gold, len(self.labels)), finite)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return the answer of each text: a `Prediction` with the most probable label."""
        scores = np.concatenate(list(outputs)) if inside else apply_score_function(join_texts(outputs), self.task.score)
        names = self.labels.names
        return [
            Prediction(names[best], float(row[best]), dict(zip(names, map(float, row), strict=True)), e.truncated)
            for row, best, e in zip(scores, scores.argmax(-1), prepared.encoded, strict=True)
        ]


class MultiLabelHead(LabelledTextHead):
    """Head of multi-label classification; the output matrix of a text is its logits [1, labels].

    Args:
        task: The task's row in the table of tasks.
        labels: Label names in order of their ids.
        thresholds: Smallest probability at which each label counts as predicted.
    """

    def __init__(self, task: Task, labels: Labels, thresholds: Sequence[float]) -> None:
        self.task, self.labels = task, labels
        self.thresholds = np.asarray(thresholds, np.float64)

    def _read_gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """Return which labels each text has, [N, labels], as bool for scoring and as float32 for training."""
        is_given = self.labels.sets(examples, title)
        return is_given, is_given.astype(np.float32)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute micro F1 at the labels' thresholds, and the share of rows with all labels right."""
        gold, finite = np.asarray(prepared.truth, bool), all_finite(reduced)
        predicted = apply_score_function(join_texts(reduced), self.task.score) >= self.thresholds
        value = multi_label_f1(gold, predicted)
        others = {"exact_rows": float((gold == predicted).all(-1).mean())}
        return make_score(
            self.task.metric, value, others, len(gold), chance_bound(constant_f1(gold), len(gold)), finite
        )

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return the answer of each text: a `Labelling` with the labels whose probability reaches their threshold."""
        scores = np.concatenate(list(outputs)) if inside else apply_score_function(join_texts(outputs), self.task.score)
        names, answers = self.labels.names, list[Answer]()
        for row, encoded in zip(scores, prepared.encoded, strict=True):
            order = np.argsort(-row, kind="stable")
            given = tuple(names[i] for i in order if row[i] >= self.thresholds[i])
            answers.append(Labelling(given, dict(zip(names, map(float, row), strict=True)), encoded.truncated))
        return answers


def fit_label_thresholds(logits: Matrix, gold: NDArray[np.bool_]) -> list[float]:
    """Find the probability threshold with the best F1 for each label; 0.5 for a label that never occurs.

    Args:
        logits: [N, labels] of rows that do not decide the score.
        gold: Whether each row has each label, [N, labels].

    Returns:
        Thresholds in hundredths from 0.05 to 0.95, one per label; among equally good ones, the one nearest to 0.5.
    """
    candidates = np.round(np.arange(0.05, 0.96, 0.01), 2)
    scores = apply_score_function(logits, ScoreFunction.SIGMOID)
    thresholds = []
    for column, truth in zip(scores.T, gold.T, strict=True):
        predicted = column[:, None] >= candidates
        hits = (predicted & truth[:, None]).sum(0)
        total = predicted.sum(0) + truth.sum()
        f1 = np.where(total > 0, 2 * hits / np.maximum(total, 1), 0.0)
        best = candidates[f1 >= f1.max() - 1e-12]
        thresholds.append(float(best[np.abs(best - 0.5).argmin()]) if truth.any() else 0.5)
    return thresholds


class RegressionHead(LabelledTextHead):
    """Head of regression; the output matrix of a text is one number [1, 1].

    It has the unit of the training data, or is a logit if the task's score function is the sigmoid.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def _read_gold(self, examples: list[Example], title: str) -> tuple[NDArray[Any], NDArray[np.generic]]:
        """Read the labels as numbers [N], in float64 for scoring and in float32 for training.

        Raises InputError for numbers outside 0 to 1 if the model's output passes through a sigmoid.
        """
        gold = np.array([e.label for e in examples], np.float64)
        outside = np.flatnonzero((gold < 0) | (gold > 1))
        if len(outside) and self.task.score is ScoreFunction.SIGMOID:
            row = examples[outside[0]]
            what = f"{len(outside):,} labels are not between 0 and 1, the first is {row.label} in row {row.row}."
            fix = "The model's answers go through a sigmoid: scale the labels, or train a new head (teacher.finetune)."
            raise InputError(Problem(title, what, fix))
        return gold, gold.astype(np.float32)

    def score(self, reduced: Sequence[Matrix], prepared: Prepared) -> Score:
        """Compute Pearson and Spearman correlation and the root mean square error of the predicted numbers."""
        gold, finite = np.asarray(prepared.truth, np.float64), all_finite(reduced)
        values = apply_score_function(join_texts(reduced)[:, 0].astype(np.float64), self.task.score)
        others = {}
        if finite:
            others = {SPEARMAN.name: spearman(gold, values), "rmse": float(np.sqrt(((gold - values) ** 2).mean()))}
        chance = min(1.0, 3 / np.sqrt(max(1, len(gold))))
        return make_score(PEARSON, pearson(gold, values), others, len(gold), chance, finite)

    def answers(self, outputs: Sequence[Matrix], prepared: Prepared, inside: bool = False) -> list[Answer]:
        """Return a `Value` with the predicted number of each text."""
        values = [float(m[0, 0] if inside else apply_score_function(m[0, 0], self.task.score)) for m in outputs]
        return [Value(value, row.truncated) for value, row in zip(values, prepared.encoded, strict=True)]
