"""Round torch tensors as engines and quantizers do, and choose Core ML's palettes.

A rounding converts the numbers of a tensor to fewer bits and back to fp32. `Simulation` names the roundings of a
scheme; `pocketbert.quantize.simulated` runs a torch module with them, which gives the outputs of a correct file without
exporter, quantizer and engine. How far a quantized file is off depends on the model, so its outputs alone cannot show
whether that is too far: they are compared with those of the simulation.

`choose_palette` chooses the few numbers that replace all numbers of a weight; `nearest_in_palette` finds the index of
the one that replaces each number.

Torch is imported inside functions only, because the table of schemes imports this module.
"""

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
"""How many numbers of the last axis share a scale in blocks."""
_STEPS = 255
_INT8_LOW, _INT8_HIGH = -128, 127
_INT4_LOW, _INT4_HIGH, _INT4_STEPS = -8, 7, 15
_ROWS_AT_ONCE = 8192
"""Rows of a table that are rounded at a time."""
_EPSILON = 1e-30
"""Added to every scale, so that rows of zeros are not divided by zero; no scale of a weight is as small."""


class ModulePredictor(Predictor, Protocol):
    """A predictor (engine interface) that runs a torch module.

    Attributes:
        module: The module.
    """

    module: nn.Module


@dataclass(frozen=True)
class Simulation:
    """The rounding functions and rules of a scheme, with which `SimulatedPredictor` imitates its files in torch.

    Attributes:
        weights: Rounds the weight of a linear layer or a convolution, output channels first.
        tables: Rounds an embedding table that no product reads; a table that a product reads too is rounded like the
            product's weight.
        inputs: Rounds the other operand of weights; None if it stays float.
        small: Weights of at most this many numbers stay float.
        static: Whether products have ranges that were measured on calibration rows; `inputs` is None then.
        products: Whether products of two activations, except probabilities, have static ranges too.
        other_tables: Rounds the tables other than the largest; None if they are rounded like it.
        fixed_positions: Whether a lookup of constant indices is a constant of the file, which stays float.
        one_graph: Whether one graph serves all lengths of a file: indices of positions are constant in it only if there
            is one length.
        fills: Whether a file with one length is calibrated on rows whose tokens are repeated up to this length.
        outputs: Whether results of products with stored weights are rounded in static ranges, too.
        narrowing: Whether products with fewer results than terms have static ranges too; otherwise their inputs and
            results are not rounded.
        results: Whether results of activation functions, of softmax and of products of two activations are rounded in
            static ranges, and the inputs of softmax with room for a mask.
        shared_inputs: Whether a tensor has one range for all products that read it, so that ranges that training
            learned for one product are not used.
        halves: Rounds weights and tables of a file that is quantized from fp16 numbers; None if they are rounded like
            fp32 numbers.
        left: Paths of weights in the module that stay float, with their inputs.
        seconds: Paths of weights that are rounded as another scheme rounds them, each group with that scheme's
            simulation.
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
        """Return the simulation for files that are quantized from numbers of the type `base`, fp32 or fp16.

        From fp16 numbers, weights may be rounded differently.
        """
        if base is not Scheme.FP16 or self.halves is None:
            return self
        return replace(self, weights=self.halves, tables=self.halves)

    def of_lengths(self, count: int) -> Simulation:
        """Return the simulation for files that take `count` lengths.

        If one graph serves several lengths, lookups of positions are rounded like all others.
        """
        return replace(self, fixed_positions=False) if self.one_graph and count > 1 else self


# --- roundings of whole tensors, rows and tokens ---


def per_tensor(values: Tensor) -> Tensor:
    """Round to 256 steps between the smallest and the largest number of the tensor, and return floats."""
    return _between_extremes(values, tuple(range(values.ndim)))


def per_tensor_around_zero(values: Tensor) -> Tensor:
    """Round symmetrically to int8 with one scale for the tensor, and return floats."""
    return round_symmetric(values, values.abs().amax())


def per_token(values: Tensor) -> Tensor:
    """Round to 256 steps between the smallest and the largest number of each token [..., H], and return floats."""
    return _between_extremes(values, (-1,))


def per_row(values: Tensor) -> Tensor:
    """Round symmetrically to int8 with a scale per row (output channel, or word of a table), and return floats."""
    axes = _axes_after_first(values)
    return _in_portions(values, lambda rows: round_symmetric(rows, rows.abs().amax(axes, keepdim=True)))


def per_row_with_offset(values: Tensor) -> Tensor:
    """Round to 256 steps between the smallest and the largest number of each row, and return floats."""
    axes = _axes_after_first(values)
    return _in_portions(values, lambda rows: _between_extremes(rows, axes))


def per_row_in_fp16(values: Tensor) -> Tensor:
    """Round as `per_row_with_offset`, but computed in fp16 as coremltools does with fp16 weights.

    The quotient of a number that is many steps from zero is inexact in fp16: 2 to 3 % of the numbers are rounded to the
    next step.
    """
    axes = _axes_after_first(values)
    if not axes:  # the numbers of a vector have one scale
        return _between_extremes_in_fp16(values, axes, _INT8_LOW, _INT8_HIGH)
    return _in_portions(values, lambda rows: _between_extremes_in_fp16(rows, axes, _INT8_LOW, _INT8_HIGH))


def _in_portions(values: Tensor, round_rows: Callable[[Tensor], Tensor]) -> Tensor:
    """Round a tensor whose rows do not depend on each other, some rows at a time, and return the rounded tensor.

    At once, a table of 250,000 words would be in memory up to six times.
    """
    if values.ndim < 2 or len(values) <= _ROWS_AT_ONCE:
        return round_rows(values)
    rounded = values.new_empty(values.shape)
    for start in range(0, len(values), _ROWS_AT_ONCE):
        rounded[start : start + _ROWS_AT_ONCE] = round_rows(values[start : start + _ROWS_AT_ONCE])
    return rounded


def round_symmetric(values: Tensor, largest: Tensor | float) -> Tensor:
    """Round symmetrically to int8, and return floats. `largest` becomes 127, larger numbers are clipped."""
    scale = largest / 127 + _EPSILON
    return (values / scale).round().clamp(-127, 127) * scale


def round_between(values: Tensor, low: Tensor | float, high: Tensor | float, steps: int = _STEPS) -> Tensor:
    """Round to `steps` steps from `low` to `high`, and return floats. Zero is a step, numbers outside are clipped."""
    scale = (high - low) / steps + _EPSILON
    zero = (values.new_zeros(()) - low / scale).round()
    return ((values / scale).round() + zero).clamp(0, steps).sub(zero) * scale


def _between_extremes(values: Tensor, axes: tuple[int, ...], steps: int = _STEPS) -> Tensor:
    """Round to equal steps between the smallest and the largest number along some axes, zero included."""
    low, high = values.amin(axes, keepdim=True).clamp(max=0), values.amax(axes, keepdim=True).clamp(min=0)
    return round_between(values, low, high, steps)


def _between_extremes_in_fp16(values: Tensor, axes: tuple[int, ...], lowest: int, highest: int) -> Tensor:
    """Round, in fp16, to integers from `lowest` to `highest` that span the extremes along `axes`, and return floats."""
    halves = values.half()
    low, high = halves.amin(axes, keepdim=True).clamp(max=0), halves.amax(axes, keepdim=True).clamp(min=0)
    span = high - low
    scale = span / (highest - lowest)
    zero = ((lowest * high - highest * low) / span).round().clamp(lowest, highest)
    steps = ((halves / scale).round() + zero).clamp(lowest, highest)
    rounded = ((steps.float() - zero.float()) * scale.float()).half().to(values.dtype)
    return rounded.where(scale > 0, values.new_zeros(()))


def _axes_after_first(values: Tensor) -> tuple[int, ...]:
    return tuple(range(1, values.ndim))


# --- roundings of blocks of 32 numbers ---


def per_block(values: Tensor) -> Tensor:
    """Round symmetrically to int8 with a scale per 32 numbers of the last axis, as MatMulNBits rounds its inputs."""
    blocks = _split_blocks(values)
    return _join_blocks(round_symmetric(blocks, blocks.abs().amax(-1, keepdim=True)), values)


def per_block_with_offset(values: Tensor) -> Tensor:
    """Round to 16 steps between the smallest and the largest of each 32 numbers of a row, and return floats.

    The rows are the first axis, [rows, columns, ...].
    """
    rows = values.flatten(1)
    return _join_blocks(_between_extremes(_split_blocks(rows), (-1,), _INT4_STEPS), rows).reshape(values.shape)


def per_block_in_fp16(values: Tensor) -> Tensor:
    """Round as `per_block_with_offset`, but computed in fp16; see `per_row_in_fp16`."""
    rows = values.flatten(1)
    rounded = _between_extremes_in_fp16(_split_blocks(rows), (-1,), _INT4_LOW, _INT4_HIGH)
    return _join_blocks(rounded, rows).reshape(values.shape)


def onnx_int4_blocks(values: Tensor) -> Tensor:
    """Round to 4 bits with a scale per 32 numbers; see `pocketbert.quantize.onnx.tables.quantize_blocks`."""
    return _in_signed_blocks(values, 8)


def onnx_int8_blocks(values: Tensor) -> Tensor:
    """Round to 8 bits with a scale per 32 numbers; see `pocketbert.quantize.onnx.tables.quantize_blocks`."""
    return _in_signed_blocks(values, 128)


def _in_signed_blocks(values: Tensor, middle: int) -> Tensor:
    """Round blocks of 32 to integers of [-middle, middle - 1] times a signed scale, and return floats.

    The scale is negative if the largest magnitude belongs to a positive number, because there is one more negative
    integer.
    """
    blocks = _split_blocks(values)
    up, down = blocks.amax(-1, keepdim=True), -blocks.amin(-1, keepdim=True)
    size = (up.minimum(down) / (middle - 1)).maximum(up.maximum(down) / middle) + _EPSILON
    scale = size.where(up <= down, -size)
    return _join_blocks((blocks / scale).round().clamp(-middle, middle - 1) * scale, values)


def tflite_int4_blocks(values: Tensor) -> Tensor:
    """Round symmetrically to 4 bits with a scale per 32 numbers of the last axis, as ai-edge-quantizer does.

    The scale is reduced to 8 bits of mantissa, which LiteRT's kernels require, and stored as fp16: the smallest blocks
    become zero.
    """
    import torch

    blocks = _split_blocks(values)
    scale = (blocks.abs().amax(-1, keepdim=True) / 7).to(torch.bfloat16).half().float()
    steps = (blocks / scale.where(scale > 0, torch.ones_like(scale))).round().clamp(-8, 7)
    return _join_blocks(steps * scale, values)


def _split_blocks(values: Tensor) -> Tensor:
    """Split the last axis into blocks of 32, [..., blocks, 32], filled up with zeros."""
    missing = -values.shape[-1] % _BLOCK
    filled = values if not missing else values.new_zeros(*values.shape[:-1], values.shape[-1] + missing)
    if missing:
        filled[..., : values.shape[-1]] = values
    return filled.reshape(*filled.shape[:-1], -1, _BLOCK)


def _join_blocks(blocks: Tensor, like: Tensor) -> Tensor:
    """Join blocks of 32 along the last axis and cut off the zeros that filled it up, in the shape of `like`."""
    return blocks.flatten(-2)[..., : like.shape[-1]]


# --- palettes ---

_DENSITY_BINS = 2048
_MAX_ITERATIONS = 2000
_CODES = 1 << 16
"""How many fp16 numbers there are, with infinities and NaN."""


def palette_of_64(values: Tensor) -> Tensor:
    """Replace every number by the nearest of 64 values chosen for the tensor; see `choose_palette`."""
    return _from_palette(values, 64)


def palette_of_16(values: Tensor) -> Tensor:
    """Replace every number by the nearest of 16 values chosen for the tensor; see `choose_palette`."""
    return _from_palette(values, 16)


def _from_palette(values: Tensor, size: int) -> Tensor:
    """Replace every number by the nearest value of a palette of `size` values chosen for this tensor."""
    import torch

    palette = torch.from_numpy(choose_palette(values.detach().numpy(), size))
    return palette[torch.bucketize(values.half().float(), (palette[1:] + palette[:-1]) / 2)].to(values.dtype)


def choose_palette(values: NDArray[Any], size: int) -> NDArray[np.float32]:
    """Choose `size` values that represent a weight with a small squared error (k-means).

    Lloyd's algorithm (Lloyd, "Least squares quantization in PCM", 1982) runs on the values as fp16, of which there are
    few, until nothing changes (at most 2,000 rounds), from two starts: values at equal distances, and values whose
    distances follow the third root of the density, which is the optimum for many values (Panter and Dite, 1951). The
    better result is returned: it is never worse than equal distances, and the same weights always give the same
    palette.

    Args:
        values: The numbers of a weight, of any shape.
        size: Number of values in the palette.

    Returns:
        [size], in rising order, each an fp16 number; some are equal if the weight has fewer numbers.
    """
    codes = np.ascontiguousarray(values, np.float16).view(np.uint16).ravel()
    counts = np.bincount(codes, minlength=_CODES)
    used = np.flatnonzero(counts).astype(np.uint16)
    points = used.view(np.float16).astype(np.float64)
    order = np.argsort(points)
    points, weights = points[order], counts[used][order].astype(np.float64)
    starts = [np.linspace(points[0], points[-1], size), _levels_by_density(points, weights, size)]

    def squared_error(levels: NDArray[np.float64]) -> float:
        nearest = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, points)]
        return float((weights * (points - nearest) ** 2).sum())

    best = min([_lloyd(points, weights, start) for start in starts], key=squared_error)
    return np.sort(best).astype(np.float16).astype(np.float32)


def nearest_in_palette(values: NDArray[Any], palette: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return for every number the index of the nearest value in a palette.

    Args:
        values: The numbers of a weight, of any shape.
        palette: The palette's values, in rising order.

    Returns:
        Indices, flattened.
    """
    middles = (palette[1:].astype(np.float64) + palette[:-1]) / 2
    if values.dtype != np.float16:
        return np.searchsorted(middles, values.ravel()).astype(np.uint8)
    every_half = np.arange(_CODES, dtype=np.uint16).view(np.float16).astype(np.float64)
    indices = np.searchsorted(middles, every_half).astype(np.uint8)
    return indices[np.ascontiguousarray(values).view(np.uint16).ravel()]


