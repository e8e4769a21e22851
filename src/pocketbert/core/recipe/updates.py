"""How a model is changed by training: steps and rates, whatever is learnt."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from pocketbert.core.recipe.section import Fraction, Rate, Section
from pocketbert.core.types import Schedule


class Updates(Section):
    """How a model is changed, whatever it learns."""

    steps: PositiveInt = Field(description="Optimiser steps.")
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


class Optimisation(Updates):
    """Steps and rates that finetune and most distil stages share: AdamW, with one learning rate for all weights."""

    warmup: Fraction = Field(0.06, description="Share of the steps with rising learning rate.")
    schedule: Schedule = Field(
        Schedule.LINEAR, description="After the warm-up: linear, falling to 0 at the last step, or constant."
    )
