"""Scores of predictions, each with a unit and a direction in its type.

A score is stored as a fraction (or in its natural unit) and printed in points. Computed with numpy, so
that a core-only install can verify a file; the tests compare every function with scikit-learn and scipy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Unit(StrEnum):
    """What a score is measured in."""

    FRACTION = "fraction"
    """In [0, 1] or [-1, 1]; printed times 100, in points."""
    NATS = "nats"


class Direction(StrEnum):
    """Which way is better."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True)
class Metric:
    """A named way to score predictions.

    Attributes:
        name: Field name, e.g. ``accuracy``.
        unit: Unit of the stored value.
        direction: Which way is better.
    """

    name: str
    unit: Unit = Unit.FRACTION
    direction: Direction = Direction.HIGHER

    def format(self, value: float) -> str:
        """The value as people read it: 91.25 for a fraction of 0.9125."""
        if math.isnan(value):
            return "not a number"
        return f"{value * 100:.2f}" if self.unit is Unit.FRACTION else f"{value:.4f} {self.unit}"

    def drop(self, reference: float, value: float) -> float:
        """How much worse `value` is than `reference`, positive when worse, as a fraction: of nats the relative change."""
        worse = reference - value if self.direction is Direction.HIGHER else value - reference
        return worse if self.unit is Unit.FRACTION else worse / abs(reference) if reference else float("nan")

    def lost(self, drop: float) -> str:
        """Say how much worse a score is: ``0.25 points worse``, or per cent where the metric has no points."""
        if math.isnan(drop):
            return "not comparable"
        amount = round(drop * 100, 2)
        size = f"{abs(amount):.2f} {'points' if self.unit is Unit.FRACTION else 'per cent'}"
        return "no difference" if amount == 0 else f"{size} {'worse' if amount > 0 else 'better'}"

    def beats(self, value: float, other: float) -> bool:
        """Whether `value` is better than `other`; never when it is NaN."""
        return value > other if self.direction is Direction.HIGHER else value < other

    def kept(self, reference: float, value: float) -> float:
        """Share of `reference` that `value` keeps (1.0 = all of it)."""
        if self.direction is Direction.LOWER:
            reference, value = value, reference
        return value / reference if reference else float("nan")


ACCURACY = Metric("accuracy")
MACRO_F1 = Metric("macro_f1")
MCC = Metric("mcc")
MICRO_F1 = Metric("micro_f1")
PEARSON = Metric("pearson")
SPEARMAN = Metric("spearman")
SPAN_F1 = Metric("span_f1")
SQUAD_F1 = Metric("squad_f1")
EXACT_MATCH = Metric("exact_match")
CROSS_ENTROPY = Metric("cross_entropy", Unit.NATS, Direction.LOWER)
TOP_1 = Metric("top_1")
MEAN_COSINE = Metric("mean_cosine")

METRICS = {m.name: m for m in (ACCURACY, MICRO_F1, PEARSON, SPEARMAN, SPAN_F1, SQUAD_F1, CROSS_ENTROPY, MEAN_COSINE)}
"""Those that decide a task, by name."""
CHANCE = {
    ACCURACY.name: "always the most frequent label",
    MICRO_F1.name: "always the best fixed set of labels",
    PEARSON.name: "unrelated numbers",
    SPEARMAN.name: "unrelated numbers",
    SPAN_F1.name: "every word the most frequent label",
    SQUAD_F1.name: "always the context's first sentence or nothing",
    CROSS_ENTROPY.name: "guessing by the tokens' frequencies",
    MEAN_COSINE.name: "always the teacher's mean vector",
}
"""What a model answers that does not read its input, in words."""

IntArray = NDArray[np.int64]


def confusion(gold: IntArray, predicted: IntArray, labels: int) -> IntArray:
    """Confusion counts.

    Args:
        gold: Label ids, shape [N].
        predicted: Label ids, shape [N].
        labels: Number of labels.

    Returns:
        Counts, shape [labels, labels], rows are gold.
    """
    flat = np.bincount(gold * labels + predicted, minlength=labels * labels)
    return flat.reshape(labels, labels).astype(np.int64)


