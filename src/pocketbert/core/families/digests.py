"""Digests by which weights are known in every file, whatever their names and whichever way they are turned there."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest_of(numbers: NDArray[Any]) -> str | None:
    """Return the digest of a matrix as fp32 numbers, the same for its transpose; None where it is no matrix.

    Args:
        numbers: The matrix, with or without axes of length 1.
    """
    matrix = np.squeeze(np.asarray(numbers, np.float32))
    if matrix.ndim != 2:
        return None
    return min(hashlib.sha256(np.ascontiguousarray(m).tobytes()).hexdigest() for m in (matrix, matrix.T))
