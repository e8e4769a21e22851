"""Sums, means and extremes along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, Ints, kernel, like, named, register
from pocketbert.runtime.coreml.mil_types import Dtype


def _reduction(name: str, function: Callable[..., Any], exact: bool = False) -> None:
    """Register a reduction over `axes`, None for all."""

    def run(x: Array, axes: Ints | None = None, keep_dims: bool = False) -> Array:
        result: Array = function(x, axis=axes, keepdims=keep_dims)
        return result

    register(name, run, like("x"), exact)


_reduction("reduce_mean", np.mean)
_reduction("reduce_sum", np.sum)
_reduction("reduce_max", np.max, exact=True)
_reduction("reduce_min", np.min, exact=True)
_reduction("reduce_prod", np.prod)


@kernel(named("output_dtype", Dtype.INT32), exact=True)
def reduce_argmax(x: Array, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32") -> Array:
    """Position of the largest value along `axis`, the first of equals."""
    result: Array = np.argmax(x, axis=axis, keepdims=keep_dims).astype(Dtype(output_dtype).storage)
    return result


@kernel(like("x"))
def cumsum(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running sum along `axis`; `exclusive` leaves each element itself out, `reverse` runs from the end."""
    if reverse:
        x = np.flip(x, axis)
    out: Array = np.cumsum(x, axis=axis, dtype=x.dtype)
    if exclusive:
        out -= x
    return np.flip(out, axis) if reverse else out
