"""The one metric loop: it scores a torch module, an ONNX file, and everything else alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.heads import Head, Prepared
from pocketbert.core.predict.predictor import Batching, Matrix, Predictor, run_rows
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import TextTokenizer

FLOOR = 0.1
"""`yardstick` is never less than this share of the largest logit. Trained heads spread by 0.2 and more of it."""


@dataclass(frozen=True)
class EvalSet:
    """Tokenized rows with gold labels.

    Attributes:
        name: ``eval`` or ``holdout``.
        head: The task.
        rows: The rows.
    """

    name: str
    head: Head
    rows: Prepared

    def within(self, length: int) -> EvalSet:
        """Cut the same rows to at most this number of tokens."""
        return replace(self, rows=self.rows.within(length))


def evaluate(
    predictor: Predictor, tokenizer: TextTokenizer, rows: EvalSet, batch: int = 1, label: str = ""
) -> tuple[Score, list[Matrix]]:
    """Score a predictor on labelled rows.

    Args:
        predictor: The engine.
        tokenizer: Pads batches.
        rows: What to score on.
        batch: Rows at once; 1 means unpadded.
        label: What the progress bar says.

    Returns:
        The score, and what the head keeps of each row's outputs: of classifiers the logits.
    """
    head, prepared = rows.head, rows.rows
    kept = run_rows(
        predictor,
        tokenizer,
        prepared.encoded,
        head.task,
        Batching(batch, 0.1),
        label,
        reduce=lambda i, m: head.reduce(i, m, prepared),
    )
    return score(kept, rows), kept


def score(reduced: Sequence[Matrix], rows: EvalSet) -> Score:
    """Score what `evaluate` kept."""
    # NaN outputs are reported as such; the arithmetic on them need not warn
    with np.errstate(invalid="ignore"):
        return rows.head.score(reduced, rows.rows)


def worst_difference(values: NDArray[np.floating], reference: NDArray[np.floating]) -> float:
    """Largest absolute difference; NaN if any value is NaN, infinite if any is infinite.

    A running maximum loses a NaN when the next value is finite; numpy's `max` keeps it.
    """
    if values.shape != reference.shape:
        return float("nan")
    difference = np.abs(np.asarray(values, np.float64) - np.asarray(reference, np.float64))
    return float(difference.max()) if difference.size else 0.0


def spread(logits: NDArray[np.floating]) -> float:
    """Typical variation of logits [N, labels] over inputs: the largest per-class standard deviation.

    The yardstick of parity: constant class offsets of an untrained head do not inflate it.
    """
    return float(np.asarray(logits, np.float64).std(0).max())


def yardstick(logits: NDArray[np.floating]) -> float:
    """What differences from logits [N, labels] are measured by: their `spread`, but at least `FLOOR` of the largest.

    An untrained head answers nearly the same to every text (spread 0.1 % of the logits); there the spread alone would
    call the rounding of fp32, and all of int8, an error. A bound of 1e-4 then stands for 1e-5 of the logits.
    """
    largest = float(np.abs(np.asarray(logits, np.float64)).max()) if logits.size else 0.0
    return max(spread(logits), FLOOR * largest, 1e-6)


def rms_error(values: NDArray[np.floating], reference: NDArray[np.floating]) -> float:
    """Root mean square difference relative to the `yardstick` of the reference; NaN-sticky."""
    difference = np.asarray(values, np.float64) - np.asarray(reference, np.float64)
    return float(np.sqrt((difference**2).mean()) / yardstick(reference))


def agreement(values: NDArray[np.floating], reference: NDArray[np.floating]) -> float:
    """Share of rows whose largest logit is at the same place; [N, labels] each."""
    if not np.isfinite(values).all():
        return 0.0
    return float((values.argmax(-1) == reference.argmax(-1)).mean())
