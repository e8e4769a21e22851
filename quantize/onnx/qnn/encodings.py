"""How the numbers of one tensor become unsigned integers of 8 or 16 bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEAST = 1e-9
"""A step that no tensor of a trained model reaches: it keeps constants of zeros from being divided by zero."""


@dataclass(frozen=True)
class Encoding:
    """Integers of a tensor: a number is (integer - zero) times step.

    Attributes:
        bits: 8 or 16.
        step: Distance of two neighbours.
        zero: The integer that means 0.
    """

    bits: int
    step: float
    zero: int

    @classmethod
    def between(cls, bits: int, low: float, high: float) -> Encoding:
        """Make the encoding of a range, widened to hold zero."""
        low, high, top = min(low, 0.0), max(high, 0.0), (1 << bits) - 1
        step = max((high - low) / top, _LEAST)
        return cls(bits, step, int(np.clip(round(-low / step), 0, top)))

    @classmethod
    def counts(cls) -> Encoding:
        """Make the encoding of whole numbers from -4,096 to 4,095, each of which is exact in 16 bits.

        Coarser steps, which reach further, are multiplied coarsely in the emulator of Qualcomm's NPU.
        """
        return cls(16, 2.0**-3, 1 << 15)

    @classmethod
    def of(cls, bits: int, values: NDArray[np.floating]) -> Encoding:
        """Make the encoding of constants; factors such as 1, 2 and 4 are exact in a step that is a power of two."""
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
        step = 2.0 ** np.ceil(np.log2(max((high - low) / ((1 << bits) - 1), _LEAST)))
        if not np.array_equal(np.rint(values / step) * step, values):
            return cls.between(bits, low, high)
        return cls(bits, step, round(-low / step))

    @classmethod
    def fixed(cls, op_type: str, bits: int) -> Encoding | None:
        """Make the encoding that the compiler prescribes for the results of an operator; None where it prescribes none."""
        if op_type in ("Softmax", "Sigmoid"):
            return cls(bits, 2.0**-bits, 0)
        return cls(bits, 2.0 ** (1 - bits), 1 << (bits - 1)) if op_type == "Tanh" else None

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The type of its integers."""
        return np.uint8 if self.bits == 8 else np.uint16

    def integers(self, values: NDArray[np.floating]) -> NDArray[np.unsignedinteger]:
        """Round numbers to integers; what lies outside the range goes to its end."""
        rounded = np.rint(values / np.float32(self.step)) + self.zero
        return np.asarray(np.clip(rounded, 0, (1 << self.bits) - 1), self.dtype)