def _levels_by_density(points: NDArray[np.float64], weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return starting levels for k-means, spaced by the third root of the numbers' density."""
    bins, edges = np.histogram(points, _DENSITY_BINS, weights=weights)
    share = np.concatenate([[0.0], np.cumsum(np.cbrt(bins))])
    quantiles = (np.arange(size) + 0.5) / size * share[-1]
    return np.asarray(np.interp(quantiles, share, edges), np.float64)


def _lloyd(
    points: NDArray[np.float64], weights: NDArray[np.float64], levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Run Lloyd's k-means in one dimension: move levels to the means of their nearest points until nothing changes.

    After `_MAX_ITERATIONS` rounds, the levels reached so far are returned.
    """
    mass = np.concatenate([[0.0], np.cumsum(weights)])
    moment = np.concatenate([[0.0], np.cumsum(weights * points)])
    previous: NDArray[np.int64] | None = None
    for _ in range(_MAX_ITERATIONS):
        cuts = np.searchsorted(points, (levels[1:] + levels[:-1]) / 2)
        ends = np.concatenate([[0], cuts, [len(points)]])
        if previous is not None and np.array_equal(ends, previous):
            break
        previous = ends
        inside = np.diff(mass[ends])
        levels = np.where(inside > 0, np.diff(moment[ends]) / np.maximum(inside, 1), levels)
    return levels
