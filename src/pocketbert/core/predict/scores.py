"""How sure a classifier is: a temperature for its logits, and how far its probabilities are from the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pocketbert.core.metrics import Metric
from pocketbert.core.tasks import ScoreFunction

# --- score ---
# A score, and functions that turn logits into what a user sees.


class Score(BaseModel):
    """How well predictions match the gold labels.

    Attributes:
        metric: Name of the deciding metric.
        value: Its value, in the metric's unit.
        others: Other metrics by name.
        rows: Rows scored.
        chance: What a model that looks at nothing may reach by luck.
        finite: Whether every output was a finite number.
    """

    # a failed gate may hold NaN, which JSON has no word for; "NaN" reads back, null would not
    model_config = ConfigDict(ser_json_inf_nan="strings")

    metric: str
    value: float
    others: dict[str, float]
    rows: int
    chance: float
    finite: bool

    @classmethod
    def of(
        cls, metric: Metric, value: float, others: dict[str, float], rows: int, chance: float, finite: bool
    ) -> Score:
        """A score whose value is NaN where an output was not finite: nothing was computed then."""
        shown = float(value) if finite else float("nan")
        return cls(metric=metric.name, value=shown, others=others, rows=rows, chance=float(chance), finite=finite)


def probabilities(logits: NDArray[np.floating], score: ScoreFunction) -> NDArray[np.float64]:
    """Scores that a user sees, from logits [..., labels]."""
    x = np.asarray(logits, np.float64)
    if score is ScoreFunction.SOFTMAX:
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))
    if score is ScoreFunction.SIGMOID:
        return np.asarray(1 / (1 + np.exp(-np.clip(x, -700, 700))))
    return x


# --- temperature ---
# The type of a temperature; in a file without numpy, because settings are read where numpy is not loaded.


Temperature = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
"""What logits are divided by before a softmax."""


LEAST, MOST = 0.1, 10.0
"""Temperatures that are searched; trained classifiers need 0.5 to 3."""
LEAST_ROWS = 100
"""Fewer rows say little about a temperature: the wrong answers among them are a handful."""
BINS = 15
"""Bins of the calibration error, as in the paper's experiments."""
_DIGITS = 4
_TINY = 1e-38
_GOLDEN = (np.sqrt(5) - 1) / 2
Share = Annotated[float, Field(ge=0, le=1)]
Values = NDArray[np.floating]


