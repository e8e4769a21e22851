"""Quantize and dequantize activations, and expand compressed constants.

A compressed constant (`constexpr_...`) is expanded once, when a package is opened. MIL has two generations: those of iOS 16 hold
packed bits and a shape, those of iOS 18 one number per element and scales or palettes by blocks.
"""

from __future__ import annotations

import math

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, Declared, Ints, Rule, dtype_named_by, dtype_of, kernel
from pocketbert.runtime.coreml.types import Dtype, check_elements
from pocketbert.runtime.coreml.weights import unpack_bits

CONSTEXPR_PREFIX = "constexpr_"
"""Start of the MIL names of operations that make compressed constants."""
_LUT_BITS = {2: Dtype.UINT1, 4: Dtype.UINT2, 16: Dtype.UINT4, 64: Dtype.UINT6}
_FULL_LUT = 256


@kernel(dtype_named_by("output_dtype"), exact=True)
def _quantize(
    input: Array,
    scale: Array,
    output_dtype: str,
    zero_point: Array | None = None,
    axis: int | None = None,
) -> Array:
    """Quantize activations: clip(round(input / scale) + zero_point), with halves rounded to the even number.

    Raises:
        ValueError: If scales or zero points do not fit the axis, or the dtype is neither int8 nor uint8.
    """
    target = Dtype(output_dtype)
    if target not in (Dtype.INT8, Dtype.UINT8):
        raise ValueError(f"output_dtype {output_dtype}")
    out: Array = np.rint(input / _along(scale, input, axis))
    if zero_point is not None:
        out += _along(zero_point, input, axis).astype(np.float32)
    low, high = (-128, 127) if target is Dtype.INT8 else (0, 255)
    return np.clip(out, low, high).astype(target.numpy)


@kernel(dtype_of("scale"))
def _dequantize(input: Array, scale: Array, zero_point: Array | None = None, axis: int | None = None) -> Array:
    """Convert activations back from 8 bits: scale * (input - zero_point)."""
    out: Array = input.astype(np.float32)
    if zero_point is not None:
        out -= _along(zero_point, input, axis)
    out *= _along(scale, input, axis)
    return out


def _along(value: Array, data: Array, axis: int | None) -> Array:
    """Return a scale or zero point, reshaped so that it broadcasts along `axis` of `data`.

    A scalar is returned unchanged; so is, without an axis, an array that already broadcasts to the shape of `data`.

    Raises:
        ValueError: If the value is neither, nor a vector with one number or as many as the axis has.
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


def _sparse(data: str) -> Rule:
    """Return a dtype rule for two results: a bit mask, and values of the dtype of the parameter `data`."""

    def rule(declared: Declared) -> tuple[Dtype, ...]:
        return (Dtype.UINT1, declared.dtypes[data][0])

    return rule


@kernel(dtype_of("scale"))
def _constexpr_affine_dequantize(quantized_data: Array, zero_point: Array, scale: Array, axis: int) -> Array:
    """Expand an 8-bit constant to scale * (data - zero_point), by channel along `axis` (iOS 16)."""
    out: Array = quantized_data.astype(np.float32)
    out -= _along(zero_point, quantized_data, axis).astype(np.float32)
    out *= _along(scale, quantized_data, axis)
    return out


@kernel(dtype_named_by("output_dtype"))
def _constexpr_cast(source_val: Array, output_dtype: str) -> Array:
    """Convert a stored constant to another float type."""
    out: Array = source_val.astype(Dtype(output_dtype).storage)
    return out


@kernel(dtype_of("scale"))
def _constexpr_blockwise_shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    """Expand a constant to scale * (data - offset), with a scale for each block of elements (iOS 18).

    Args:
        data: Quantized elements, of shape D.
        scale: Scale of each block, with as many axes as `data`; each size divides that of D.
        offset: Offset of each block, of the shape of `scale`; None for 0.
    """
    out: Array = data.astype(np.float32)
    if offset is not None:
        out -= _repeat_blocks(offset.astype(np.float32), data.shape)
    out *= _repeat_blocks(scale, data.shape)
    return out


@kernel(dtype_of("lut"), exact=True)
def _constexpr_lut_to_dense(
    indices: Array, lut: Array, shape: Ints | None = None, vector_axis: int | None = None
) -> Array:
    """Expand a constant of palette indices to the palette's numbers.

    Args:
        indices: iOS 16: indices in packed bits; iOS 18: one index per element (or vector).
        lut: The palette. iOS 16: [palette]; iOS 18: [*blocks, palette, vector size].
        shape: Shape of the result; iOS 16 only.
        vector_axis: Axis of the result along which the palette's vectors are laid out; iOS 18 only.
    """
    if shape is None:
        return _look_up(indices, lut, vector_axis)
    count = math.prod(shape)
    if lut.size == _FULL_LUT:
        if indices.size != count:
            raise ValueError(f"{indices.size} indices for shape {shape}")
        return lut[indices.reshape(-1)].reshape(shape)
    dtype = _LUT_BITS[lut.size]
    if indices.size != (count * dtype.bits + 7) // 8:
        raise ValueError(f"{indices.size} bytes of {dtype.bits} bits for shape {shape}")
    out: Array = lut[unpack_bits(indices.reshape(-1), dtype, count)]
    return out.reshape(shape)


@kernel(dtype_of("nonzero_data"), exact=True)
def _constexpr_sparse_to_dense(nonzero_data: Array, mask: Array, shape: Ints | None = None) -> Array:
    """Expand a sparse constant: its values where the mask is set, and 0 elsewhere.

    Args:
        nonzero_data: The values, [number of set bits].
        mask: Which elements have a value. iOS 16: packed bits; iOS 18: one number per element.
        shape: Shape of the result; iOS 16 only.
    """
    if shape is not None:
        count = math.prod(shape)
        if mask.size != (count + 7) // 8:
            raise ValueError(f"{mask.size} bytes of mask for shape {shape}")
        mask = unpack_bits(mask.reshape(-1), Dtype.UINT1, count).reshape(shape)
    return _to_dense(nonzero_data, mask)


@kernel(_sparse("scale"))
def _constexpr_sparse_blockwise_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> tuple[Array, Array]:
    """Expand a sparse constant's values to scale * (data - offset), and return (mask, values)."""
    dense = _constexpr_blockwise_shift_scale(_to_dense(nonzero_data, data_mask), scale, offset)
    return data_mask, dense[data_mask != 0]


