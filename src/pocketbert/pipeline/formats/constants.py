"""Follows constants through a graph until they meet data, whatever the format, and brings them into one form.

What an exporter may write in several ways is the same here: a matrix is [out, in] however it lies in the file, scales of
compressed numbers, factors and offsets behind a product belong to it, and a table is what rows are looked up in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# --- numbers ---
# Stored numbers as fp32, with how coarsely they are stored.


Floats = NDArray[np.float32]
INTEGERS = (np.dtype("int8"), np.dtype("uint8"))
"""Types of compressed numbers; other integers are shapes, axes and ids."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """The value of a constant, dequantized.

    Attributes:
        value: The numbers; integers that are no compressed numbers keep their type.
        name: What the file calls it.
        step: Distance between neighbouring numbers that can be stored, with as many axes as `value` and broadcastable to
            it; None of floats.
        halves: How many factors of it are stored as fp16, scales of compressed numbers among them.
        offset: Whether a zero point other than 0 was subtracted.
        size: Sum of the magnitudes that were added up; None where nothing was.
        bits: How many bits a compressed number has.
        shared: Whether all numbers had one step before each was multiplied with a factor of another constant.
        ends: Smallest and largest number of a palette, as `step`; they stand for all numbers beyond them. None without one.
    """

    value: NDArray[Any]
    name: str = ""
    step: Floats | None = None
    halves: int = 0
    offset: bool = False
    size: Floats | None = None
    bits: int = 8
    shared: bool = False
    ends: tuple[Floats, Floats] | None = None

    @property
    def magnitude(self) -> Floats:
        """What rounding errors are relative to."""
        return np.abs(self.value) if self.size is None else self.size

    @property
    def is_float(self) -> bool:
        """Whether these are numbers of the model, and no shape, axis or id."""
        return bool(self.value.dtype.kind == "f")

    def changed(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Numbers:
        """Move the numbers; steps of another shape than a single one are moved with them."""
        value = change(self.value)

        def moved(step: Floats) -> Floats:
            if step.size == 1:
                return step.reshape((1,) * value.ndim)
            return _narrow(change(np.broadcast_to(step, self.value.shape)))

        return replace(
            self,
            value=value,
            step=None if self.step is None else moved(self.step),
            size=None if self.size is None else change(self.size),
            ends=None if self.ends is None else (moved(self.ends[0]), moved(self.ends[1])),
        )

    def times(self, factor: Numbers) -> Numbers:
        """Multiply with numbers that broadcast to these; the integers of a compressed tensor with their scales, too."""
        by = factor.value.astype(np.float32)
        step = None if self.step is None else np.asarray(np.abs(self.step * by), np.float32)
        if (
            step is not None and factor.step is not None
        ):  # both were rounded, so no range tells how coarse the steps may be
            step = np.asarray(step + np.abs(self.value) * factor.step, np.float32)
            return replace(self, value=self.value * by, step=step, halves=self.halves + factor.halves, bits=32)
        size = None if self.size is None else np.asarray(self.size * np.abs(by), np.float32)
        ends = None if self.ends is None else (self.ends[0] * by, self.ends[1] * by)
        if ends is not None:
            ends = np.minimum(*ends), np.maximum(*ends)
        return replace(self, value=self.value * by, step=step, halves=self.halves + factor.halves, size=size, ends=ends)

    def scaled(self, factor: Numbers) -> Numbers:
        """Multiply with another constant of the model, which says nothing about what shared a step."""
        return replace(self.times(factor), shared=self.shared or (self.step is not None and self.step.size == 1))

    def plus(self, other: Numbers) -> Numbers:
        """Add numbers of the same shape; where the others were rounded, their steps add up."""
        halves, size = max(self.halves, other.halves), self.magnitude + other.magnitude
        out = replace(self, value=self.value + other.value, halves=halves, size=size)
        steps = [n.step for n in (self, other) if n.step is not None]
        if not steps:
            return out
        # no range tells how coarse the steps of a sum may be
        step = np.asarray(sum(steps), np.float32)
        return replace(out, step=step, offset=self.offset or other.offset, bits=32, shared=False, ends=None)

    def flat(self) -> Numbers:
        """Lay the numbers in one row."""
        return self.changed(lambda v: v.reshape(-1))


def _narrow(step: Floats) -> Floats:
    """Leave one of each axis along which nothing changes."""
    for axis in range(step.ndim):
        first = step.take([0], axis)
        step = first if np.array_equal(np.broadcast_to(first, step.shape), step) else step
    return step


def numbers_of(value: NDArray[Any], name: str) -> Numbers:
    """Read a stored array; 8-bit integers count as compressed, in steps of 1 until their scale is known."""
    if value.dtype in INTEGERS:
        return Numbers(value.astype(np.float32), name, np.ones((1,) * value.ndim, np.float32))
    if value.dtype == np.float16:
        return Numbers(value.astype(np.float32), name, halves=1)
    return Numbers(value.astype(np.float32) if value.dtype.kind == "f" else value, name)


def compressed(value: NDArray[Any], name: str) -> Numbers:
    """Read a stored array that is dequantized: integers of any type, in steps of 1 until their scale is known."""
    if value.dtype in INTEGERS or value.dtype.kind not in "iu":
        return numbers_of(value, name)
    one = np.ones((1,) * value.ndim, np.float32)
    return Numbers(value.astype(np.float32), name, one, bits=8 * value.dtype.itemsize)


def from_palette(places: NDArray[Any], palette: NDArray[Any], name: str) -> Numbers:
    """Read numbers that are places in a palette.

    A number's step is the larger gap to its neighbours in the palette.

    Args:
        places: Integers of any shape.
        palette: [size]; 2 ** bits numbers.
        name: What the file calls the numbers.
    """
    levels = palette.astype(np.float32)
    different = np.unique(levels)
    gaps = np.concatenate([[0.0], np.diff(different), [0.0]]).astype(np.float32)
    steps = np.maximum(gaps[1:], gaps[:-1])[np.searchsorted(different, levels)]
    one = (1,) * places.ndim
    return Numbers(
        value=levels[places],
        name=name,
        step=steps[places],
        halves=int(palette.dtype == np.float16),
        bits=int(levels.size - 1).bit_length(),
        ends=(different[:1].reshape(one), different[-1:].reshape(one)),
    )


def dequantized(
    numbers: Numbers, scale: NDArray[Any], zero: NDArray[Any] | None, axis: int = 0, half: bool = False
) -> Numbers:
    """Apply scales and zero points: (number - zero) * scale.

    Args:
        numbers: The integers.
        scale: One for all, or one for each index of `axis`, or as many axes as the integers and broadcastable to them.
        zero: As `scale`; None for zero.
        axis: The axis of scales that have one.
        half: Whether the scales are stored as fp16.
    """

    def along(values: NDArray[Any]) -> Floats:
        if values.size == 1:
            return values.astype(np.float32).reshape((1,) * numbers.value.ndim)
        if values.ndim == numbers.value.ndim:
            return values.astype(np.float32)
        shape = [1] * numbers.value.ndim
        shape[axis] = values.size
        return values.astype(np.float32).reshape(shape)

    moved = zero is not None and bool(np.any(zero))
    value = numbers.value - along(zero) if zero is not None and moved else numbers.value
    whole = replace(numbers, value=value, offset=numbers.offset or moved)
    return whole.times(Numbers(along(scale), halves=int(half)))


class StoredRange(NamedTuple):
    """The range of a value that a file holds as integers.

    Attributes:
        low: The smallest number that they can be.
        high: The largest.
        bits: Bits of the integers.
        step: Distance of two neighbours.
        of_table: Whether the integers are those of a table's rows, so that it is the range of the table.
    """

    low: float
    high: float
    bits: int = 8
    step: float = 0.0
    of_table: bool = False


def range_of(scale: NDArray[Any], zero: NDArray[Any] | int, ends: tuple[int, int]) -> StoredRange:
    """Return the smallest and the largest number that integers with one scale can be.

    Args:
        scale: Distance of two neighbours.
        zero: The integer that means 0.
        ends: Smallest and largest integer.
    """
    step, middle = float(np.asarray(scale).reshape(-1)[0]), int(np.asarray(zero).reshape(-1)[0])
    bits = (ends[1] - ends[0]).bit_length()
    return StoredRange((ends[0] - middle) * step, (ends[1] - middle) * step, bits, step)


LARGE = 1024
"""Bytes from which integers, which are mostly shapes and axes, count as a constant."""


class Role(StrEnum):
    """What a graph does with a constant."""

    MATRIX = "matrix"
    """Multiplies with it; [out, in]."""
    TABLE = "table"
    """Looks up its rows."""
    FACTOR = "factor"
    """Multiplies every channel by its own number."""
    OFFSET = "offset"
    """Adds a number of its own to every channel."""
    ARRAY = "array"
    """Anything else."""


@dataclass(eq=False)
class StoredRanges:
    """The ranges that a file holds for a product with a stored matrix.

    Attributes:
        inputs: Smallest and largest number that the integers of its input can be; None where the file holds no range.
        outputs: The same of its result.
    """

    inputs: StoredRange | None = None
    outputs: StoredRange | None = None


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant where a graph uses it.

    Attributes:
        role: What is done with it.
        numbers: Its value in the form of the role.
        before: Constants that what it meets was computed from: bit i stands for the one at place i of the list.
        group: Constants of one affine operation have the same number.
        covers: Constants that a file does not need if it holds this one, as `before`; nothing where it is needed itself.
        used: Whether an output of the graph depends on it.
        ranges: Of a matrix, the ranges that the file holds for its product.
    """

    role: Role
    numbers: Numbers
    before: int
    group: int
    covers: int = 0
    used: bool = True
    ranges: StoredRanges = field(default_factory=StoredRanges)

    @property
    def names(self) -> set[str]:
        """Names of the stored numbers that it was computed from."""
        return set(self.numbers.name.split(", ")) - {""}