class Confidence(BaseModel):
    """How one model file's logits become probabilities, and how right these are.

    Attributes:
        temperature: What logits are divided by before the softmax; 1 leaves them as they are.
        fitted_rows: Held-out rows that it was fitted on; 0 where it was not fitted.
        note: Why none was fitted; empty where one was fitted or given.
        measured_on: Set that the errors were measured on; empty where there was none.
        rows: Rows of that set.
        error_before: Expected calibration error of the softmax without the temperature, as a fraction.
        error: The same with the temperature.
        unknown: Probability, at the temperature, below which an answer of this file is unknown; None for never.
        unknown_rows: Held-out rows that it was fitted on; 0 where it was not fitted.
        unknown_note: Why none was fitted, where one was asked for; empty otherwise.
        answered: Share of the rows whose answer is not unknown.
        answered_accuracy: Share of right labels among these; None where there are none.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    temperature: Temperature = 1.0
    fitted_rows: Annotated[int, Field(ge=0)] = 0
    note: str = ""
    measured_on: str = ""
    rows: Annotated[int, Field(ge=0)] = 0
    error_before: Share | None = None
    error: Share | None = None
    unknown: Share | None = None
    unknown_rows: Annotated[int, Field(ge=0)] = 0
    unknown_note: str = ""
    answered: Share | None = None
    answered_accuracy: Share | None = None


@dataclass(frozen=True)
class Fit:
    """A temperature that was looked for.

    Attributes:
        temperature: The best one; 1 where none was found.
        why_not: Why none was found; empty where one was.
    """

    temperature: float = 1.0
    why_not: str = ""


def tempered(values: Values, temperature: float, inside: bool = False) -> NDArray[Any]:
    """Divide logits by a temperature; probabilities become those of the divided logits.

    The largest number stays the largest, so the label does not change (Guo et al. 2017, section 4.2). Results are 64-bit
    numbers: rounded to 32 bits, two different logits could become equal.

    Args:
        values: Logits [..., labels], or probabilities where `inside`.
        temperature: Above 0; 1 changes nothing.
        inside: Whether the file computed the softmax itself. Its probabilities p become p^(1/T), divided by their sum.
    """
    if temperature == 1:
        return values
    scaled = logits_of(values, inside) / temperature
    return probabilities(scaled, ScoreFunction.SOFTMAX) if inside else scaled


def logits_of(values: Values, inside: bool) -> NDArray[np.float64]:
    """Logits as they are; of probabilities the logarithms, which are logits up to a constant in each row."""
    numbers = np.asarray(values, np.float64)
    return np.log(np.maximum(numbers, _TINY)) if inside else numbers


def negative_log_likelihood(logits: Values, gold: NDArray[np.int64], temperature: float = 1.0) -> float:
    """Mean of -log p(label) in nats; Guo et al. 2017, equation 2, divided by the number of rows.

    Args:
        logits: [N, labels].
        gold: Right labels, [N].
        temperature: What logits are divided by.
    """
    x = np.asarray(logits, np.float64) / temperature
    x = x - x.max(-1, keepdims=True)
    return float((np.log(np.exp(x).sum(-1)) - x[np.arange(len(gold)), gold]).mean())


def fit_temperature(logits: Values, gold: NDArray[np.int64]) -> Fit:
    """Find the temperature with the smallest negative log likelihood, by golden-section search on its logarithm.

    The likelihood has one optimum, since it is convex in 1 / T. A temperature at an end of the range is none: where all
    answers are right, for example, every smaller one would be better still.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv 1706.04599, equation 9.

    Args:
        logits: [N, labels], of rows that neither trained the model nor decide its score.
        gold: Right labels, [N].
    """
    if len(gold) < LEAST_ROWS:
        return Fit(
            why_not=f"{len(gold)} held-out rows are too few to fit a temperature; at least {LEAST_ROWS} are needed"
        )
    if not np.isfinite(logits).all():
        return Fit(why_not="the file answers numbers that are not finite")

    def cost(place: float) -> float:
        return negative_log_likelihood(logits, gold, float(np.exp(place)))

    low, high = float(np.log(LEAST)), float(np.log(MOST))
    best = float(np.exp(_smallest(cost, low, high)))
    if not LEAST * 1.01 < best < MOST / 1.01:
        side = "smaller" if best < 1 else "larger"
        return Fit(why_not=f"the held-out rows determine no temperature: each {side} one fits them better")
    found = round(best, _DIGITS)
    return Fit(found if cost(float(np.log(found))) < negative_log_likelihood(logits, gold) else 1.0)


def _smallest(cost: Callable[[float], float], low: float, high: float, width: float = 1e-6) -> float:
    """Place of the minimum of a function with one, between two bounds, by golden-section search."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    while high - low > width:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = cost(right)
    return (low + high) / 2


def calibration_error(scores: Values, gold: NDArray[np.int64]) -> float:
    """Expected calibration error: how far the largest probability is from the share of right answers, on average.

    Source: Guo et al. 2017, equation 3, with `BINS` bins of equal width, each without its lower end.

    Args:
        scores: Probabilities [N, labels].
        gold: Right labels, [N].

    Returns:
        A fraction; 0 where there are no rows.
    """
    if not len(gold):
        return 0.0
    sure, right = scores.max(-1), scores.argmax(-1) == gold
    places = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(places, right - sure, BINS)
    return float(np.abs(gaps).sum() / len(gold))


# --- threshold ---
# Selective classification: the probability below which an answer is unknown, so that enough of the others are right.


CHANCE = 0.05
"""Largest probability that a fitted threshold has less than the accuracy that is wanted, on rows like those of the fit."""
STARTS = (10, 25, 50, 75)
"""Per cent of the rows, the surest ones, that the first threshold of each sequence answers."""

"""Of thresholds and accuracies."""
_NEAREST = 0.01
"""Steps in which a lower accuracy that can be reached is looked for."""
Probabilities = NDArray[np.float64]
Right = NDArray[np.bool_]


@dataclass(frozen=True)
class Threshold:
    """A threshold that was looked for.

    Attributes:
        value: Probability below which an answer is unknown; None where none was found.
        why_not: Why none was found; empty where one was.
        reached: Where none was found, the highest lower accuracy that has a threshold; 0 for none.
    """

    value: float | None = None
    why_not: str = ""
    reached: float = 0.0


