"""How sure a classifier is: a temperature for its logits, and how far its probabilities are from the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pocketbert.core.predict.score import probabilities
from pocketbert.core.predict.temperature import Temperature
from pocketbert.core.tasks import ScoreFunction

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
