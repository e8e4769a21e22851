"""A score, and functions that turn logits into what a user sees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pocketbert.core.metrics import Metric
from pocketbert.core.tasks import ScoreFunction


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
