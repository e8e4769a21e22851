"""Scores: metrics of predictions, probabilities from logits, and how far these probabilities can be believed.

- `Score` is the result of an evaluation; `apply_score_function` turns logits into what users see.
- `fit_temperature` calibrates a classifier on held-out rows, `apply_temperature` applies the temperature, `calibration_error`
  measures the effect.
- `fit_threshold` finds the probability below which an answer is called unknown; `measure_coverage` measures what it does.
- `Confidence` records temperature and threshold of one model file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.plugins import make_facade_getattr
from pocketbert.core.tasks import ScoreFunction

if TYPE_CHECKING:
    from pocketbert.core.predict.score_records import Confidence as Confidence
    from pocketbert.core.predict.score_records import Score as Score
    from pocketbert.core.predict.score_records import Temperature as Temperature

__getattr__ = make_facade_getattr(
    __name__, {"core.predict.score_records": ("Confidence", "Score", "Temperature")}
)  # a model that answers needs no records, nor pydantic, which takes as long to import as numpy

_Array = NDArray[np.floating]
LEAST_FIT_ROWS = 100
"""Fewest rows that a temperature or a threshold is fitted on; fewer have only a handful of wrong answers among them."""


def apply_score_function(logits: _Array, score: ScoreFunction) -> NDArray[np.float64]:
    """Turn logits [..., labels] into probabilities by softmax or sigmoid; return them unchanged without a function."""
    x = np.asarray(logits, np.float64)
    if score is ScoreFunction.SOFTMAX:
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))
    if score is ScoreFunction.SIGMOID:
        return np.asarray(1 / (1 + np.exp(-np.clip(x, -700, 700))))
    return x


# --- temperature ---

_LOWEST, _HIGHEST = 0.1, 10.0
"""Range of temperatures that is searched; trained classifiers need 0.5 to 3."""
_BINS = 15
"""Bins of the calibration error, as in the paper's experiments."""
_DIGITS = 4
"""Decimal places of fitted temperatures, thresholds and accuracies."""
_TINY = 1e-38
_GOLDEN_RATIO = (np.sqrt(5) - 1) / 2


def apply_temperature(values: _Array, temperature: float, inside: bool = False) -> NDArray[Any]:
    """Divide logits by a temperature; of probabilities, return those that the divided logits would give.

    The largest number stays the largest, so the label does not change (Guo et al. 2017, section 4.2). Results are
    64-bit numbers: rounded to 32 bits, two different logits could become equal.

    Args:
        values: Logits [..., labels], or probabilities if `inside`.
        temperature: Above 0; for 1 `values` is returned as it is.
        inside: Whether the model file computed the softmax. Its probabilities p become p^(1/T), divided by their sum.
    """
    if temperature == 1:
        return values
    scaled = to_logits(values, inside) / temperature
    return apply_score_function(scaled, ScoreFunction.SOFTMAX) if inside else scaled


