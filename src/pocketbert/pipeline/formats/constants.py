"""The constants of a graph, in one form whatever the file format: input of the comparison of stored numbers.

An exporter may transpose a matrix, keep scales and zero points in operators of their own, multiply a factor
into a matrix, or add two offsets in advance. Here all of these give the same result:

- `StoredTensor` is a dequantized value together with its precision: quantization step, bits, fp16 factors.
  `read_tensor`, `read_quantized_tensor`, `read_palettized_tensor` and `dequantize` make one from arrays of a file,
- `ConstantTracker` follows the operators of a graph, for which a reader calls one method each, until a constant meets
  data. It lists every `Constant` with its `ConstantRole` (a matrix is always [out, in]) and with the constants
  upstream of it.

The readers are in the modules of the formats and, for torch, in `pocketbert.pipeline.gates.torch_constants`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_QUANTIZED_TYPES = (np.dtype("int8"), np.dtype("uint8"))
"""Types of quantized numbers; other integers are shapes, axes and ids."""
MIN_INTEGER_BYTES = 1024
"""Bytes from which an integer array, which is mostly a shape or an axis, counts as a constant."""


# --- tensors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """The dequantized value of a constant, and how precisely it is stored.

    Attributes:
        value: The numbers; integers keep their type until they are dequantized.
        name: Name in the file.
        step: Distance between neighbouring numbers that can be stored, with as many axes as `value` and broadcastable
            to it; None for floats.
        fp16_factors: Number of factors of the value that are stored as fp16, scales among them.
        has_zero_point: Whether a zero point other than 0 was subtracted.
        magnitude_sum: Sum of the magnitudes that were added up; None if nothing was added.
        bits: Bits of a quantized number.
        had_one_step: Whether all numbers had one step before each was multiplied by a factor of another constant.
        palette_ends: Smallest and largest number of a palette, shaped like `step`; numbers beyond are clipped.
    """

    value: NDArray[Any]
    name: str = ""
    step: Floats | None = None
    fp16_factors: int = 0
    has_zero_point: bool = False
    magnitude_sum: Floats | None = None
    bits: int = 8
    had_one_step: bool = False
    palette_ends: tuple[Floats, Floats] | None = None

    @property
    def magnitude(self) -> Floats:
        """Magnitudes of the numbers, to which rounding errors are relative."""
        return np.abs(self.value, dtype=np.float32) if self.magnitude_sum is None else self.magnitude_sum

    @property
    def is_float(self) -> bool:
        """Whether these are weights, and not a shape, an axis or ids."""
        return self.step is not None or bool(self.value.dtype.kind == "f")

    def transform(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> StoredTensor:
        """Return the tensor with its numbers and their steps rearranged by `change`, as by a transposition."""
        value = change(self.value)

        def moved(step: Floats) -> Floats:
            """Return steps, or ends of a palette, moved as the numbers are."""
            if step.size == 1:
                return step.reshape((1,) * value.ndim)
            wide = change(np.broadcast_to(step, self.value.shape))
            for axis in range(wide.ndim):  # keep one number of each axis along which nothing changes
                first = wide.take([0], axis)
                wide = first if np.array_equal(np.broadcast_to(first, wide.shape), wide) else wide
            return wide

        return replace(
            self,
            value=value,
            step=None if self.step is None else moved(self.step),
            magnitude_sum=None if self.magnitude_sum is None else change(self.magnitude_sum),
            palette_ends=None
            if self.palette_ends is None
            else (moved(self.palette_ends[0]), moved(self.palette_ends[1])),
        )

    def multiply(self, factor: StoredTensor) -> StoredTensor:
        """Return the product with a tensor that broadcasts to this one, such as the scales of a quantized tensor."""
        by = factor.value.astype(np.float32)
        step = None if self.step is None else np.asarray(np.abs(self.step * by), np.float32)
        product = replace(self, value=self.value * by, fp16_factors=self.fp16_factors + factor.fp16_factors)
        if step is not None and factor.step is not None:
            # both were rounded, so that no range says how coarse the steps may be
            step = np.asarray(step + np.abs(self.value, dtype=np.float32) * factor.step, np.float32)
            return replace(product, step=step, bits=32)
        magnitudes = None if self.magnitude_sum is None else np.asarray(self.magnitude_sum * np.abs(by), np.float32)
        ends = None if self.palette_ends is None else (self.palette_ends[0] * by, self.palette_ends[1] * by)
        if ends is not None:
            ends = np.minimum(*ends), np.maximum(*ends)
        return replace(product, step=step, magnitude_sum=magnitudes, palette_ends=ends)

    def add(self, other: StoredTensor) -> StoredTensor:
        """Return the sum with a tensor of the same shape. The quantization steps are added too."""
        total = replace(
            self,
            value=np.add(self.value, other.value, dtype=np.float32),
            fp16_factors=max(self.fp16_factors, other.fp16_factors),
            magnitude_sum=self.magnitude + other.magnitude,
        )
        steps = [t.step for t in (self, other) if t.step is not None]
        if not steps:
            return total
        # no range says how coarse the steps of a sum may be
        return replace(
            total,
            step=np.asarray(sum(steps), np.float32),
            has_zero_point=self.has_zero_point or other.has_zero_point,
            bits=32,
            had_one_step=False,
            palette_ends=None,
        )


def read_tensor(value: NDArray[Any], name: str) -> StoredTensor:
    """Read a stored array: floats as fp32, and 8-bit integers as quantized, in steps of 1 until their scale is known."""
    if value.dtype in _QUANTIZED_TYPES:  # not yet as floats, which would be four times the file
        return StoredTensor(value, name, np.ones((1,) * value.ndim, np.float32))
    if value.dtype == np.float16:
        return StoredTensor(value.astype(np.float32), name, fp16_factors=1)
    return StoredTensor(value.astype(np.float32, copy=False) if value.dtype.kind == "f" else value, name)


def read_quantized_tensor(value: NDArray[Any], name: str) -> StoredTensor:
    """Read an array that an operator dequantizes: integers of any type, in steps of 1 until their scale is known."""
    if value.dtype in _QUANTIZED_TYPES or value.dtype.kind not in "iu":
        return read_tensor(value, name)
    one = np.ones((1,) * value.ndim, np.float32)
    return StoredTensor(value.astype(np.float32), name, one, bits=8 * value.dtype.itemsize)


def read_palettized_tensor(indices: NDArray[Any], palette: NDArray[Any], name: str) -> StoredTensor:
    """Return the tensor whose elements are entries of a palette (lookup table), with the precision of each element.

    An element's precision is the larger gap between its palette entry and the neighbouring entries.

    Args:
        indices: Integers of any shape.
        palette: [2 ** bits] numbers.
        name: Name in the file.
    """
    levels = palette.astype(np.float32)
    distinct = np.unique(levels)
    gaps = np.concatenate([[0.0], np.diff(distinct), [0.0]]).astype(np.float32)
    steps = np.maximum(gaps[1:], gaps[:-1])[np.searchsorted(distinct, levels)]
    one = (1,) * indices.ndim
    return StoredTensor(
        value=levels[indices],
        name=name,
        step=steps[indices],
        fp16_factors=int(palette.dtype == np.float16),
        bits=int(levels.size - 1).bit_length(),
        palette_ends=(distinct[:1].reshape(one), distinct[-1:].reshape(one)),
    )


def dequantize(
    tensor: StoredTensor, scale: NDArray[Any], zero: NDArray[Any] | None, axis: int = 0, half: bool = False
) -> StoredTensor:
    """Return the dequantized tensor (number - zero) * scale of a tensor of integers.

    Args:
        tensor: The integers.
        scale: Scales: one number, one for each index of `axis`, or an array that broadcasts to the integers.
        zero: Zero points, shaped as the scales; None if all are zero.
        axis: The axis that a vector of scales belongs to.
        half: Whether the scales are stored as fp16.
    """

    def broadcastable(values: NDArray[Any]) -> Floats:
        """Return scales or zero points with as many axes as the integers."""
        if values.size == 1:
            return values.astype(np.float32).reshape((1,) * tensor.value.ndim)
        if values.ndim == tensor.value.ndim:
            return values.astype(np.float32)
        shape = [1] * tensor.value.ndim
        shape[axis] = values.size
        return values.astype(np.float32).reshape(shape)

    if zero is not None and np.any(zero):
        tensor = replace(tensor, value=tensor.value - broadcastable(zero), has_zero_point=True)
    return tensor.multiply(StoredTensor(broadcastable(scale), fp16_factors=int(half)))


class StoredRange(NamedTuple):
    """The range of numbers that the integers of a quantized activation can express.

    Attributes:
        low: Smallest number that the integers can express.
        high: Largest number that they can express.
        bits: Bits of the integers.
        step: Distance between neighbouring numbers.
        of_table: Whether the activation is rows of a quantized table, and the range is that of the table.
    """

    low: float
    high: float
    bits: int = 8
    step: float = 0.0
    of_table: bool = False


def integer_range(scale: NDArray[Any], zero: NDArray[Any] | int, ends: tuple[int, int]) -> StoredRange:
    """Return the range of numbers that integers with one scale and one zero point can express.

    Args:
        scale: Distance between neighbouring numbers.
        zero: The integer that means 0.
        ends: Smallest and largest integer.
    """
    step, middle = float(np.asarray(scale).reshape(-1)[0]), int(np.asarray(zero).reshape(-1)[0])
    bits = (ends[1] - ends[0]).bit_length()
    return StoredRange((ends[0] - middle) * step, (ends[1] - middle) * step, bits, step)


# --- constants --------------------------------------------------------------------------------------------------------


class ConstantRole(StrEnum):
    """How a graph uses a constant."""

    MATRIX = "matrix"
    """Data is multiplied by it; [out, in]."""
    TABLE = "table"
    """Its rows are looked up."""
    FACTOR = "factor"
    """Every channel is multiplied by its own number."""
    OFFSET = "offset"
    """A number of its own is added to every channel."""
    ARRAY = "array"
    """Anything else."""


@dataclass(eq=False)
class StoredRanges:
    """The ranges that a file stores for the input and the output of a product with a matrix.

    Attributes:
        inputs: Range of the product's input; None if the file holds none.
        outputs: Range of the product's result with the offset.
        before_offset: Range of the result before an offset is added, or if the offset is 0.
    """

    inputs: StoredRange | None = None
    outputs: StoredRange | None = None
    before_offset: StoredRange | None = None


@dataclass(frozen=True, eq=False)
class Constant:
    """A use of a stored constant in a graph: its role, its value, and the constants that its input depends on.

    Sets of constants are bit masks: bit i stands for the constant at place i of the list.

    Attributes:
        role: How the graph uses the constant.
        tensor: Value of the constant, in the form of the role.
        upstream: Constants from which the data that meets this constant was computed.
        group: Number of the affine operation (matrix, factor, offset) that the constant belongs to.
        covers: Constants that a file need not hold if it holds this one; 0 if a file must hold this one.
        used: Whether an output of the graph depends on the constant.
        ranges: For a matrix, the ranges that the file holds for its product.
    """

    role: ConstantRole
    tensor: StoredTensor
    upstream: int
    group: int
    covers: int = 0
    used: bool = True
    ranges: StoredRanges = field(default_factory=StoredRanges)

    @property
    def names(self) -> set[str]:
        """Names of the stored tensors from which the constant was computed."""
        return set(self.tensor.name.split(", ")) - {""}


@dataclass(frozen=True, eq=False)
class _Data:
    """A computed value; `upstream` has a bit for each constant that it was computed from."""

    upstream: int


@dataclass(frozen=True, eq=False)
class _Rows:
    """A lookup of the rows `index` in a stored table [V, H], whose result no operator has used yet."""

    table: StoredTensor
    index: Hashable


@dataclass(frozen=True, eq=False)
class _Affine:
    """An operation of a graph: data times a matrix, times a factor, plus an offset. Any of them may be missing."""

    upstream: int
    matrix: StoredTensor | None = None
    factor: StoredTensor | None = None
    offset: StoredTensor | None = None
    source: _Affine | None = None
    ranges: StoredRanges = field(default_factory=StoredRanges)

    def fits(self, tensor: StoredTensor) -> bool:
        """Return whether a constant has one number for each output channel, or several if their count is unknown."""
        width = next((t.value.shape[0] for t in (self.matrix, self.factor, self.offset) if t is not None), None)
        return tensor.value.size > 1 if width is None else tensor.value.size == width

    def multiply(self, by: StoredTensor) -> _Affine:
        """Return the operation with channel i of its output multiplied by number i of `by`."""
        offset = self.offset and self.offset.multiply(by)
        if self.matrix is not None:
            return replace(self, matrix=self.matrix.multiply(by.transform(lambda v: v[:, None])), offset=offset)
        if self.factor is None:
            return replace(self, factor=by, offset=offset)
        # the other constant says nothing about which numbers of this one shared a step
        had_one_step = self.factor.had_one_step or (self.factor.step is not None and self.factor.step.size == 1)
        return replace(self, factor=replace(self.factor.multiply(by), had_one_step=had_one_step), offset=offset)

    def add(self, tensor: StoredTensor) -> _Affine:
        """Return the operation with number i of a constant added to channel i, in its offset."""
        return replace(self, offset=tensor if self.offset is None else self.offset.add(tensor))


_Value = StoredTensor | _Data | _Rows | _Affine


class ConstantTracker:
    """Lists the constants that a graph computes with, from calls of a reader: one method for each operator, in order.

    Values are named by any hashable key.

    Args:
        lists_folds: Whether to list also an offset that exporters may store instead of two: the offset between two
            products may be added to the offset of the second one.

    Attributes:
        constants: Constants found so far.
    """

    def __init__(self, lists_folds: bool = False) -> None:
        self.lists_folds = lists_folds
        self.constants: list[Constant] = []
        self._values: dict[Hashable, _Value] = {}
        self._used: dict[int, tuple[_Value, int]] = {}
        self._groups = 0
        self._ranges: dict[Hashable, StoredRange] = {}

    def store(self, key: Hashable, tensor: StoredTensor) -> None:
        """Register a constant of the file under the name `key`."""
        self._values[key] = tensor

    def stored(self, key: Hashable) -> StoredTensor | None:
        """Return the constant named `key`, which may have been moved or dequantized; None for any other value."""
        value = self._values.get(key)
        return value if isinstance(value, StoredTensor) else None

    def set_range(self, key: Hashable, stored: StoredRange) -> None:
        """Record the range that the integers of a quantized activation cover.

        If a matrix product with a stored matrix computes the activation, it is also the range of the product's result.
        """
        value = self._values.get(key)
        if isinstance(value, _Rows) and value.table.step is not None:
            numbers, step = value.table.value, stored.step
            is_inside = stored.low - step <= numbers.min() and numbers.max() <= stored.high + step
            stored = stored._replace(of_table=bool(is_inside and np.allclose(value.table.step, step, rtol=1e-3)))
        self._ranges[key] = stored
        self.set_result_range(key, stored)

    def set_result_range(self, key: Hashable, stored: StoredRange) -> None:
        """Record a range as that of a product's result, if `key` is the result of a product with a stored matrix."""
        value = self._values.get(key)
        if not isinstance(value, _Affine) or value.matrix is None:
            return
        if value.offset is not None:
            value.ranges.outputs = value.ranges.outputs or stored
        if value.offset is None or not np.any(value.offset.value):
            value.ranges.before_offset = value.ranges.before_offset or stored

    def clip(self, out: Hashable, key: Hashable, low: float, high: float) -> None:
        """Record that `out` is `key` clipped to an interval, as by relu6.

        If that interval is the range recorded for the product `key`, the range is dropped, since it cuts nothing more.
        """
        value = self._values.get(key)
        if isinstance(value, _Affine):
            for name in ("outputs", "before_offset"):
                stored = getattr(value.ranges, name)
                if stored is not None and max(abs(stored.low - low), abs(stored.high - high)) <= stored.step:
                    setattr(value.ranges, name, None)
        self.other([out], [key])

    def copy_range(self, out: Hashable, key: Hashable) -> None:
        """Copy the range recorded for value `key` to value `out`, which has the same numbers in other places."""
        if key in self._ranges:
            self._ranges[out] = self._ranges[key]

    def keep(self, out: Hashable, key: Hashable, change: Callable[[NDArray[Any]], NDArray[Any]] | None = None) -> None:
        """Record that value `out` is value `key` with all channels in place; a constant is changed by `change`."""
        value = self._values.get(key)
        if isinstance(value, StoredTensor) and change is not None:
            value = value.transform(change)
        self._values[out] = value if value is not None else _Data(0)
        self.copy_range(out, key)

    def rearrange(self, out: Hashable, key: Hashable, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Record `out` as constant `key` moved by `change`, else as the result of an unknown operator."""
        if isinstance(self._values.get(key), StoredTensor):
            self.keep(out, key, change)
        else:
            self.other([out], [key])
            self.copy_range(out, key)

    def dequantize(self, out: Hashable, key: Hashable, change: Callable[[StoredTensor], StoredTensor]) -> None:
        """Record `out` as stored tensor (or looked-up rows) `key` dequantized by `change`, else as an unknown result."""
        value = self._values.get(key)
        if isinstance(value, StoredTensor):
            self._values[out] = change(value)
        elif isinstance(value, _Rows):
            self._values[out] = replace(value, table=change(value.table))
        else:
            self.other([out], [key])
            self.copy_range(out, key)

    def lookup(self, out: Hashable, table: Hashable, index: Hashable) -> None:
        """Record `out` as rows `index` of a stored table of weights, else as the result of an unknown operator."""
        tensor = self.stored(table)
        if tensor is None or not tensor.is_float or tensor.value.ndim > 2:
            self.other([out], [table, index])
        else:
            rows = tensor if tensor.value.ndim == 2 else tensor.transform(lambda v: v.reshape(-1, 1))
            self._values[out] = _Rows(rows, index)

    def product(
        self, out: Hashable, data: Hashable, matrix: Hashable, offset: Hashable | None = None, transposed: bool = False
    ) -> None:
        """Record that `out` is the matrix product of `data` with a stored matrix, plus an optional `offset`.

        The matrix is [out, in], or [in, out] if it is `transposed`. If it is no stored matrix of weights, `out` is
        recorded as the result of an unknown operator.
        """
        tensor = self.stored(matrix)
        if tensor is None or not tensor.is_float or sum(n > 1 for n in tensor.value.shape) > 2:
            self.other([out], [k for k in (data, matrix, offset) if k is not None])
            return
        flat = tensor.transform(lambda v: v.reshape(v.shape[-2:]) if transposed else v.reshape(v.shape[0], -1))
        value = self._values.get(data)
        self._values[out] = _Affine(
            self._use(data),
            matrix=flat.transform(np.transpose) if transposed else flat,
            source=value if isinstance(value, _Affine) and value.matrix is not None else None,
            ranges=StoredRanges(self._ranges.get(data)),
        )
        if offset is not None:
            self.add(out, out, offset)

    def add(self, out: Hashable, left: Hashable, right: Hashable) -> None:
        """Record `out` as a sum: data plus a constant with one number per channel (an offset), else as unknown."""
        self._combine(out, left, right, _Affine.add)

    def multiply(self, out: Hashable, left: Hashable, right: Hashable) -> None:
        """Record that `out` is the elementwise product of two values.

        A constant with one number per channel is recorded as a factor. Scales that were looked up with the same index
        as rows of a table dequantize these rows. Other products are recorded as unknown.
        """
        one, other = self._values.get(left), self._values.get(right)
        if isinstance(one, _Rows) and isinstance(other, _Rows) and one.index == other.index:
            wide, narrow = (one, other) if one.table.value.shape[1] > 1 else (other, one)
            self._values[out] = replace(wide, table=wide.table.multiply(narrow.table))
        else:
            self._combine(out, left, right, _Affine.multiply)

    def scale(self, out: Hashable, key: Hashable, factor: Hashable) -> None:
        """Record that value `out` is an integer matrix product times the stored scales of its weight.

        `key` names the product, `factor` the scales: one number, or one for each output channel. The scale of
        the activation, known only at run time, is left out. If `key` is no recorded operation, or the scales do
        not fit it, `out` is recorded as the result of an unknown operator.
        """
        tensor = self.stored(factor)
        assert tensor is not None
        value, flat = self._values.get(key), tensor.transform(np.ravel)
        if isinstance(value, _Affine) and (value.fits(flat) or flat.value.size == 1):
            width = value.matrix.value.shape[0] if value.matrix is not None else flat.value.size
            self._values[out] = value.multiply(flat.transform(lambda v: np.broadcast_to(v, (width,))))
        else:
            self.other([out], [key, factor])

    def _combine(
        self, out: Hashable, left: Hashable, right: Hashable, change: Callable[[_Affine, StoredTensor], _Affine]
    ) -> None:
        """Apply `change` to an operation and a constant with one number per channel, and record the result as `out`.

        `left` and `right` may come in either order. Other pairs are recorded as an unknown operator that uses the
        constants of both.
        """
        for data, constant in ((left, right), (right, left)):
            value, tensor = self._values.get(data), self._values.get(constant)
            if isinstance(tensor, StoredTensor) and tensor.is_float and isinstance(value, _Affine | _Data):
                affine = value if isinstance(value, _Affine) else _Affine(value.upstream)
                flat = tensor.transform(lambda v: v.reshape(-1))
                if sum(n > 1 for n in tensor.value.shape) <= 1 and affine.fits(flat):
                    self._values[out] = change(affine, flat)
                    return
        self.other([out], [left, right])

    def other(self, outs: Sequence[Hashable], keys: Iterable[Hashable]) -> None:
        """Record that an unknown operator computes `outs`, and list the constants behind its inputs `keys` as used."""
        upstream = 0
        for key in keys:
            upstream |= self._use(key)
        for out in outs:
            self._values[out] = _Data(upstream)

    def finish(self, keys: Iterable[Hashable]) -> list[Constant]:
        """Return all constants. Groups on which no output of the graph (`keys`) depends are marked as unused."""
        used = 0
        for key in keys:
            used |= self._use(key)
        groups = {c.group for i, c in enumerate(self.constants) if used >> i & 1}
        return [c if c.group in groups else replace(c, used=False) for c in self.constants]

    def _use(self, key: Hashable) -> int:
        """List the constants of a value when it is first used; return a bit mask of all constants behind it."""
        value = self._values.get(key)
        if value is None:
            return 0
        if isinstance(value, _Data):
            return value.upstream
        if id(value) not in self._used:
            self._used[id(value)] = value, self._list_constants(value)
        return self._used[id(value)][1]

    def _list_constants(self, value: StoredTensor | _Rows | _Affine) -> int:
        """List a value's constants that change results as one group; return a bit mask of all constants behind it."""
        self._groups += 1
        if isinstance(value, _Rows):
            return self._list(ConstantRole.TABLE, value.table, 0)
        if isinstance(value, StoredTensor):
            if value.value.size == 1 or not (value.is_float or value.value.nbytes > MIN_INTEGER_BYTES):
                return 0
            return self._list(ConstantRole.ARRAY, value.transform(np.squeeze), 0)
        own = 0
        if value.matrix is not None:
            own |= self._list(ConstantRole.MATRIX, value.matrix, value.upstream, ranges=value.ranges)
        # converters drop factors and offsets that change nothing
        if value.factor is not None and np.any(value.factor.value != 1):
            own |= self._list(ConstantRole.FACTOR, value.factor, value.upstream)
        if value.offset is not None and np.any(value.offset.value != 0):
            own |= self._list(ConstantRole.OFFSET, value.offset, value.upstream)
        if self.lists_folds:
            self._list_folded_offset(value, own)
        return value.upstream | own

    def _list_folded_offset(self, value: _Affine, own: int) -> None:
        """List the offset that an exporter may store in place of the offsets of two matrix products in sequence.

        It is the first product's offset times the second product's matrix, plus the second product's offset. `own` is
        the bit mask of the second product's constants.
        """
        first, matrix = value.source.offset if value.source is not None else None, value.matrix
        places = [i for i, c in enumerate(self.constants) if c.tensor is first]
        if first is None or matrix is None or not places:
            return
        magnitudes = np.abs(matrix.value, dtype=np.float32) @ np.abs(first.value, dtype=np.float32)
        folded = replace(first, value=matrix.value @ first.value, magnitude_sum=magnitudes)
        covers = 1 << places[0]
        if value.offset is not None:
            folded = folded.add(value.offset)
            offsets = [i for i, c in enumerate(self.constants) if c.role is ConstantRole.OFFSET]
            covers |= sum(1 << i for i in offsets if own >> i & 1)
        folded = replace(folded, name=f"{matrix.name} times {first.name}")
        self._list(ConstantRole.OFFSET, folded, value.upstream, covers=covers)

    def _list(self, role: ConstantRole, tensor: StoredTensor, upstream: int, **more: Any) -> int:
        """Append a constant of the present group to the list, and return its bit in masks of constants."""
        self.constants.append(Constant(role, tensor, upstream, self._groups, **more))
        return 1 << (len(self.constants) - 1)
