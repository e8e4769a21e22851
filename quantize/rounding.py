"""How engines and quantizers round, as functions of torch tensors: numbers go through few steps and come back as fp32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.predictor import Predictor
from pocketbert.core.types import Scheme

if TYPE_CHECKING:
    from torch import Tensor, nn


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
    """Replace every number by the nearest of 64; see `pocketbert.quantize.rounding`."""
    return _from_palette(values, 64)


def palette_of_16(values: Tensor) -> Tensor:
    """Replace every number by the nearest of 16; see `pocketbert.quantize.rounding`."""
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
    """Round to 4 bits, 32 numbers of the last axis sharing a scale; see `pocketbert.quantize.onnx.tables`."""
    return _in_blocks(values, 8)


def eight_bits_in_blocks(values: Tensor) -> Tensor:
    """Round to 8 bits, 32 numbers of the last axis sharing a scale; see `pocketbert.quantize.onnx.tables`."""
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

    palette = torch.from_numpy(palette_of(values.detach().numpy(), size))
    return palette[torch.bucketize(values.half().float(), (palette[1:] + palette[:-1]) / 2)].to(values.dtype)


def _others(values: Tensor) -> tuple[int, ...]:
    return tuple(range(1, values.ndim))


# --- palettes ---
# Choose the few numbers that replace all numbers of a weight with the least squared error (k-means): its palette.


_DENSITY_BINS = 2048
_MOST_STEPS = 2000
_CODES = 1 << 16


def palette_of(values: NDArray[Any], size: int) -> NDArray[np.float32]:
    """Choose the numbers of a palette by Lloyd's algorithm (Lloyd, "Least squares quantization in PCM", 1982).

    It runs on the values as fp16, of which there are few, until nothing changes, from two starts: equal steps, and steps as
    narrow as the third root of the density asks for, which is where many levels end (Panter and Dite, 1951). The better
    result is returned: it is never worse than equal steps, and the same weights always give the same palette.

    Args:
        values: The numbers of a weight, of any shape.
        size: How many numbers the palette has.

    Returns:
        [size], in rising order, each an fp16 number; some are equal where the weight has fewer numbers.
    """
    codes = np.ascontiguousarray(values, np.float16).view(np.uint16).ravel()
    counts = np.bincount(codes, minlength=_CODES)
    used = np.flatnonzero(counts).astype(np.uint16)
    points = used.view(np.float16).astype(np.float64)
    order = np.argsort(points)
    points, weights = points[order], counts[used][order].astype(np.float64)
    starts = [np.linspace(points[0], points[-1], size), _by_density(points, weights, size)]
    found = [_settled(points, weights, start) for start in starts]
    best = min(found, key=lambda levels: _error(points, weights, levels))
    return np.sort(best).astype(np.float16).astype(np.float32)


def places_in(values: NDArray[Any], palette: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Find the place of the nearest number of a palette for every value.

    Args:
        values: The numbers of a weight, of any shape.
        palette: In rising order.

    Returns:
        Places, in one row.
    """
    middles = (palette[1:].astype(np.float64) + palette[:-1]) / 2
    if values.dtype != np.float16:
        return np.searchsorted(middles, values.ravel()).astype(np.uint8)
    every = np.arange(_CODES, dtype=np.uint16).view(np.float16).astype(np.float64)
    return np.searchsorted(middles, every).astype(np.uint8)[np.ascontiguousarray(values).view(np.uint16).ravel()]