@kernel(_sparse("lut"), exact=True)
def _constexpr_lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: int | None = None
) -> tuple[Array, Array]:
    """Expand a sparse constant of palette indices, and return (mask, values)."""
    dense = _look_up(_to_dense(indices_nonzero_data, indices_mask), lut, vector_axis)
    mask = indices_mask
    if lut.shape[-1] > 1 and vector_axis is not None:
        mask = np.repeat(mask, lut.shape[-1], axis=vector_axis)
    return mask, dense[mask != 0]


def _to_dense(values: Array, mask: Array) -> Array:
    """Return an array with the values where a mask is set, and 0 elsewhere.

    Raises ValueError if there are not as many values as set bits.
    """
    is_set = mask != 0
    if values.ndim != 1 or np.count_nonzero(is_set) != values.size:
        raise ValueError(f"{values.size} values for {np.count_nonzero(is_set)} set bits")
    out = np.zeros(mask.shape, values.dtype)
    out[is_set] = values
    return out


def _repeat_blocks(value: Array, shape: tuple[int, ...]) -> Array:
    """Repeat the one number of each block along each axis, up to `shape`. Axes of size 1 are left for broadcasting.

    Raises ValueError if the blocks do not divide the shape.
    """
    if value.ndim != len(shape):
        raise ValueError(f"{value.shape} blocks of {shape}")
    for axis, (blocks, size) in enumerate(zip(value.shape, shape, strict=True)):
        if blocks < 1 or size % blocks:
            raise ValueError(f"{value.shape} blocks of {shape}")
        if 1 < blocks < size:
            value = np.repeat(value, size // blocks, axis)
    return value


def _look_up(indices: Array, lut: Array, vector_axis: int | None) -> Array:
    """Replace palette indices by the numbers of their block's palette.

    Palette entries that are vectors are laid out along `vector_axis`. Raises ValueError if palettes, indices and axis
    do not fit.
    """
    rank, (palette, vector) = indices.ndim, lut.shape[-2:]
    blocks = lut.shape[:-2]
    if len(blocks) != rank or any(b < 1 or n % b for n, b in zip(indices.shape, blocks, strict=True)):
        raise ValueError(f"palettes {lut.shape} for indices {indices.shape}")
    if indices.size and int(indices.max()) >= palette:
        raise ValueError(f"index {int(indices.max())} in a palette of {palette}")
    check_elements((*indices.shape, vector))
    # which palette an element uses, as a flat number: palettes are not repeated per element
    which = np.zeros((1,) * rank, np.intp)
    for axis, (n, b) in enumerate(zip(indices.shape, blocks, strict=True)):
        places = (np.arange(n) // (n // b) if n else np.zeros(0, np.intp)).reshape(
            [n if i == axis else 1 for i in range(rank)]
        )
        which = which * b + places
    out: Array = lut.reshape(-1, vector)[which * palette + indices]  # [*indices, vector]
    if vector == 1:
        return out[..., 0]
    if vector_axis is None:
        raise ValueError("vectors without a vector_axis")
    axis = vector_axis % rank
    out = np.moveaxis(out, -1, axis + 1)
    return out.reshape([n * vector if i == axis else n for i, n in enumerate(indices.shape)])
