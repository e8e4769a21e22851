"""Rounding to fp16 without leaving float32: numpy's own conversion takes six times as long, and one more to go back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LARGEST = 65504.0
"""Largest finite fp16 number."""
SMALLEST = 2.0**-24
"""Smallest fp16 number above 0."""

_EXPONENT = np.uint32(0x7F800000)
_NORMAL = np.uint32(0x38800000)  # the exponent of 2**-14, where fp16's steps stop getting finer
_MAGIC = np.uint32((13 << 23) | (1 << 22))  # times 1.5 * 2**13


def round_half(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest fp16 numbers, halves to even, held in float32.

    Adding and subtracting 1.5 * 2**13 times a number's power of two lets the float32 unit round to the 11 bits that
    fp16 keeps; below 2**-14 the power stays that of the smallest normal number, as fp16's steps do.

    Args:
        value: float32, any shape.

    Returns:
        A new array of the same shape; beyond 65520 infinite. Equal to ``value.astype(float16).astype(float32)``, but
        for the sign of zero.
    """
    if not value.ndim:  # numpy answers with scalars, which cannot be written to
        return value.astype(np.float16).astype(np.float32)
    flat = value.ravel(order="K")
    # a sum of squares within fp16's range proves, in one pass of BLAS, that nothing overflows and nothing is NaN
    if not (float(np.dot(flat, flat)) < LARGEST * LARGEST or bool((np.abs(flat) <= LARGEST).all())):
        return value.astype(np.float16).astype(np.float32)
    bits = value.view(np.uint32) & _EXPONENT
    np.maximum(bits, _NORMAL, out=bits)
    bits += _MAGIC
    magic = bits.view(np.float32)
    out: NDArray[np.float32] = value + magic
    out -= magic
    return out
