"""Scores of predictions: the table of metrics, each with unit and direction, and the functions that compute them.

A score is stored as a fraction (or in its natural unit) and printed in points. Computed with numpy, so
that a core-only install can verify a file; the tests compare every function with scikit-learn and scipy.
Label ids have shape [N], confusion counts [labels, labels] with gold labels in rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """A metric that predictions are scored with.

    Attributes:
        name: Field name, e.g. ``accuracy``.
        unit: Unit of the stored value.
        direction: Which way is better.
    """

    name: str
    unit: Unit = Unit.FRACTION
    direction: Direction = Direction.HIGHER

    def format(self, value: float) -> str:
        """Format a value for people: 91.25 for a fraction of 0.9125."""
        if math.isnan(value):
            return "not a number"
        return f"{value * 100:.2f}" if self.unit is Unit.FRACTION else f"{value:.4f} {self.unit}"

    def drop(self, reference: float, value: float) -> float:
        """Return how much worse `value` is than `reference`, a fraction (for nats relative); negative if better."""
        worse = reference - value if self.direction is Direction.HIGHER else value - reference
        return worse if self.unit is Unit.FRACTION else worse / abs(reference) if reference else float("nan")

    def lost(self, drop: float) -> str:
        """Describe a drop in words, such as ``0.25 points worse`` (for nats ``per cent``) or ``no difference``."""
        if math.isnan(drop):
            return "not comparable"
        amount = round(drop * 100, 2)
        size = f"{abs(amount):.2f} {'points' if self.unit is Unit.FRACTION else 'per cent'}"
        return "no difference" if amount == 0 else f"{size} {'worse' if amount > 0 else 'better'}"

    def beats(self, value: float, other: float) -> bool:
        """Return whether `value` is better than `other`; False if it is NaN."""
        return value > other if self.direction is Direction.HIGHER else value < other

    def kept(self, reference: float, value: float) -> float:
        """Return which share of `reference` the score `value` keeps: 1.0 for all, NaN if it cannot be divided.

        It is value / reference, or the inverse for a metric of which lower is better.
        """
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
RECALL_1 = Metric("recall@1")
RECALL_10 = Metric("recall@10")
MRR_10 = Metric("mrr@10")
MEAN_OF_HEADS = Metric("mean_of_heads")

_COMPARING = (
    *(ACCURACY, MACRO_F1, MCC, MICRO_F1, PEARSON, SPEARMAN, SPAN_F1, SQUAD_F1),
    *(EXACT_MATCH, CROSS_ENTROPY, TOP_1, MEAN_COSINE, MRR_10, MEAN_OF_HEADS),
)
METRICS = {m.name: m for m in _COMPARING}
"""The metrics that decide a task, or by which a recipe may choose (`training.metric`), by name."""
CHANCE = {
    ACCURACY.name: "always the most frequent label",
    MICRO_F1.name: "always the best fixed set of labels",
    PEARSON.name: "unrelated numbers",
    SPEARMAN.name: "unrelated numbers",
    SPAN_F1.name: "every word the most frequent label",
    SQUAD_F1.name: "always the context's first sentence or nothing",
    CROSS_ENTROPY.name: "guessing by the tokens' frequencies",
    MEAN_COSINE.name: "always the teacher's mean vector",
    MRR_10.name: "passages in random order",
    MEAN_OF_HEADS.name: "what is meant for each head",
}
"""For each metric, the answers of a model that ignores its input, with which scores are compared."""

_IntArray = NDArray[np.int64]


def confusion_counts(gold: _IntArray, predicted: _IntArray, labels: int) -> _IntArray:
    """Count the rows for each pair of labels; return a matrix [gold label, predicted label]."""
    flat = np.bincount(gold * labels + predicted, minlength=labels * labels)
    return flat.reshape(labels, labels).astype(np.int64)


def most_confused_labels(counts: _IntArray, names: Sequence[str], most: int = 12) -> list[tuple[str, str, int]]:
    """List the most frequent errors as (gold label, predicted label, rows), the most frequent first.

    Args:
        counts: Confusion counts, [gold label, predicted label]; they are not changed.
        names: Name of each label.
        most: Maximum number of pairs.
    """
    errors = counts.copy()
    np.fill_diagonal(errors, 0)
    pairs = [divmod(int(i), len(names)) for i in np.argsort(errors, axis=None)[::-1][:most]]
    return [(names[gold], names[wrong], int(errors[gold, wrong])) for gold, wrong in pairs if errors[gold, wrong]]


def classification_scores(gold: _IntArray, predicted: _IntArray, labels: int) -> dict[str, float]:
    """Compute accuracy, macro F1 and Matthews correlation from N gold and predicted labels, by metric name."""
    counts = confusion_counts(gold, predicted, labels)
    return {ACCURACY.name: _accuracy(counts), MACRO_F1.name: _macro_f1(counts), MCC.name: _matthews(counts)}


def _accuracy(counts: _IntArray) -> float:
    """Return the accuracy from confusion counts: the share of rows on the diagonal; NaN without rows."""
    total = int(counts.sum())
    return float(np.trace(counts)) / total if total else float("nan")


def _macro_f1(counts: _IntArray) -> float:
    """Compute macro F1 from confusion counts, over the labels that occur in gold or predictions."""
    hits = np.diag(counts).astype(float)
    seen = counts.sum(0) + counts.sum(1)
    present = seen > 0
    return float((2 * hits[present] / seen[present]).mean()) if present.any() else float("nan")


def _matthews(counts: _IntArray) -> float:
    """Compute the Matthews correlation from confusion counts of any number of labels; 0 if undefined."""
    gold, predicted = counts.sum(1).astype(float), counts.sum(0).astype(float)
    total, hits = float(counts.sum()), float(np.trace(counts))
    numerator = hits * total - float(gold @ predicted)
    denominator = math.sqrt((total**2 - float(predicted @ predicted)) * (total**2 - float(gold @ gold)))
    return numerator / denominator if denominator else 0.0


def multi_label_f1(gold: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> float:
    """Compute micro F1 over bool arrays [N, labels]; 0 if there are neither gold nor predicted labels."""
    positives = int(gold.sum() + predicted.sum())
    return 2 * int((gold & predicted).sum()) / positives if positives else 0.0


def constant_f1(gold: NDArray[np.bool_]) -> float:
    """Return the best micro F1 that predicting one constant set of labels for every row would reach."""
    rows, counts = len(gold), np.sort(gold.sum(0))[::-1]
    hits, answered = np.cumsum(counts), rows * np.arange(1, len(counts) + 1)
    return float((2 * hits / (answered + counts.sum())).max()) if counts.sum() else 0.0


def pearson(gold: NDArray[np.floating], predicted: NDArray[np.floating]) -> float:
    """Return the Pearson correlation of two arrays [N]; 0 if one of them is constant."""
    a, b = (np.asarray(x, np.float64) - np.mean(x, dtype=np.float64) for x in (gold, predicted))
    denominator = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / denominator if denominator else 0.0


def spearman(gold: NDArray[np.floating], predicted: NDArray[np.floating]) -> float:
    """Return the Spearman correlation of two arrays [N]: Pearson of their ranks; equal values share the mean rank."""
    return pearson(_ranks(gold), _ranks(predicted))


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the ranks of values, from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts)
    return np.asarray((last_ranks - (counts - 1) / 2)[inverse], np.float64)


def retrieval_scores(positions: Sequence[Sequence[int]]) -> dict[str, float]:
    """Compute recall@1, recall@10 and MRR@10 of a search, by metric name.

    Recall is the share of a query's relevant passages among the first 1 or 10, MRR@10 the reciprocal position of the first of them,
    0 behind the tenth; both are means over the queries.

    Args:
        positions: For each query the positions of its relevant passages, from 1, ascending.
    """
    recalls = [float(np.mean([sum(n <= k for n in own) / len(own) for own in positions])) for k in (1, 10)]
    reciprocal = float(np.mean([1 / own[0] if own[0] <= 10 else 0.0 for own in positions]))
    return {RECALL_1.name: recalls[0], RECALL_10.name: recalls[1], MRR_10.name: reciprocal}


def describe_details(others: Mapping[str, float]) -> str:
    """Return further metrics of a score in words: recall@1, recall@10 and MRR@10, and the deciding one of each of several heads.

    Those that the score lacks are left out.
    """
    by_head = dict[str, str]()
    for name, value in others.items():
        head, dot, metric = name.partition(".")
        if dot:  # the head's deciding metric comes first
            by_head.setdefault(head, f"{head} {metric} {Metric(metric).format(value)}")
    found = [f"{m.name} {m.format(others[m.name])}" for m in (RECALL_1, RECALL_10, MRR_10) if m.name in others]
    return ", ".join([*found, *by_head.values()])


def entropy(gold: _IntArray) -> float:
    """Return the entropy in nats of the frequencies of ids: the cross-entropy of guessing by them."""
    shares = np.unique(gold, return_counts=True)[1] / max(1, len(gold))
    return float(-(shares * np.log(shares)).sum())


def chance_bound(share: float, rows: int, sigmas: float = 3.0) -> float:
    """Return a share plus `sigmas` standard errors for this number of rows, at most 1: what luck may reach. NaN without rows."""
    if not rows:
        return float("nan")
    return min(1.0, share + sigmas * math.sqrt(max(0.0, share * (1 - share)) / rows))


def majority_bound(gold: _IntArray, labels: int, sigmas: float = 3.0) -> float:
    """Return the accuracy that always predicting the most frequent label may reach on these rows by luck.

    These rows do not show that a model with no larger accuracy has learnt anything.

    Returns:
        Share of the most frequent label plus `sigmas` standard errors, at most 1; NaN without rows.
    """
    rows = len(gold)
    if not rows:
        return float("nan")
    return chance_bound(float(np.bincount(gold, minlength=labels).max()) / rows, rows, sigmas)
