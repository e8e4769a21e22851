"""Stored numbers as fp32, with how coarsely they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
