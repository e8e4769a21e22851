"""Selective classification: the probability below which an answer is unknown, so that enough of the others are right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.confidence import LEAST_ROWS

CHANCE = 0.05
"""Largest probability that a fitted threshold has less than the accuracy that is wanted, on rows like those of the fit."""
STARTS = (10, 25, 50, 75)
"""Per cent of the rows, the surest ones, that the first threshold of each sequence answers."""
_DIGITS = 4
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
    found = _smallest(sure, right, accuracy)
    if found is not None:
        return Threshold(found)
    reached, lower = 0.0, round(accuracy - _NEAREST, _DIGITS)
    while lower > 0 and not reached:
        reached = lower if _smallest(sure, right, lower) is not None else 0.0
        lower = round(lower - _NEAREST, _DIGITS)
    told = f"they show {reached:g} at most" if reached else "they show none"
    return Threshold(
        why_not=f"{len(sure):,} held-out rows do not show an accuracy of {accuracy:g} among the surest answers; {told}",
        reached=reached,
    )


def _smallest(sure: Probabilities, right: Right, accuracy: float) -> float | None:
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