@dataclass(frozen=True)
class Answered:
    """What a threshold does on some rows.

    Attributes:
        share: Share of the rows that are answered: their probability reaches the threshold.
        accuracy: Share of these that are right; None where no row is answered.
    """

    share: float
    accuracy: float | None


def answered(sure: Probabilities, right: Right, threshold: float) -> Answered:
    """Measure coverage and selective accuracy at a threshold (El-Yaniv and Wiener 2010, section 2).

    Args:
        sure: Largest probability of each row, [N].
        right: Whether its label is right, [N].
        threshold: Rows with a smaller probability are not answered.
    """
    kept = sure >= threshold
    share = float(kept.mean()) if len(kept) else 0.0
    return Answered(share, float(right[kept].mean()) if kept.any() else None)


def fit_threshold(sure: Probabilities, right: Right, accuracy: float) -> Threshold:
    """Find the threshold that answers most rows and shows that at least `accuracy` of the answered are right.

    Where the rows answer just the accuracy that is wanted, new texts would miss it in half of all cases. So a threshold is
    taken only where so few wrong answers would be improbable if the accuracy were lower, by an exact binomial test. Thresholds
    are tried from a share of the surest rows on, each with 1 % more rows, until one fails; because the order is fixed, only
    the number of places to begin at divides the level of the test.

    Source: Geifman and El-Yaniv 2017, "Selective Classification for Deep Neural Networks", arXiv 1705.08500, for the guarantee,
    with `CHANCE` as delta; Angelopoulos et al. 2021, "Learn then Test", arXiv 2110.01052 (fixed sequence testing),
    for the order. The first paper's search by halves ends with few rows or none where its first half fails by chance.

    Args:
        sure: Largest probability of each row, [N], at the file's temperature; of rows that neither trained the model nor decide
            its score.
        right: Whether its label is right, [N].
        accuracy: Share of right answers that is wanted, between 0 and 1.
    """
    if len(sure) < LEAST_ROWS:
        what = f"{len(sure)} held-out rows are too few to fit a threshold; at least {LEAST_ROWS} are needed"
        return Threshold(why_not=what)
    if not np.isfinite(sure).all():
        return Threshold(why_not="the file answers numbers that are not finite")
    found = _threshold_smallest(sure, right, accuracy)
    if found is not None:
        return Threshold(found)
    reached, lower = 0.0, round(accuracy - _NEAREST, _DIGITS)
    while lower > 0 and not reached:
        reached = lower if _threshold_smallest(sure, right, lower) is not None else 0.0
        lower = round(lower - _NEAREST, _DIGITS)
    told = f"they show {reached:g} at most" if reached else "they show none"
    return Threshold(
        why_not=f"{len(sure):,} held-out rows do not show an accuracy of {accuracy:g} among the surest answers; {told}",
        reached=reached,
    )


def _threshold_smallest(sure: Probabilities, right: Right, accuracy: float) -> float | None:
    """The smallest threshold that the sequences of tests reach; None where none of them begins with one that passes."""
    ranked, least, found = np.sort(sure)[::-1], 10.0**-_DIGITS, list[float]()
    for start in STARTS:
        for percent in range(start, 101):
            last = ranked[math.ceil(len(ranked) * percent / 100) - 1]
            threshold = float(np.clip(np.floor(last / least) * least, least, 1 - least).round(_DIGITS))
            kept = sure >= threshold
            if at_most(int((kept & ~right).sum()), int(kept.sum()), 1 - accuracy) > CHANCE / len(STARTS):
                break
            found.append(threshold)
    return min(found, default=None)


def at_most(wrong: int, answers: int, risk: float) -> float:
    """Probability of at most `wrong` wrong answers among some where each is wrong with a probability: a binomial tail.

    Args:
        wrong: Wrong answers, 0 to `answers`.
        answers: All answers.
        risk: Probability of a wrong one, above 0 and below 1.
    """
    if not answers:
        return 1.0
    numbers = np.arange(1, wrong + 1)
    steps = np.log((answers - numbers + 1) / numbers) + math.log(risk / (1 - risk))
    logs = answers * math.log1p(-risk) + np.concatenate([[0.0], np.cumsum(steps)])
    return float(min(1.0, np.exp(logs).sum()))