def _by_density(points: NDArray[np.float64], weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Levels between which lie equal parts of the third root of the density."""
    bins, edges = np.histogram(points, _DENSITY_BINS, weights=weights)
    share = np.concatenate([[0.0], np.cumsum(np.cbrt(bins))])
    wanted = (np.arange(size) + 0.5) / size * share[-1]
    return np.asarray(np.interp(wanted, share, edges), np.float64)


def _settled(
    points: NDArray[np.float64], weights: NDArray[np.float64], levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Move levels to the means of the points that are nearest to them until nothing changes."""
    mass = np.concatenate([[0.0], np.cumsum(weights)])
    moment = np.concatenate([[0.0], np.cumsum(weights * points)])
    before: NDArray[np.int64] | None = None
    for _ in range(_MOST_STEPS):
        cuts = np.searchsorted(points, (levels[1:] + levels[:-1]) / 2)
        ends = np.concatenate([[0], cuts, [len(points)]])
        if before is not None and np.array_equal(ends, before):
            break
        before = ends
        inside = np.diff(mass[ends])
        levels = np.where(inside > 0, np.diff(moment[ends]) / np.maximum(inside, 1), levels)
    return levels


def _error(points: NDArray[np.float64], weights: NDArray[np.float64], levels: NDArray[np.float64]) -> float:
    nearest = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, points)]
    return float((weights * (points - nearest) ** 2).sum())


# --- simulation ---
# What a right file of a scheme answers, computed by the torch module that it was exported from.
#
# A file in 8 bits is off by more or less, depending on the model. Its own answers cannot tell whether it is off by too much,
# so the same scheme is computed a second time, without exporter, quantizer and engine: torch runs the module with every stored
# weight, and every number that it is multiplied with, rounded as the scheme rounds them.


class ModulePredictor(Predictor, Protocol):
    """A torch module behind the predictor protocol.

    Attributes:
        module: The module.
    """

    module: nn.Module


@dataclass(frozen=True)
class Simulation:
    """How a scheme rounds; `pocketbert.quantize.simulated.SimulatedPredictor` computes so.

    Attributes:
        weights: Rounds the weight of a linear layer or a convolution, output channels first.
        tables: Rounds an embedding table that no product reads; one that a product reads is rounded as its weight.
        other_tables: Rounds the tables other than the largest, where they are rounded in another way.
        inputs: Rounds what weights are multiplied with; None where it stays float.
        small: Weights of at most this many numbers stay float.
        static: Whether products have ranges that were measured on calibration rows; `inputs` is None then.
        products: Whether static ranges are those of products of two activations too, but for probabilities.
        fixed_positions: Whether a lookup of constant indices is a constant of the file, which stays float.
        one_graph: Whether one graph serves all lengths of a file: indices of positions are constant in it only where there
            is one length.
        fills: Whether a file that is made from one with one length is calibrated on rows that are repeated up to it.
        outputs: Whether results of products with stored weights are rounded in static ranges, too.
        narrowing: Whether static ranges are those of products with fewer results than terms too; otherwise these read and
            make numbers as they are.
        shared_inputs: Whether what a product reads has one range for all that reads it, so that training has none to give it.
        results: Whether results of activation functions, of softmax and of products of two activations are rounded in static
            ranges, and what softmax reads with room for a mask.
        halves: Rounds weights and tables of a file that is made from one with fp16 numbers; None where they are rounded
            alike.
        left: Paths of weights in the module that stay float, and what they are multiplied with.
        seconds: Paths of weights that are rounded as another scheme rounds them, each group with that scheme's simulation.
    """

    weights: Rounding
    tables: Rounding
    inputs: Rounding | None = None
    small: int = 0
    static: bool = False
    products: bool = False
    other_tables: Rounding | None = None
    fixed_positions: bool = False
    one_graph: bool = False
    fills: bool = False
    outputs: bool = False
    narrowing: bool = True
    shared_inputs: bool = False
    results: bool = False
    halves: Rounding | None = None
    left: frozenset[str] = frozenset()
    seconds: tuple[tuple[frozenset[str], Simulation], ...] = ()

    def made_from(self, base: Scheme) -> Simulation:
        """Return the simulation of files that are quantized from a file with numbers of `base`."""
        if base is not Scheme.FP16 or self.halves is None:
            return self
        return replace(self, weights=self.halves, tables=self.halves)

    def of_lengths(self, count: int) -> Simulation:
        """Return the simulation of files that take `count` lengths."""
        return replace(self, fixed_positions=False) if self.one_graph and count > 1 else self
