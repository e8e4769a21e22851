"""The differences between the answers of two models to the same rows: which flip, which gain and lose, and how sure that is.

`compare_answers` returns the `Differences`, with McNemar's test of the rows that one model alone has right, and with a bootstrap of
the difference of scores over the same resampled rows for both. `ModelDiff` holds them with what was compared.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.answers import NOTHING, RowAnswer, number_columns
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.metrics import (
    EXACT_MATCH,
    MACRO_F1,
    MCC,
    METRICS,
    PEARSON,
    SPEARMAN,
    Metric,
    classification_scores,
    pearson,
    spearman,
)
from pocketbert.core.predict.examples import Example
from pocketbert.core.seeds import generator
from pocketbert.core.tasks import LabelKind, Task

_RESAMPLES = 2000
_CONFIDENCE = 0.95
_ROUNDING = 1e-12
"""By which a limit may be exceeded: 0.91 - 0.90 is a little more than 0.01 in floating point."""
_OUTCOMES = ("lost", "gained", "both wrong", "both right", "")
_EXACT_ROWS = 1000
"""Most rows that one model alone has right for which McNemar's test is the exact binomial one."""


@dataclass(frozen=True)
class Flip:
    """A row that the two models answer differently.

    Attributes:
        row: Line or record number in the data file, from 1.
        texts: The text, the two texts of a pair, or a question with its choices.
        gold: The right answer in words; empty without labels.
        old: The old model's answer in words.
        new: The new model's answer in words.
        old_probability: Probability of the old answer; None if that answer has none.
        new_probability: Probability of the new answer; None if that answer has none.
        outcome: ``lost`` (only the old answer is right), ``gained``, ``both wrong`` or, for two wordings that count as the
            same answer, ``both right``; empty without labels and for numbers and vectors.
        distance: Difference of two numbers, or 1 - cosine of two vectors; None for other answers.
    """

    row: int
    texts: tuple[str, ...]
    gold: str
    old: str
    new: str
    old_probability: float | None = None
    new_probability: float | None = None
    outcome: str = ""
    distance: float | None = None


@dataclass(frozen=True)
class LabelFlip:
    """How often one label of the old model became another label of the new one.

    Attributes:
        old: Label of the old answer, or ``(none)``.
        new: Label of the new answer, or ``(none)``.
        count: How often.
        lost: In how many of these the old label is right.
        gained: In how many of these the new label is right.
    """

    old: str
    new: str
    count: int
    lost: int
    gained: int


@dataclass(frozen=True)
class LabelChange:
    """How often each model predicts one gold label right.

    Attributes:
        label: The gold label.
        count: How often it occurs.
        old_right: How often the old model predicts the label right.
        new_right: How often the new model predicts it right.
        lost: How often only the old model predicts it right.
        gained: How often only the new model predicts it right.
    """

    label: str
    count: int
    old_right: int
    new_right: int
    lost: int
    gained: int


@dataclass(frozen=True)
class ScoreChange:
    """The scores of both models on the labelled rows, and their difference.

    Attributes:
        metric: Name of the metric.
        old: Score of the old model.
        new: Score of the new model.
        drop: How much worse the new one is, as `Metric.drop`: a fraction, positive for worse.
        low: Lower end of the interval of `drop` (95 % unless another is asked for), from a bootstrap over the rows.
        high: Upper end.
        resamples: Number of resamples.
    """

    metric: str
    old: float
    new: float
    drop: float
    low: float
    high: float
    resamples: int = _RESAMPLES


@dataclass(frozen=True)
class Outcomes:
    """Numbers of rows by which of the two models answers them right, and McNemar's test of the difference.

    Attributes:
        both_right: Rows that both models answer right.
        lost: Rows that only the old model answers right.
        gained: Rows that only the new model answers right.
        both_wrong: Rows that both models answer wrong.
        p_value: Probability of a difference between `lost` and `gained` at least as large, if both were equally likely.
        exact: Whether `p_value` is from the exact binomial test; else from the chi-squared test with Edwards'
            correction.
    """

    both_right: int
    lost: int
    gained: int
    both_wrong: int
    p_value: float
    exact: bool