def most_confused(counts: IntArray, names: Sequence[str], most: int = 12) -> list[tuple[str, str, int]]:
    """Pairs of different labels with the most rows: gold, predicted, rows; largest first.

    Args:
        counts: Confusion counts [labels, labels], rows are gold; they are not changed.
        names: Name of each label.
        most: How many pairs.
    """
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    places = [divmod(int(i), len(names)) for i in np.argsort(wrong, axis=None)[::-1][:most]]
    return [(names[gold], names[told], int(wrong[gold, told])) for gold, told in places if wrong[gold, told]]


def accuracy(counts: IntArray) -> float:
    """Share of rows on the diagonal of a confusion matrix [labels, labels]."""
    total = int(counts.sum())
    return float(np.trace(counts)) / total if total else float("nan")


def macro_f1(counts: IntArray) -> float:
    """Unweighted mean of F1 over the labels that occur in gold or predictions."""
    hits = np.diag(counts).astype(float)
    seen = counts.sum(0) + counts.sum(1)
    present = seen > 0
    return float((2 * hits[present] / seen[present]).mean()) if present.any() else float("nan")


def matthews(counts: IntArray) -> float:
    """Matthews correlation for any number of labels (Gorodkin 2004, R_K). 0 when undefined."""
    gold, predicted = counts.sum(1).astype(float), counts.sum(0).astype(float)
    total, hits = float(counts.sum()), float(np.trace(counts))
    above = hits * total - float(gold @ predicted)
    below = math.sqrt((total**2 - float(predicted @ predicted)) * (total**2 - float(gold @ gold)))
    return above / below if below else 0.0


def classification_scores(gold: IntArray, predicted: IntArray, labels: int) -> dict[str, float]:
    """Accuracy, macro F1 and MCC by metric name, from label ids of shape [N]."""
    counts = confusion(gold, predicted, labels)
    return {ACCURACY.name: accuracy(counts), MACRO_F1.name: macro_f1(counts), MCC.name: matthews(counts)}


def multi_label_f1(gold: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> float:
    """Micro F1 over all decisions, [N, labels] each; 0 where nothing is there and nothing was found."""
    both = int(gold.sum() + predicted.sum())
    return 2 * int((gold & predicted).sum()) / both if both else 0.0


def constant_f1(gold: NDArray[np.bool_]) -> float:
    """Best micro F1 of an answer that is the same set of labels for every row, [N, labels]."""
    rows, counts = len(gold), np.sort(gold.sum(0))[::-1]
    hits, answered = np.cumsum(counts), rows * np.arange(1, len(counts) + 1)
    return float((2 * hits / (answered + counts.sum())).max()) if counts.sum() else 0.0


def pearson(gold: NDArray[np.floating], predicted: NDArray[np.floating]) -> float:
    """Pearson correlation of [N] and [N]; 0 where one of them does not vary."""
    a, b = (np.asarray(x, np.float64) - np.mean(x, dtype=np.float64) for x in (gold, predicted))
    below = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / below if below else 0.0


def spearman(gold: NDArray[np.floating], predicted: NDArray[np.floating]) -> float:
    """Spearman correlation of [N] and [N]: Pearson of the ranks, equal values sharing their mean rank."""
    return pearson(_ranks(gold), _ranks(predicted))


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place], np.float64)


def entropy(gold: IntArray) -> float:
    """Entropy in nats of the distribution of ids in [N]: the cost per prediction of a model that knows only the frequencies."""
    shares = np.unique(gold, return_counts=True)[1] / max(1, len(gold))
    return float(-(shares * np.log(shares)).sum())


def luck(share: float, rows: int, sigmas: float = 3.0) -> float:
    """A share plus `sigmas` standard errors over this number of rows, at most 1."""
    if not rows:
        return float("nan")
    return min(1.0, share + sigmas * math.sqrt(max(0.0, share * (1 - share)) / rows))


def chance_ceiling(gold: IntArray, labels: int, sigmas: float = 3.0) -> float:
    """The accuracy that always answering the commonest label may reach by luck.

    A model whose accuracy does not pass this has learnt nothing that can be seen on these rows.

    Args:
        gold: Label ids, shape [N].
        labels: Number of labels.
        sigmas: Width of the allowance in standard errors of the majority share.

    Returns:
        Majority share plus `sigmas` standard errors, at most 1.
    """
    rows = len(gold)
    if not rows:
        return float("nan")
    return luck(float(np.bincount(gold, minlength=labels).max()) / rows, rows, sigmas)
