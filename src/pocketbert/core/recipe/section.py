"""What all parts of a recipe have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Base of all parts: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