@dataclass(frozen=True)
class Differences:
    """What differs between the answers of two models to the same rows.

    Attributes:
        rows: Number of rows, each answered by both models.
        flipped: Number of rows that the models answer differently; 0 for numbers and vectors, see `mean_distance`.
        flips: The rows that the models answer differently, lost ones first; for numbers and vectors the rows with the
            largest differences.
        label_flips: Counts of the labels (or choices, or filled tokens) that became another one, the most frequent first; empty
            for answers to questions, numbers and vectors.
        by_label: Counts for each gold label, the largest losses first; empty without labels or for tasks without named labels.
        score: The scores of both models; None without labels.
        outcomes: Rows by which model is right; None without labels and for numbers and vectors.
        mean_distance: Mean difference of two numbers, or mean of 1 - cosine of two vectors; None for other answers.
        correlation: Pearson correlation of the numbers of both models; None for other answers.
    """

    rows: int
    flipped: int
    flips: tuple[Flip, ...]
    label_flips: tuple[LabelFlip, ...] = ()
    by_label: tuple[LabelChange, ...] = ()
    score: ScoreChange | None = None
    outcomes: Outcomes | None = None
    mean_distance: float | None = None
    correlation: float | None = None

    @property
    def flip_share(self) -> float:
        """The share of the rows with another answer."""
        return self.flipped / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class ComparedModel:
    """One of the two models that were compared.

    Attributes:
        name: The name by which the user asked for it.
        file: The model file in its folder; the weights of a Hugging Face model.
        kind: Format and scheme, such as ``ONNX int8``, or ``PyTorch fp32``.
        engine: Engine with its version.
        bytes: Size of the file; of a Hugging Face model the size of its weights in fp32.
        max_length: Longest input in tokens.
        p50_ms: Median latency of the short measurement; None if it was left out.
    """

    name: str
    file: str
    kind: str
    engine: str
    bytes: int
    max_length: int
    p50_ms: float | None = None


@dataclass(frozen=True)
class ModelDiff:
    """Two models compared on the rows of a data file.

    Attributes:
        old: The model that is compared with.
        new: The model that is judged.
        task: The task of both models.
        data: Name of the data file.
        differences: How their answers differ.
        latency: How the latencies were measured, in words; empty if they were not.
        time_ratio: Median, lower and upper end of the ratio of new to old times; None if they were not measured.
        machine: CPU and its features.
        failures: Why the comparison fails, one sentence for each limit that is exceeded.
    """

    old: ComparedModel
    new: ComparedModel
    task: str
    data: str
    differences: Differences
    latency: str = ""
    time_ratio: tuple[float, float, float] | None = None
    machine: str = ""
    failures: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as a dictionary for JSON, with `passed` and the share of flipped answers."""
        content = asdict(self)
        content["differences"]["flip_share"] = self.differences.flip_share
        return {"passed": not self.failures, **content}


def compare_answers(
    old: Sequence[RowAnswer],
    new: Sequence[RowAnswer],
    examples: Sequence[Example],
    task: Task,
    *,
    labelled: bool,
    seed: int = 0,
) -> Differences:
    """Compare the answers of two models to the same rows: how many changed and which, and with gold labels the scores of both.

    For numbers and vectors it is how far they differ, the rows with the largest differences first.

    Args:
        old: Answers of the old model, the reference.
        new: Answers of the new model to the same rows, in the same order.
        examples: The rows.
        task: The task of both models.
        labelled: Whether the answers have gold labels.
        seed: Seed of the bootstrap.

    Raises:
        InputError: If the answers are vectors of different sizes, which only scored pairs can compare.
    """
    score = compare_scores(old, new, task.metric, seed) if labelled else None
    if any(row.value is not None or row.vector is not None for row in old):
        return _compare_numbers(old, new, examples, score)
    changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a.parts != b.parts]
    flips = [_describe_flip(old[i], new[i], examples[i]) for i in changed]
    return Differences(
        rows=len(old),
        flipped=len(changed),
        flips=tuple(sorted(flips, key=lambda flip: _OUTCOMES.index(flip.outcome))),
        label_flips=() if task.labels is LabelKind.ANSWERS else _count_label_flips([(old[i], new[i]) for i in changed]),
        by_label=_count_labels(old, new) if task.names_labels and labelled else (),
        score=score,
        outcomes=_count_outcomes(old, new) if labelled else None,
    )


def _compare_numbers(
    old: Sequence[RowAnswer], new: Sequence[RowAnswer], examples: Sequence[Example], score: ScoreChange | None
) -> Differences:
    """Return the differences of answers that are numbers or vectors, with the rows that differ, the largest differences first."""
    if old[0].vector is not None:
        distances, correlation = _vector_distances(old, new), None
    else:
        (_, before), (_, after) = number_columns(old), number_columns(new)
        distances, correlation = np.abs(after - before), pearson(before, after)
    order = np.argsort(-distances, kind="stable")
    return Differences(
        rows=len(old),
        flipped=0,
        flips=tuple(
            _describe_flip(old[i], new[i], examples[i], float(distances[i])) for i in order if distances[i] > 0
        ),
        score=score,
        mean_distance=float(distances.mean()),
        correlation=correlation,
    )


def _vector_distances(old: Sequence[RowAnswer], new: Sequence[RowAnswer]) -> NDArray[np.float64]:
    """Return 1 - cosine of the two vectors of each row; raise InputError if the models' vectors have different sizes."""
    one, other = (np.stack([np.asarray(r.vector, np.float64) for r in rows]) for rows in (old, new))
    if one.shape != other.shape:
        what = f"the models' vectors have {one.shape[1]} and {other.shape[1]} numbers and cannot be compared directly."
        raise InputError(Problem("--data", what, "Give pairs of texts with a score each: --text-pair and --label."))
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return np.asarray(np.maximum(0.0, 1 - (one * other).sum(-1) / np.maximum(lengths, 1e-12)), np.float64)


