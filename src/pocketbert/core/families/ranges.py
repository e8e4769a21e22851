"""Ranges of the activations around a product with a stored weight."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Range = tuple[float, float]
"""Smallest and largest number."""


class ProductRanges(BaseModel):
    """The ranges of one matrix product.

    Attributes:
        inputs: Smallest and largest number of its input; None where none is known.
        outputs: The same of its result.
    """

    model_config = ConfigDict(frozen=True)

    inputs: Range | None = None
    outputs: Range | None = None
