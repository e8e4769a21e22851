"""Records of scores and of a file's confidence, as results, reports and artifacts.json hold them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from pocketbert.core.metrics import METRICS, Metric

_Share = Annotated[float, Field(ge=0, le=1)]

Temperature = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
"""Number that logits are divided by before a softmax."""


class Score(BaseModel):
    """The score of a model on labelled rows, with its metric and the score of a blind guess.

    Attributes:
        metric: Name of the deciding metric.
        value: Value of the deciding metric, in its unit; NaN if an output was not finite.
        others: Values of other metrics by name.
        rows: Number of rows that were scored.
        chance: Score that a model may reach by luck without reading the text.
        finite: Whether every output was a finite number.
        heads: For a model with several heads, the score of each by its name, on the rows that have a label of it; of 0 rows if
            none has.
    """

    # a failed gate may hold NaN, which JSON has no word for; "NaN" reads back, null would not
    model_config = ConfigDict(ser_json_inf_nan="strings")

    metric: str
    value: float
    others: dict[str, float]
    rows: int
    chance: float
    finite: bool
    heads: dict[str, Score] = {}

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `heads` where there is one head."""
        return {key: value for key, value in handler(self).items() if key != "heads" or value}

    @classmethod
    def of(
        cls, metric: Metric, value: float, others: dict[str, float], rows: int, chance: float, finite: bool
    ) -> Score:
        """Build a score; its value is NaN if an output of the model was not finite."""
        value = float(value) if finite else float("nan")
        return cls(metric=metric.name, value=value, others=others, rows=rows, chance=float(chance), finite=finite)

    def share_kept(self, teacher: Score) -> float:
        """Return which share of a teacher's score this score keeps; of several heads, of the mean of those that both are scored for."""
        heads, asked = self.heads, teacher.heads
        both = [name for name, own in heads.items() if own.rows and name in asked and asked[name].rows]
        values = [sum(s.heads[name].value for name in both) / len(both) if both else s.value for s in (teacher, self)]
        return METRICS[self.metric].kept(*values)


class Confidence(BaseModel):
    """How a classifier file's logits become probabilities, and how well calibrated these are.

    Attributes:
        temperature: Number that logits are divided by before the softmax; 1 leaves them unchanged.
        fitted_rows: Number of held-out rows that the temperature was fitted on; 0 if it was not fitted.
        note: Why no temperature was fitted; empty if one was fitted or given.
        measured_on: Name of the set that the errors were measured on; empty if there was none.
        rows: Number of rows in that set.
        error_before: Expected calibration error of the softmax without the temperature, as a fraction.
        error: Expected calibration error with the temperature, as a fraction.
        unknown: Probability, at the temperature, below which an answer of this file is unknown; None if no answer is.
        unknown_rows: Number of held-out rows that the threshold `unknown` was fitted on; 0 if it was not fitted.
        unknown_note: Why no threshold was fitted although one was requested; else empty.
        answered: Share of the rows in the set whose answer is not unknown.
        answered_accuracy: Share of right labels among these rows; None if there are none.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    temperature: Temperature = 1.0
    fitted_rows: Annotated[int, Field(ge=0)] = 0
    note: str = ""
    measured_on: str = ""
    rows: Annotated[int, Field(ge=0)] = 0
    error_before: _Share | None = None
    error: _Share | None = None
    unknown: _Share | None = None
    unknown_rows: Annotated[int, Field(ge=0)] = 0
    unknown_note: str = ""
    answered: _Share | None = None
    answered_accuracy: _Share | None = None
