"""Padding of rows to a length that a file takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Padding:
    """What rows are padded with, and where.

    Attributes:
        pad_id: Id of the padding token; every other input is padded with 0.
        side: ``right`` or ``left``.
    """

    pad_id: int
    side: str

    def value(self, name: str) -> int:
        """What an input is padded with."""
        return self.pad_id if name == "input_ids" else 0

    def place(self, length: int, wide: int) -> slice:
        """Where a row's own values are in the padded row.

        Args:
            length: Tokens of the row.
            wide: Tokens of the padded row.
        """
        start = 0 if self.side == "right" else wide - length
        return slice(start, start + length)

    def widened(self, inputs: Mapping[str, NDArray[np.generic]], wide: int) -> dict[str, NDArray[np.generic]]:
        """Pad a batch; the arrays are new ones.

        Args:
            inputs: [B, L, ...] arrays by name.
            wide: Tokens of the padded rows.
        """
        out: dict[str, NDArray[np.generic]] = {}
        for name, value in inputs.items():  # not np.pad, which takes 0.1 ms where a short text takes one
            rows, length, *widths = value.shape
            padded = np.full((rows, wide, *widths), self.value(name), value.dtype)
            padded[:, self.place(length, wide)] = value
            out[name] = padded
        return out
