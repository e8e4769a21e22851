"""Rows of data and scores for the tests of heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pocketbert.core.heads import Head, Prepared
from pocketbert.core.predict.examples import Example, Label
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.scores import Score

Entry = tuple[str | tuple[str, str], Label | None]


def make_rows(*entries: Entry) -> list[Example]:
    """Examples of ``(text, label)`` or ``((text, second text), label)``."""
    pairs = [((t, None) if isinstance(t, str) else t, label) for t, label in entries]
    return [Example(text, pair, label, i) for i, ((text, pair), label) in enumerate(pairs, 1)]


def score_outputs(head: Head, prepared: Prepared, outputs: Sequence[Matrix]) -> Score:
    """Score outputs by way of what the head keeps of them, as evaluation does it."""
    with np.errstate(invalid="ignore"):
        return head.score([head.reduce(i, m, prepared) for i, m in enumerate(outputs)], prepared)


def check_not_finite_spoils(
    head: Head, prepared: Prepared, outputs: list[Matrix], places: Sequence[tuple[int, int, int]]
) -> None:
    """One number of the outputs that is not finite, at any of (row, token, column), leaves no score."""
    for broken in (np.nan, np.inf):
        for row, token, column in places:
            changed = [m.copy() for m in outputs]
            changed[row][token, column] = broken
            score = score_outputs(head, prepared, changed)
            assert math.isnan(score.value)
            assert not score.finite
