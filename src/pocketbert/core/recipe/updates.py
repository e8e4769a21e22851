"""How a model is changed by training: steps and rates, whatever is learnt."""

from __future__ import annotations

from math import ceil
from typing import Any, Self

from pydantic import Field, PositiveInt, SerializerFunctionWrapHandler, model_serializer, model_validator

from pocketbert.core.recipe.section import Fraction, Rate, Section
from pocketbert.core.types import Schedule


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]


class Updates(Section):
    """How a model is changed, whatever it learns."""

    steps: int = Field(0, gt=0, description="Optimiser steps; or give epochs.", json_schema_extra=_without_default)
    epochs: float | None = Field(
        None,
        gt=0,
        le=10_000,
        description="Passes over the training rows, instead of steps; a part of a pass counts too.",
    )
    batch: PositiveInt = Field(64, description="Rows per step.")
    micro_batch: PositiveInt | None = Field(
        None, description="Rows per forward pass in each process; gradients are summed. Default all at once."
    )
    lr: Rate = Field(1e-4, description="Peak learning rate.")
    weight_decay: float = Field(0.01, ge=0, le=1, description="The optimiser's weight decay, not on biases and norms.")
    beta2: Rate = Field(0.999, description="The optimiser's decay of squared gradients.")
    eps: float = Field(1e-8, gt=0, description="The optimiser's epsilon.")
    clip: float = Field(1.0, gt=0, description="Largest global gradient norm.")
    dropout: float | None = Field(None, ge=0, lt=1, description="Dropout of the trained model; default its own.")
    freeze_embeddings: bool = Field(False, description="Keep the embedding tables as they are.")
    checkpoint: PositiveInt = Field(200, description="Steps between two checkpoints.")

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if bool(self.steps) == (self.epochs is not None):
            raise ValueError("give exactly one of 'steps' and 'epochs', e.g. steps: 1000, or epochs: 3")
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only the one of steps and epochs that was given."""
        unset = "steps" if self.epochs is not None else "epochs"
        return {key: value for key, value in handler(self).items() if key != unset}

    def for_rows(self, rows: int) -> Self:
        """The same with `epochs` as steps; itself where it has steps.

        Args:
            rows: Training rows.
        """
        if self.epochs is None:
            return self
        return self.model_copy(update={"steps": ceil(self.epochs * rows / self.batch), "epochs": None})

    def passes(self, rows: int) -> str:
        """Say how long the training is, such as ``180 steps of 32 rows: 0.64 passes over 9,003 rows``.

        Args:
            rows: Training rows.
        """
        passes = self.steps * self.batch / max(rows, 1)
        shown = f"{passes:,.0f}" if passes >= 100 else f"{passes:.3g}"
        return f"{self.steps:,} steps of {self.batch:,} rows: {shown} passes over {rows:,} rows"


class Optimisation(Updates):
    """Steps and rates that finetune and most distil stages share: AdamW, with one learning rate for all weights."""

    warmup: Fraction = Field(0.06, description="Share of the steps with rising learning rate.")
    schedule: Schedule = Field(
        Schedule.LINEAR, description="After the warm-up: linear, falling to 0 at the last step, or constant."
    )
