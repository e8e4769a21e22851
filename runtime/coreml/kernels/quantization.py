"""Activations to 8 bits and back (W8A8)."""

from __future__ import annotations

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, kernel, like, named
from pocketbert.runtime.coreml.mil_types import Dtype


@kernel(named("output_dtype"), exact=True)
def quantize(
    input: Array,
    scale: Array,
    output_dtype: str,
    zero_point: Array | None = None,
    axis: int | None = None,
) -> Array:
    """clip(round(input / scale) + zero_point); halves go to the even number.

    Raises:
        ValueError: If scales do not fit the axis.
    """
    target = Dtype(output_dtype)
    if target not in (Dtype.INT8, Dtype.UINT8):
        raise ValueError(f"output_dtype {output_dtype}")
    out: Array = np.rint(input / along(scale, input, axis))
    if zero_point is not None:
        out += along(zero_point, input, axis).astype(np.float32)
    low, high = (-128, 127) if target is Dtype.INT8 else (0, 255)
    return np.clip(out, low, high).astype(target.numpy)


@kernel(like("scale"))
def dequantize(input: Array, scale: Array, zero_point: Array | None = None, axis: int | None = None) -> Array:
    """Back from 8 bits: scale * (input - zero_point)."""
    out: Array = input.astype(np.float32)
    if zero_point is not None:
        out -= along(zero_point, input, axis)
    out *= along(scale, input, axis)
    return out


def along(value: Array, data: Array, axis: int | None) -> Array:
    """A scalar or vector `value` so that it broadcasts along `axis` of `data`.

    Raises:
        ValueError: If a vector has another length than that axis.
    """
    if value.ndim == 0:
        return value
    if axis is None and np.broadcast_shapes(value.shape, data.shape) == data.shape:
        return value
    if value.ndim != 1 or axis is None or value.size not in (1, data.shape[axis]):
        raise ValueError(f"{value.shape} values for axis {axis} of {data.shape}")
    shape = [1] * data.ndim
    shape[axis] = value.size
    return value.reshape(shape)
