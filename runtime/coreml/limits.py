"""What a package may ask for at most. Checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.errors import InputError, Problem

MODEL_BYTES = 16 << 20
"""Largest ``model.mlmodel``: programs of encoders take well under one MiB, and parsed messages ten times their bytes."""
CONSTANT_BYTES = 4 << 30
"""All constants of a program, expanded."""
RESULT_ELEMENTS = 1 << 28
"""One result: 1 GiB of float32, twice the largest vocabulary times 512 tokens."""
RUN_BYTES = 8 << 30
"""All results that are kept at one time; views are counted as if they were copies."""


class Budget:
    """Memory that the constants of one package may still take.

    Args:
        where: The package, for the error.
        limit: Bytes.
    """

    def __init__(self, where: str, limit: int = CONSTANT_BYTES) -> None:
        self._where, self._limit = where, limit
        self._left = limit

    def take(self, size: int) -> None:
        """Account for `size` bytes that are about to be allocated.

        Raises:
            InputError: If the package's constants would take more than the limit.
        """
        self._left -= size
        if self._left < 0:
            raise InputError(
                Problem(self._where, f"its constants take more than {self._limit >> 20} MiB expanded; refused.")
            )


def elements(shape: Sequence[int]) -> int:
    """How many elements a result of that shape has.

    Raises:
        ValueError: For negative sizes, and for results above `RESULT_ELEMENTS`.
    """
    out = 1
    for n in shape:
        if n < 0:
            raise ValueError(f"a result of shape {tuple(shape)}")
        out *= n
    if out > RESULT_ELEMENTS:
        raise ValueError(f"a result of shape {tuple(shape)} is larger than {RESULT_ELEMENTS} elements")
    return out
