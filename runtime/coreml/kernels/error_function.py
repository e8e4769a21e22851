"""The error function in float32, vectorized; numpy has none."""

from __future__ import annotations

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array

_LARGEST = np.float32(16.0)
_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (
        1.12837971e00,
        1.02765482e-01,
        -1.84385039e-04,
        -6.25718147e-04,
        8.97119240e-05,
        -5.98555552e-06,
        1.58950450e-07,
    )
)


def erf(x: Array) -> Array:
    """The error function, within 1.5e-7.

    erf(x) = tanh(x P(x²)), P being a polynomial fitted to atanh(erf(x)) / x on [-4, 4], weighted by what its error
    means for the result. A rational function as in most libraries rounds worse in float32 (3.7e-7) and takes longer.

    Args:
        x: float32.

    Returns:
        A new array.
    """
    square = x * x
    # beyond 4 the result is 1 in float32: P is held, x itself carries tanh there
    square = np.minimum(square, _LARGEST)
    out: Array = square * _COEFFICIENTS[-1]
    for c in _COEFFICIENTS[-2:0:-1]:
        out += c
        out *= square
    out += _COEFFICIENTS[0]
    out *= x
    return np.tanh(out)
