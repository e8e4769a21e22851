"""The type of a temperature; in a file without numpy, because settings are read where numpy is not loaded."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Temperature = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
"""What logits are divided by before a softmax."""