def _describe_flip(old: RowAnswer, new: RowAnswer, example: Example, distance: float | None = None) -> Flip:
    """Return a `Flip` that describes a row with two different answers in words."""
    texts = (example.text, *example.choices, *([example.pair] if example.pair is not None else []))
    gold = f"{old.truth:g}" if old.truth is not None else _describe_gold(old)
    outcome = ""
    if old.right is not None and new.right is not None:
        outcome = ("both right" if new.right else "lost") if old.right else "gained" if new.right else "both wrong"
    return Flip(example.row, texts, gold, old.shown, new.shown, old.probability, new.probability, outcome, distance)


def _describe_gold(answer: RowAnswer) -> str:
    """Return an example's gold labels in words; empty without labels."""
    parts = [f"{v} [{k[0]}:{k[1]}]" if isinstance(k, tuple) else v for k, v in answer.gold.items()]
    return "; ".join(parts) or ("" if answer.right is None else NOTHING)


def _count_label_flips(pairs: Sequence[tuple[RowAnswer, RowAnswer]]) -> tuple[LabelFlip, ...]:
    """Count how often each part of an old answer (such as a label) became another one in the new answer.

    The most frequent changes come first.
    """
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for old, new in pairs:
        for key in {**old.parts, **new.parts}:
            before, after = old.parts.get(key, NOTHING), new.parts.get(key, NOTHING)
            if before == after:
                continue
            right = old.gold.get(key, NOTHING if old.right is not None else None)
            count = counts[before, after]
            count[0] += 1
            count[1] += before == right
            count[2] += after == right
    flips = [LabelFlip(a, b, *count) for (a, b), count in counts.items()]
    return tuple(sorted(flips, key=lambda flip: (-flip.count, flip.old, flip.new)))


def _count_labels(old: Sequence[RowAnswer], new: Sequence[RowAnswer]) -> tuple[LabelChange, ...]:
    """Count how often each gold label is predicted right by the old model, the new model, or only one of them.

    Args:
        old: The old model's answer to each row.
        new: The new model's answers to the same rows, in the same order.

    Returns:
        One `LabelChange` per gold label: first those whose number of right answers falls most from the old model to the
        new.
    """
    counts: dict[str, Counter[tuple[bool, bool]]] = defaultdict(Counter)
    for before, after in zip(old, new, strict=True):
        for key, label in before.gold.items():
            counts[label][before.parts.get(key) == label, after.parts.get(key) == label] += 1
    changes = [
        LabelChange(
            label,
            n.total(),
            n[True, True] + n[True, False],
            n[True, True] + n[False, True],
            n[True, False],
            n[False, True],
        )
        for label, n in counts.items()
    ]
    return tuple(sorted(changes, key=lambda change: (change.gained - change.lost, -change.lost, change.label)))


# --- statistics -------------------------------------------------------------------------------------------------------


def _count_outcomes(old: Sequence[RowAnswer], new: Sequence[RowAnswer]) -> Outcomes:
    """Count the rows that both models, one of them, or neither answers right; test the difference by McNemar."""
    n = Counter((bool(a.right), bool(b.right)) for a, b in zip(old, new, strict=True))
    lost, gained = n[True, False], n[False, True]
    exact = lost + gained <= _EXACT_ROWS
    return Outcomes(n[True, True], lost, gained, n[False, False], mcnemar(lost, gained, exact), exact)


