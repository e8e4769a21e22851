"""How engines and quantizers round, as functions of torch tensors: numbers go through few steps and come back as fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Rounding = Callable[["Tensor"], "Tensor"]
"""Returns the numbers of a tensor after they went through fewer bits."""

_BLOCK = 32
"""Numbers of the last axis that share a scale in blocks."""
_STEPS = 255
_INT8_LOW, _INT8_HIGH = -128, 127
_INT4_LOW, _INT4_HIGH, _INT4_STEPS = -8, 7, 15
_LEAST = 1e-30
"""A scale that is never reached: it keeps rows of zeros from being divided by zero."""


def per_row(values: Tensor) -> Tensor:
    """Round to int8 with zero at zero, one scale for each index of the first axis: an output channel, a table's row."""
    return signed(values, values.abs().amax(_others(values), keepdim=True))


def per_row_with_offset(values: Tensor) -> Tensor:
    """Round to 256 steps between the smallest and the largest number of each index of the first axis."""
    return _between(values, _others(values))


def per_row_in_halves(values: Tensor) -> Tensor:
    """Round as `per_row_with_offset`, in fp16 from the numbers to the scale, as coremltools does with fp16 weights.

    A number that is many steps from zero is divided coarsely in fp16: 2 to 3 % of them go to the next step.
    """
    return _in_halves(values, _others(values), _INT8_LOW, _INT8_HIGH)


def per_block_with_offset(values: Tensor) -> Tensor:
    """Round to 16 steps between the smallest and largest of 32 numbers of a row, [rows, columns, ...]."""
    return _by_blocks_of_rows(values, lambda parts: _between(parts, (-1,), _INT4_STEPS))


def per_block_in_halves(values: Tensor) -> Tensor:
    """Round as `per_block_with_offset`, in fp16 from the numbers to the scale; see `per_row_in_halves`."""
    return _by_blocks_of_rows(values, lambda parts: _in_halves(parts, (-1,), _INT4_LOW, _INT4_HIGH))


def palette_of_64(values: Tensor) -> Tensor:
    """Replace every number by the nearest of 64; see `pocketbert.quantize.palettes`."""
    return _from_palette(values, 64)


def palette_of_16(values: Tensor) -> Tensor:
    """Replace every number by the nearest of 16; see `pocketbert.quantize.palettes`."""
    return _from_palette(values, 16)


def per_token(values: Tensor) -> Tensor:
    """Round to 256 steps between the smallest and the largest number of each token, [..., H]."""
    return _between(values, (-1,))


def per_tensor(values: Tensor) -> Tensor:
    """Round to 256 steps between the smallest and the largest number of all."""
    return _between(values, tuple(range(values.ndim)))


def per_tensor_around_zero(values: Tensor) -> Tensor:
    """Round to int8 with zero at zero, one scale for all numbers."""
    return signed(values, values.abs().amax())


def four_bits_in_blocks(values: Tensor) -> Tensor:
    """Round to 4 bits, 32 numbers of the last axis sharing a scale; see `pocketbert.quantize.blocks`."""
    return _in_blocks(values, 8)


def eight_bits_in_blocks(values: Tensor) -> Tensor:
    """Round to 8 bits, 32 numbers of the last axis sharing a scale; see `pocketbert.quantize.blocks`."""
    return _in_blocks(values, 128)


def four_bits_per_block(values: Tensor) -> Tensor:
    """Round to 4 bits with zero at zero, 32 numbers of the last axis sharing a scale, as ai-edge-quantizer does.

    The scale is cut to 8 bits of mantissa, which LiteRT's kernels want, and stored as fp16: the smallest blocks become zero.
    """
    import torch

    parts = _blocks_of(values)
    scale = (parts.abs().amax(-1, keepdim=True) / 7).to(torch.bfloat16).half().float()
    steps = (parts / scale.where(scale > 0, torch.ones_like(scale))).round().clamp(-8, 7)
    return _whole(steps * scale, values)


def per_block(values: Tensor) -> Tensor:
    """Round to int8 with zero at zero, 32 numbers of the last axis sharing a scale, as inputs of MatMulNBits are."""
    parts = _blocks_of(values)
    return _whole(signed(parts, parts.abs().amax(-1, keepdim=True)), values)


def signed(values: Tensor, largest: Tensor | float) -> Tensor:
    """Round to int8 with zero at zero; `largest` becomes 127, and what is larger is cut to it."""
    scale = largest / 127 + _LEAST
    return (values / scale).round().clamp(-127, 127) * scale


def unsigned(values: Tensor, low: Tensor | float, high: Tensor | float, steps: int = _STEPS) -> Tensor:
    """Round to `steps` steps from `low` to `high`, zero being one of their ends; what lies outside is cut."""
    scale = (high - low) / steps + _LEAST
    zero = (values.new_zeros(()) - low / scale).round()
    return ((values / scale).round() + zero).clamp(0, steps).sub(zero) * scale


def _in_blocks(values: Tensor, middle: int) -> Tensor:
    parts = _blocks_of(values)
    up, down = parts.amax(-1, keepdim=True), -parts.amin(-1, keepdim=True)
    size = (up.minimum(down) / (middle - 1)).maximum(up.maximum(down) / middle) + _LEAST
    scale = size.where(up <= down, -size)
    return _whole((parts / scale).round().clamp(-middle, middle - 1) * scale, values)


def _blocks_of(values: Tensor) -> Tensor:
    """[..., blocks, 32], filled up with zeros."""
    missing = -values.shape[-1] % _BLOCK
    filled = values if not missing else values.new_zeros(*values.shape[:-1], values.shape[-1] + missing)
    if missing:
        filled[..., : values.shape[-1]] = values
    return filled.reshape(*filled.shape[:-1], -1, _BLOCK)


def _whole(parts: Tensor, like: Tensor) -> Tensor:
    """The numbers of blocks in the shape that they had."""
    return parts.flatten(-2)[..., : like.shape[-1]]


def _between(values: Tensor, dim: tuple[int, ...], steps: int = _STEPS) -> Tensor:
    low, high = values.amin(dim, keepdim=True).clamp(max=0), values.amax(dim, keepdim=True).clamp(min=0)
    return unsigned(values, low, high, steps)


def _in_halves(values: Tensor, dim: tuple[int, ...], lowest: int, highest: int) -> Tensor:
    halves = values.half()
    low, high = halves.amin(dim, keepdim=True).clamp(max=0), halves.amax(dim, keepdim=True).clamp(min=0)
    span = high - low
    scale = span / (highest - lowest)
    zero = ((lowest * high - highest * low) / span).round().clamp(lowest, highest)
    steps = ((halves / scale).round() + zero).clamp(lowest, highest)
    rounded = ((steps.float() - zero.float()) * scale.float()).half().to(values.dtype)
    return rounded.where(scale > 0, values.new_zeros(()))


def _by_blocks_of_rows(values: Tensor, kind: Rounding) -> Tensor:
    rows = values.flatten(1)
    return _whole(kind(_blocks_of(rows)), rows).reshape(values.shape)


def _from_palette(values: Tensor, size: int) -> Tensor:
    import torch

    from pocketbert.quantize.palettes import palette_of

    palette = torch.from_numpy(palette_of(values.detach().numpy(), size))
    return palette[torch.bucketize(values.half().float(), (palette[1:] + palette[:-1]) / 2)].to(values.dtype)


def _others(values: Tensor) -> tuple[int, ...]:
    return tuple(range(1, values.ndim))
