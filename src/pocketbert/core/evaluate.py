"""The one metric loop: it scores a torch module, an ONNX file, and everything else alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pocketbert.core.metrics import chance_ceiling, classification_scores
from pocketbert.core.predictor import Predictor, run_encoded
from pocketbert.core.tasks import ScoreFunction, Task
from pocketbert.core.tokenization import Encoded, TextTokenizer, cut

FLOOR = 0.1
"""`yardstick` is never less than this share of the largest logit. Trained heads spread by 0.2 and more of it."""


class Score(BaseModel):
    """How well predictions match the gold labels.

    Attributes:
        metric: Name of the deciding metric.
        value: Its value, a fraction.
        others: Other metrics by name.
        rows: Rows scored.
        chance: What always answering the commonest label may reach by luck.
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


class EvalSet(BaseModel):
    """Tokenized rows with gold labels.

    Attributes:
        name: ``eval`` or ``holdout``.
        encoded: N tokenized rows.
        gold: Label ids, shape [N].
        labels: Number of labels.
    """

    model_config = {"arbitrary_types_allowed": True}

    name: str
    encoded: list[Encoded]
    gold: NDArray[np.int64]
    labels: int

    def within(self, length: int) -> EvalSet:
        """The same rows, cut to at most so many tokens."""
        if all(len(e) <= length for e in self.encoded):
            return self
        return self.model_copy(update={"encoded": [cut(e, length) for e in self.encoded]})


def evaluate(
    predictor: Predictor,
    tokenizer: TextTokenizer,
    rows: EvalSet,
    task: Task,
    batch: int = 1,
    label: str = "",
) -> tuple[Score, NDArray[np.float32]]:
    """Score a predictor on labelled rows.

    Args:
        predictor: The engine.
        tokenizer: Pads batches.
        rows: What to score on.
        task: Decides the metric.
        batch: Rows at once; 1 means unpadded.
        label: What the progress bar says.

    Returns:
        The score, and the logits [N, labels].
    """
    out = run_encoded(predictor, tokenizer, rows.encoded, rows=batch, slack=0.1, label=label)
    logits = np.asarray(out[predictor.outputs[0]], np.float32)
    return score_logits(logits, rows.gold, rows.labels, task), logits


def score_logits(logits: NDArray[np.float32], gold: NDArray[np.int64], labels: int, task: Task) -> Score:
    """Score logits of shape [N, labels] against label ids [N]."""
    finite = bool(np.isfinite(logits).all())
    scores = classification_scores(gold, logits.argmax(-1).astype(np.int64), labels)
    value = scores.pop(task.metric.name) if finite else float("nan")
    return Score(
        metric=task.metric.name, value=value, others=scores, rows=len(gold),
        chance=chance_ceiling(gold, labels), finite=finite,
    )  # fmt: skip


def probabilities(logits: NDArray[np.floating], score: ScoreFunction) -> NDArray[np.float64]:
    """Scores that a user sees, from logits [..., labels]."""
    x = np.asarray(logits, np.float64)
    if score is ScoreFunction.SOFTMAX:
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))
    if score is ScoreFunction.SIGMOID:
        return np.asarray(1 / (1 + np.exp(-x)))
    return x


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