def to_logits(values: _Array, inside: bool) -> NDArray[np.float64]:
    """Return logits as float64; from probabilities (`inside`) their logarithms, which are logits up to a constant."""
    x = np.asarray(values, np.float64)
    return np.log(np.maximum(x, _TINY)) if inside else x


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature that `fit_temperature` found, or the reason why it found none.

    Attributes:
        temperature: The best temperature; 1 if none was found.
        why_not: Why none was found; empty if one was.
    """

    temperature: float = 1.0
    why_not: str = ""


def fit_temperature(logits: _Array, gold: NDArray[np.int64]) -> TemperatureFit:
    """Fit the softmax temperature that minimizes the negative log likelihood of the gold labels.

    The likelihood has one optimum, since it is convex in 1 / T. A temperature at an end of the searched range is
    rejected. It means, for example, that all answers are right: then every smaller temperature would be better still.

    Args:
        logits: [N, labels], of rows that neither trained the model nor decide its score.
        gold: Right labels, [N].

    Returns:
        The temperature (1 if the best one is no better than 1), or the reason why none was found.
    """
    if len(gold) < LEAST_FIT_ROWS:
        reason = f"{len(gold)} held-out rows are too few to fit a temperature; at least {LEAST_FIT_ROWS} are needed"
        return TemperatureFit(why_not=reason)
    if not np.isfinite(logits).all():
        return TemperatureFit(why_not="the file answers numbers that are not finite")

    def loss(log_temperature: float) -> float:
        return _negative_log_likelihood(logits, gold, float(np.exp(log_temperature)))

    best = float(np.exp(_minimize(loss, float(np.log(_LOWEST)), float(np.log(_HIGHEST)))))
    if not _LOWEST * 1.01 < best < _HIGHEST / 1.01:
        side = "smaller" if best < 1 else "larger"
        return TemperatureFit(why_not=f"the held-out rows determine no temperature: each {side} one fits them better")
    rounded = round(best, _DIGITS)
    return TemperatureFit(rounded if loss(float(np.log(rounded))) < _negative_log_likelihood(logits, gold) else 1.0)


def _negative_log_likelihood(logits: _Array, gold: NDArray[np.int64], temperature: float = 1.0) -> float:
    """Return the mean negative log likelihood of the gold labels, in nats, at a temperature.

    Args:
        logits: [N, labels].
        gold: Right labels, [N].
        temperature: Number that logits are divided by.
    """
    x = np.asarray(logits, np.float64) / temperature
    x = x - x.max(-1, keepdims=True)
    return float((np.log(np.exp(x).sum(-1)) - x[np.arange(len(gold)), gold]).mean())


def _minimize(function: Callable[[float], float], low: float, high: float, width: float = 1e-6) -> float:
    """Find the only minimum of a function between two bounds by golden-section search; return its position."""
    left, right = high - _GOLDEN_RATIO * (high - low), low + _GOLDEN_RATIO * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > width:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN_RATIO * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN_RATIO * (high - low)
            at_right = function(right)
    return (low + high) / 2


def calibration_error(scores: _Array, gold: NDArray[np.int64]) -> float:
    """Return the expected calibration error: the mean gap between largest probability and share of right answers.

    Source: Guo et al. 2017, equation 3, with 15 bins of equal width, each without its lower end.

    Args:
        scores: Probabilities [N, labels].
        gold: Right labels, [N].

    Returns:
        The error as a fraction; 0 if there are no rows.
    """
    if not len(gold):
        return 0.0
    gaps = sum_confidence_gaps(scores.max(-1), scores.argmax(-1) == gold)
    return float(np.abs(gaps).sum() / len(gold))


def sum_confidence_gaps(largest: _Array, right: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return, for each bin of the calibration error, the number of right answers minus the sum of probabilities.

    The results for several parts of the rows can be added.

    Args:
        largest: Largest probability of each row, [N].
        right: Whether the most probable label of each row is right, [N].
    """
    bins = np.clip(np.ceil(largest * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    return np.asarray(np.bincount(bins, right - largest, _BINS), np.float64)


# --- threshold: selective classification ---

_RISK = 0.05
"""Largest probability that a fitted threshold has less than the requested accuracy, on rows like those of the fit."""
_STARTS = (10, 25, 50, 75)
"""Percentages of the rows, the surest ones, that the first threshold of each test sequence answers."""
_ACCURACY_STEP = 0.01
"""Step in which a lower accuracy that can be reached is searched."""


@dataclass(frozen=True)
class ThresholdFit:
    """The probability threshold that `fit_threshold` found, or the reason why it found none.

    Attributes:
        value: Probability below which an answer is unknown; None if none was found.
        why_not: Why none was found; empty if one was.
        reached: If none was found, the highest accuracy below the requested one that has a threshold; 0 if none has.
    """

    value: float | None = None
    why_not: str = ""
    reached: float = 0.0


@dataclass(frozen=True)
class _Answered:
    """Coverage and selective accuracy at a threshold: the result of `measure_coverage`.

    Attributes:
        share: Share of the rows that are answered, because their probability reaches the threshold (coverage).
        accuracy: Share of right labels among the answered rows; None if no row is answered.
    """

    share: float
    accuracy: float | None


def measure_coverage(sure: NDArray[np.float64], right: NDArray[np.bool_], threshold: float) -> _Answered:
    """Measure which share of the rows reaches a probability threshold, and which share of these rows is right.

    Args:
        sure: Largest probability of each row, [N].
        right: Whether the most probable label of each row is right, [N].
        threshold: Rows with a smaller probability are not answered.
    """
    kept = sure >= threshold
    share = float(kept.mean()) if len(kept) else 0.0
    return _Answered(share, float(right[kept].mean()) if kept.any() else None)


def fit_threshold(sure: NDArray[np.float64], right: NDArray[np.bool_], accuracy: float) -> ThresholdFit:
    """Find the lowest probability threshold above which at least `accuracy` of the labels are shown to be right.

    If the answered rows only just reach the requested accuracy, new texts would miss it in half of all cases. A
    threshold is therefore accepted only if an exact binomial test shows that so few wrong answers would be improbable
    at a lower accuracy. The thresholds are tried in a fixed order: each of four sequences starts with a share of the
    most probable rows and goes on with 1 % more rows, until a threshold fails. Because the order is fixed, the level of
    the test is divided only by the number of sequences.

    Source: Geifman and El-Yaniv 2017, "Selective Classification for Deep Neural Networks", arXiv 1705.08500, for the
    guarantee, with a delta of 0.05; Angelopoulos et al. 2021, "Learn then Test", arXiv 2110.01052 (fixed sequence
    testing), for the order. The first paper's binary search ends with few rows or none if its first half fails by
    chance.

    Args:
        sure: Largest probability of each row, [N], at the file's temperature; of rows that neither trained the model
            nor decide its score.
        right: Whether the most probable label of each row is right, [N].
        accuracy: Requested share of right answers, between 0 and 1.
    """
    if len(sure) < LEAST_FIT_ROWS:
        reason = f"{len(sure)} held-out rows are too few to fit a threshold; at least {LEAST_FIT_ROWS} are needed"
        return ThresholdFit(why_not=reason)
    if not np.isfinite(sure).all():
        return ThresholdFit(why_not="the file answers numbers that are not finite")
    threshold = _smallest_passing_threshold(sure, right, accuracy)
    if threshold is not None:
        return ThresholdFit(threshold)
    reached, lower = 0.0, round(accuracy - _ACCURACY_STEP, _DIGITS)
    while lower > 0 and not reached:
        reached = lower if _smallest_passing_threshold(sure, right, lower) is not None else 0.0
        lower = round(lower - _ACCURACY_STEP, _DIGITS)
    best = f"they show {reached:g} at most" if reached else "they show none"
    reason = f"{len(sure):,} held-out rows do not show an accuracy of {accuracy:g} among the surest answers; {best}"
    return ThresholdFit(why_not=reason, reached=reached)


def _smallest_passing_threshold(sure: NDArray[np.float64], right: NDArray[np.bool_], accuracy: float) -> float | None:
    """Return the smallest threshold that passes the binomial tests for `accuracy`; None if none passes."""
    ranked, least, passing = np.sort(sure)[::-1], 10.0**-_DIGITS, list[float]()
    for start in _STARTS:
        for percent in range(start, 101):
            last = ranked[math.ceil(len(ranked) * percent / 100) - 1]
            threshold = float(np.clip(np.floor(last / least) * least, least, 1 - least).round(_DIGITS))
            kept = sure >= threshold
            if _binomial_tail(int((kept & ~right).sum()), int(kept.sum()), 1 - accuracy) > _RISK / len(_STARTS):
                break
            passing.append(threshold)
    return min(passing, default=None)


def _binomial_tail(wrong: int, answers: int, risk: float) -> float:
    """Return the probability of at most `wrong` wrong answers, if each of `answers` is wrong with probability `risk`.

    Without answers it is 1.

    Args:
        wrong: Number of wrong answers, 0 to `answers`.
        answers: Number of all answers.
        risk: Probability that one answer is wrong, above 0 and below 1.
    """
    if not answers:
        return 1.0
    counts = np.arange(1, wrong + 1)
    steps = np.log((answers - counts + 1) / counts) + math.log(risk / (1 - risk))
    logs = answers * math.log1p(-risk) + np.concatenate([[0.0], np.cumsum(steps)])
    return float(min(1.0, np.exp(logs).sum()))
