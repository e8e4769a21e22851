"""Follows constants through a graph until they meet data, whatever the format, and brings them into one form.

What an exporter may write in several ways is the same here: a matrix is [out, in] however it lies in the file, scales of
compressed numbers, factors and offsets behind a product belong to it, and a table is what rows are looked up in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.pipeline.formats.stored.numbers import Numbers, StoredRange

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