@dataclass(frozen=True, eq=False)
class _Data:
    before: int


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows [V, H] of a table, not yet used."""

    table: Numbers
    index: Hashable


@dataclass(frozen=True, eq=False)
class _Affine:
    """Data times a matrix, times a factor, plus an offset; any of the three may be missing. `behind` is what made the data."""

    before: int
    matrix: Numbers | None = None
    factor: Numbers | None = None
    offset: Numbers | None = None
    behind: _Affine | None = None
    ranges: StoredRanges = field(default_factory=StoredRanges)

    def takes(self, numbers: Numbers) -> bool:
        """Whether a constant has one number for each channel."""
        width = next((n.value.shape[0] for n in (self.matrix, self.factor, self.offset) if n is not None), None)
        return numbers.value.size > 1 if width is None else numbers.value.size == width

    def times(self, by: Numbers) -> _Affine:
        offset = self.offset and self.offset.times(by)
        if self.matrix is not None:
            return replace(self, matrix=self.matrix.times(by.changed(lambda v: v[:, None])), offset=offset)
        return replace(self, factor=by if self.factor is None else self.factor.scaled(by), offset=offset)

    def plus(self, numbers: Numbers) -> _Affine:
        return replace(self, offset=numbers if self.offset is None else self.offset.plus(numbers))


_Value = Numbers | _Data | _Rows | _Affine


class Tracker:
    """Collects the constants of one graph; a reader calls a method for each operator, in the order in which they run.

    Args:
        folds: Whether to list what exporters may store instead: an offset between two products, which they may add to the
            offset of the second one.

    Attributes:
        constants: What was found so far.
    """

    def __init__(self, folds: bool = False) -> None:
        self.folds = folds
        self.constants: list[Constant] = []
        self._values: dict[Hashable, _Value] = {}
        self._used: dict[int, tuple[_Value, int]] = {}
        self._groups = 0
        self._ranges: dict[Hashable, StoredRange] = {}

    def store(self, key: Hashable, numbers: Numbers) -> None:
        """Name a constant."""
        self._values[key] = numbers

    def stored(self, key: Hashable) -> Numbers | None:
        """Return a constant that was only moved and widened so far; None of anything else."""
        value = self._values.get(key)
        return value if isinstance(value, Numbers) else None

    def limit(self, key: Hashable, stored: StoredRange) -> None:
        """Note the range of a value that a file holds as integers.

        Where a product and its offset made the value, it is the range of the result.
        """
        value = self._values.get(key)
        if isinstance(value, _Rows) and value.table.step is not None:
            numbers, step = value.table.value, stored.step
            fits = stored.low - step <= numbers.min() and numbers.max() <= stored.high + step
            stored = stored._replace(of_table=bool(fits and np.allclose(value.table.step, step, rtol=1e-3)))
        self._ranges[key] = stored
        if isinstance(value, _Affine) and value.matrix is not None and value.offset is not None:
            value.ranges.outputs = value.ranges.outputs or stored

    def move_range(self, out: Hashable, key: Hashable) -> None:
        """Note that a value has the numbers of another one, in other places."""
        if key in self._ranges:
            self._ranges[out] = self._ranges[key]

    def keep(self, out: Hashable, key: Hashable, change: Callable[[NDArray[Any]], NDArray[Any]] | None = None) -> None:
        """Follow an operator that leaves channels where they are; `change` is what it does to a constant."""
        value = self._values.get(key)
        if isinstance(value, Numbers) and change is not None:
            value = value.changed(change)
        self._values[out] = value if value is not None else _Data(0)
        self.move_range(out, key)

    def rearrange(self, out: Hashable, key: Hashable, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Follow an operator that moves channels, such as a transposition."""
        if isinstance(self._values.get(key), Numbers):
            self.keep(out, key, change)
        else:
            self.other([out], [key])
            self.move_range(out, key)

    def dequantize(self, out: Hashable, key: Hashable, change: Callable[[Numbers], Numbers]) -> None:
        """Follow an operator that widens compressed numbers, stored ones or rows looked up in them."""
        value = self._values.get(key)
        if isinstance(value, Numbers):
            self._values[out] = change(value)
        elif isinstance(value, _Rows):
            self._values[out] = replace(value, table=change(value.table))
        else:
            self.other([out], [key])
            self.move_range(out, key)

    def lookup(self, out: Hashable, table: Hashable, index: Hashable) -> None:
        """Follow a lookup of rows."""
        numbers = self.stored(table)
        if numbers is None or not numbers.is_float or numbers.value.ndim > 2:
            self.other([out], [table, index])
        else:
            rows = numbers if numbers.value.ndim == 2 else numbers.changed(lambda v: v.reshape(-1, 1))
            self._values[out] = _Rows(rows, index)

    def product(
        self, out: Hashable, data: Hashable, matrix: Hashable, offset: Hashable | None = None, turned: bool = False
    ) -> None:
        """Follow a product with a stored matrix [out, in], or [in, out] where it is `turned`."""
        numbers = self.stored(matrix)
        if numbers is None or not numbers.is_float or sum(n > 1 for n in numbers.value.shape) > 2:
            self.other([out], [k for k in (data, matrix, offset) if k is not None])
            return
        flat = numbers.changed(lambda v: v.reshape(v.shape[-2:]) if turned else v.reshape(v.shape[0], -1))
        source = self._values.get(data)
        behind = source if isinstance(source, _Affine) and source.matrix is not None else None
        matrix, ranges = flat.changed(np.transpose) if turned else flat, StoredRanges(self._ranges.get(data))
        self._values[out] = _Affine(self._use(data), matrix, behind=behind, ranges=ranges)
        if offset is not None:
            self.add(out, out, offset)

    def add(self, out: Hashable, left: Hashable, right: Hashable) -> None:
        """Follow a sum."""
        self._affine(out, left, right, _Affine.plus)

    def multiply(self, out: Hashable, left: Hashable, right: Hashable) -> None:
        """Follow a product number by number."""
        one, other = self._values.get(left), self._values.get(right)
        if isinstance(one, _Rows) and isinstance(other, _Rows) and one.index == other.index:
            wide, narrow = (one, other) if one.table.value.shape[1] > 1 else (other, one)
            self._values[out] = replace(wide, table=wide.table.times(narrow.table))
        else:
            self._affine(out, left, right, _Affine.times)

    def scale(self, out: Hashable, key: Hashable, factor: Hashable) -> None:
        """Follow a product by a constant that has one number for each channel, and one of data that only is its unit."""
        numbers = self.stored(factor)
        assert numbers is not None
        value = self._values.get(key)
        flat = numbers.flat()
        if isinstance(value, _Affine) and (value.takes(flat) or flat.value.size == 1):
            width = value.matrix.value.shape[0] if value.matrix is not None else flat.value.size
            self._values[out] = value.times(flat.changed(lambda v: np.broadcast_to(v, (width,))))
        else:
            self.other([out], [key, factor])

    def _affine(
        self, out: Hashable, left: Hashable, right: Hashable, change: Callable[[_Affine, Numbers], _Affine]
    ) -> None:
        for data, constant in ((left, right), (right, left)):
            value, numbers = self._values.get(data), self._values.get(constant)
            if isinstance(numbers, Numbers) and numbers.is_float and isinstance(value, _Affine | _Data):
                affine = value if isinstance(value, _Affine) else _Affine(value.before)
                flat = numbers.flat()
                if sum(n > 1 for n in numbers.value.shape) <= 1 and affine.takes(flat):
                    self._values[out] = change(affine, flat)
                    return
        self.other([out], [left, right])

    def other(self, outs: Iterable[Hashable], keys: Iterable[Hashable]) -> None:
        """Follow any other operator: what it reads is used here."""
        before = 0
        for key in keys:
            before |= self._use(key)
        for out in outs:
            self._values[out] = _Data(before)

    def _use(self, key: Hashable) -> int:
        """Put what is behind a value on the list, once; returns the places of all that it was computed from."""
        value = self._values.get(key)
        if value is None:
            return 0
        if isinstance(value, _Data):
            return value.before
        if id(value) not in self._used:
            self._used[id(value)] = value, self._listed(value)
        return self._used[id(value)][1]

    def _listed(self, value: Numbers | _Rows | _Affine) -> int:
        self._groups += 1
        if isinstance(value, _Rows):
            return self._constant(Role.TABLE, value.table, 0)
        if isinstance(value, Numbers):
            if value.value.size == 1 or not (value.is_float or value.value.nbytes > LARGE):
                return 0
            return self._constant(Role.ARRAY, value.changed(np.squeeze), 0)
        after = value.before
        if value.matrix is not None:
            after |= self._constant(Role.MATRIX, value.matrix, value.before, ranges=value.ranges)
        # converters drop what changes nothing
        if value.factor is not None and np.any(value.factor.value != 1):
            after |= self._constant(Role.FACTOR, value.factor, value.before)
        if value.offset is not None and np.any(value.offset.value != 0):
            after |= self._constant(Role.OFFSET, value.offset, value.before)
        if self.folds:
            self._pushed(value, after & ~value.before)
        return after

    def _pushed(self, value: _Affine, own: int) -> None:
        """List the offset of an operation with the one before it pushed through its matrix."""
        first = value.behind.offset if value.behind is not None else None
        matrix = value.matrix
        places = [i for i, c in enumerate(self.constants) if c.numbers is first]
        if first is None or matrix is None or not places:
            return
        pushed = replace(first, value=matrix.value @ first.value, size=np.abs(matrix.value) @ np.abs(first.value))
        covers = 1 << places[0]
        if value.offset is not None:
            pushed = pushed.plus(value.offset)
            covers |= sum(1 << i for i, c in enumerate(self.constants) if own >> i & 1 and c.role is Role.OFFSET)
        self._constant(Role.OFFSET, replace(pushed, name=f"{matrix.name} times {first.name}"), value.before, covers)

    def _constant(
        self, role: Role, numbers: Numbers, before: int, covers: int = 0, ranges: StoredRanges | None = None
    ) -> int:
        self.constants.append(Constant(role, numbers, before, self._groups, covers, ranges=ranges or StoredRanges()))
        return 1 << (len(self.constants) - 1)

    def finish(self, keys: Iterable[Hashable]) -> list[Constant]:
        """Use the outputs of the graph; returns all constants."""
        used = 0
        for key in keys:
            used |= self._use(key)
        groups = {c.group for i, c in enumerate(self.constants) if used >> i & 1}
        return [c if c.group in groups else replace(c, used=False) for c in self.constants]
