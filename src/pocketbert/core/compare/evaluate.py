"""Evaluation: score any predictor on labelled rows, and measure how far two predictors' outputs differ.

`evaluate` scores a torch module, an ONNX file and everything else in the same way. Differences of outputs are measured
by `worst_difference` and `rms_error`, both relative to the `logit_scale` (of each head: `head_scales`), and by `label_agreement`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.heads import Head, Prepared
from pocketbert.core.predict.predictor import Batching, Matrix, Predictor, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import NamedTask

if TYPE_CHECKING:
    from pocketbert.core.predict.scores import Score


@dataclass(frozen=True)
class EvalSet:
    """Tokenized rows of an evaluation set, with their gold labels and the task's head.

    Attributes:
        name: ``eval`` or ``holdout``.
        head: Head of the task.
        rows: The rows.
    """

    name: str
    head: Head
    rows: Prepared

    def within(self, length: int) -> EvalSet:
        """Return the set with its rows cut to at most `length` tokens."""
        return replace(self, rows=self.rows.within(length))


def evaluate(
    predictor: Predictor, tokenizer: TextTokenizer, rows: EvalSet, batch: int = 1, label: str = ""
) -> tuple[Score, list[Matrix]]:
    """Run a predictor on labelled rows; return the score, and the outputs of each row that it is computed from.

    Args:
        predictor: The model file or module to score.
        tokenizer: Pads the rows of a batch.
        rows: The rows to score on.
        batch: Largest number of rows that are run at once; 1 runs each row alone, without more padding than the file needs.
        label: Text of the progress bar.

    Returns:
        The score, and for each row a matrix with the outputs that the task's score needs (for classifiers the logits).
    """
    head, prepared = rows.head, rows.rows
    reduced = run_rows(
        predictor,
        tokenizer,
        prepared.encoded,
        head.task,
        Batching(batch, 0.1),
        label,
        reduce=lambda i, m: head.reduce(i, m, prepared),
    )
    return _score(reduced, rows), reduced


def _score(reduced: Sequence[Matrix], rows: EvalSet) -> Score:
    """Compute the task's score from the outputs that `evaluate` keeps of each row, without numpy's NaN warnings."""
    with np.errstate(invalid="ignore"):
        return rows.head.score(reduced, rows.rows)


# --- differences of outputs ---

_FLOOR = 0.1
"""Least yardstick as a share of the largest logit. Trained heads have a spread of 0.2 of it and more."""
_ONE = np.ones(1)


def worst_difference(
    values: NDArray[np.floating], reference: NDArray[np.floating], scales: NDArray[np.floating] = _ONE
) -> float:
    """Return the largest absolute difference of two arrays; NaN if a value is NaN or the shapes differ, 0 if they are empty.

    NaN is kept by numpy's `max`; a maximum updated in a Python loop would lose it when the next value is finite.

    Args:
        values: The values.
        reference: The values that they should have.
        scales: What the differences are divided by, one number or one for each column; see `head_scales`.
    """
    if values.shape != reference.shape or (scales.size > 1 and values.shape[-1] != scales.size):
        return float("nan")
    difference = np.abs(np.asarray(values, np.float64) - np.asarray(reference, np.float64)) / scales
    return float(difference.max()) if difference.size else 0.0


def logit_spread(logits: NDArray[np.floating]) -> float:
    """Return how much logits [N, labels] vary over the N inputs: the largest standard deviation of a class.

    A constant added to all logits of a class, as the bias of an untrained head adds one, does not change the spread.
    """
    return float(np.asarray(logits, np.float64).std(0).max())


def logit_scale(logits: NDArray[np.floating]) -> float:
    """Return what differences of logits [N, labels] are divided by: their spread, at least a tenth of the largest logit.

    An untrained head answers nearly the same to every text (its spread is 0.1 % of its logits). Divided by such a
    spread, the rounding of fp32, and every int8 file, would look like an error. With a tenth of the largest logit as
    the smallest scale, a bound of 1e-4 stands for 1e-5 of the logits.
    """
    largest = float(np.abs(np.asarray(logits, np.float64)).max()) if logits.size else 0.0
    return max(logit_spread(logits), _FLOOR * largest, 1e-6)


def head_scales(logits: NDArray[np.floating], heads: Sequence[NamedTask]) -> NDArray[np.float64]:
    """Return what differences of logits [N, columns] are divided by: one number, or with several heads one for each column.

    A column of one of several heads has the `logit_scale` of that head: by the scale of all columns, a head whose logits differ
    little could be entirely wrong and pass.
    """
    if not heads:
        return np.array([logit_scale(logits)])
    scales = np.full(logits.shape[-1], logit_scale(logits))
    for head in heads:
        if logits[:, head.columns].size:
            scales[head.columns] = logit_scale(logits[:, head.columns])
    return scales


def rms_error(values: NDArray[np.floating], reference: NDArray[np.floating]) -> float:
    """Return the root mean square difference from a reference, divided by the scale of the reference's logits."""
    difference = np.asarray(values, np.float64) - np.asarray(reference, np.float64)
    return float(np.sqrt((difference**2).mean()) / logit_scale(reference))


def label_agreement(values: NDArray[np.floating], reference: NDArray[np.floating]) -> float:
    """Return the share of rows where two logit matrices [N, labels] give the same label; 0 if a value is not finite."""
    if not np.isfinite(values).all():
        return 0.0
    return float((values.argmax(-1) == reference.argmax(-1)).mean())