def mcnemar(lost: int, gained: int, exact: bool = True) -> float:
    """Return the two-sided p-value of McNemar's test, the probability of at least as uneven losses and gains by chance.

    Source: McNemar 1947, with the correction of Edwards 1948; the exact test is the sign test of the discordant pairs.

    Args:
        lost: Rows that only the old model has right.
        gained: Rows that only the new model has right.
        exact: Whether to use the binomial distribution; if not, chi-squared with one degree of freedom.
    """
    total, fewer = lost + gained, min(lost, gained)
    if not total or lost == gained:
        return 1.0
    if exact:
        return min(1.0, 2 * sum(math.comb(total, k) for k in range(fewer + 1)) / (1 << total))
    return math.erfc(math.sqrt((abs(lost - gained) - 1) ** 2 / total / 2))


def compare_scores(
    old: Sequence[RowAnswer],
    new: Sequence[RowAnswer],
    metric: Metric,
    seed: int = 0,
    resamples: int = _RESAMPLES,
    confidence: float = _CONFIDENCE,
) -> ScoreChange:
    """Score both models on the same labelled rows, with a paired bootstrap of the drop (percentile interval).

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13; both models are scored on the same resampled rows.

    Args:
        old: Answers of the old model.
        new: Answers of the new model.
        metric: A metric of the task. Macro F1 and Matthews correlation need answers of one label each.
        seed: Seed of the resampling.
        resamples: Number of resamples.
        confidence: Share of the resamples that the interval holds.
    """
    random, rows = generator(seed, "diff bootstrap"), len(old)
    scorers = [_make_scorer(metric, answers) for answers in (old, new)]
    one, other = (score(np.arange(rows)) for score in scorers)
    drops = []
    for _ in range(resamples):
        chosen = random.integers(0, rows, rows)
        drops.append(metric.drop(*(score(chosen) for score in scorers)))
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(drops, [tail, 1 - tail]) if np.isfinite(drops).any() else (math.nan, math.nan)
    return ScoreChange(metric.name, one, other, metric.drop(one, other), float(low), float(high), resamples)


def _make_scorer(metric: Metric, answers: Sequence[RowAnswer]) -> Callable[[NDArray[np.int64]], float]:
    """Return a function that scores labelled answers on the rows with given numbers, among which a row may be repeated.

    The score is a correlation, a metric of confusion counts, or the quotient of the summed `RowAnswer.terms` (0 if there are none).
    """
    if correlation := {PEARSON.name: pearson, SPEARMAN.name: spearman}.get(metric.name):
        truth, values = number_columns(answers)
        return lambda chosen: correlation(truth[chosen], values[chosen])
    if metric in (MACRO_F1, MCC):
        pairs = [(row.gold[""], row.parts[""]) for row in answers]
        numbers = {name: i for i, name in enumerate(sorted({name for pair in pairs for name in pair}))}
        gold, given = np.array([[numbers[name] for name in pair] for pair in pairs]).T
        return lambda chosen: classification_scores(gold[chosen], given[chosen], len(numbers))[metric.name]
    terms = np.array([(bool(row.right), 1.0) if metric is EXACT_MATCH else row.terms for row in answers], np.float64)
    return lambda chosen: _ratio(terms[chosen].sum(0))


def _ratio(terms: NDArray[np.float64]) -> float:
    """Return the ratio of a numerator and a denominator; 0 if the denominator is 0."""
    return float(terms[0] / terms[1]) if terms[1] else 0.0


def check_limits(differences: Differences, max_drop: float | None, max_flips: float | None) -> list[str]:
    """Return a sentence for each limit that the differences exceed.

    Args:
        differences: The result of `compare_answers`.
        max_drop: Largest allowed drop of the score, as a fraction; None for any. Without a score it is not checked.
        max_flips: Largest allowed share of flipped answers; None for any.
    """
    failures, score = list[str](), differences.score
    if max_drop is not None and score is not None and not score.drop <= max_drop + _ROUNDING:
        metric = METRICS[score.metric]
        failures.append(
            f"{score.metric} {metric.format(score.new)} against {metric.format(score.old)}: {metric.lost(score.drop)}, "
            f"allowed {max_drop * 100:g}"
        )
    if max_flips is not None and not differences.flip_share <= max_flips + _ROUNDING:
        failures.append(
            f"{differences.flipped:,} of {differences.rows:,} answers differ ({differences.flip_share:.2%}), allowed {max_flips:.2%}"
        )
    return failures
