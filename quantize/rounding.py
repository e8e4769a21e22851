"""How engines and quantizers round, as functions of torch tensors: numbers go through few steps and come back as fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Rounding = Callable[["Tensor"], "Tensor"]
"""Returns the numbers of a tensor after they went through fewer bits."""

_STEPS = 255
_INT8_LOW, _INT8_HIGH = -128, 127
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
    halves, dim = values.half(), _others(values)
    low, high = halves.amin(dim, keepdim=True).clamp(max=0), halves.amax(dim, keepdim=True).clamp(min=0)
    span = high - low
    scale = span / _STEPS
    zero = ((_INT8_LOW * high - _INT8_HIGH * low) / span).round().clamp(_INT8_LOW, _INT8_HIGH)
    steps = ((halves / scale).round() + zero).clamp(_INT8_LOW, _INT8_HIGH)
    rounded = ((steps.float() - zero.float()) * scale.float()).half().to(values.dtype)
    return rounded.where(scale > 0, values.new_zeros(()))


def per_token(values: Tensor) -> Tensor:
    """Round to 256 steps between the smallest and the largest number of each token, [..., H]."""
    return _between(values, (-1,))


def per_tensor(values: Tensor) -> Tensor:
    """Round to 256 steps between the smallest and the largest number of all."""
    return _between(values, tuple(range(values.ndim)))


def signed(values: Tensor, largest: Tensor | float) -> Tensor:
    """Round to int8 with zero at zero; `largest` becomes 127, and what is larger is cut to it."""
    scale = largest / 127 + _LEAST
    return (values / scale).round().clamp(-127, 127) * scale


def unsigned(values: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """Round to 256 steps from `low` to `high`, zero being one of them; what lies outside is cut."""
    scale = (high - low) / _STEPS + _LEAST
    zero = (values.new_zeros(()) - low / scale).round()
    return ((values / scale).round() + zero).clamp(0, _STEPS).sub(zero) * scale


def _between(values: Tensor, dim: tuple[int, ...]) -> Tensor:
    low, high = values.amin(dim, keepdim=True).clamp(max=0), values.amax(dim, keepdim=True).clamp(min=0)
    return unsigned(values, low, high)


def _others(values: Tensor) -> tuple[int, ...]:
    return tuple(range(1, values.ndim))
