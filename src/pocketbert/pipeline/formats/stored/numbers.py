"""Stored numbers as fp32, with how coarsely they are stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

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
    """

    value: NDArray[Any]
    name: str = ""
    step: Floats | None = None
    halves: int = 0
    offset: bool = False
    size: Floats | None = None
    bits: int = 8

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
        value, step = change(self.value), self.step
        if step is not None:
            one = step.size == 1
            step = step.reshape((1,) * value.ndim) if one else _narrow(change(np.broadcast_to(step, self.value.shape)))
        return replace(self, value=value, step=step, size=None if self.size is None else change(self.size))

    def times(self, factor: Numbers) -> Numbers:
        """Multiply with numbers that broadcast to these; the integers of a compressed tensor with their scales, too."""
        by = factor.value.astype(np.float32)
        step = None if self.step is None else np.asarray(np.abs(self.step * by), np.float32)
        size = None if self.size is None else np.asarray(self.size * np.abs(by), np.float32)
        return replace(self, value=self.value * by, step=step, halves=self.halves + factor.halves, size=size)

    def plus(self, other: Numbers) -> Numbers:
        """Add numbers of the same shape."""
        halves = max(self.halves, other.halves)
        return replace(self, value=self.value + other.value, halves=halves, size=self.magnitude + other.magnitude)

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


def dequantized(
    numbers: Numbers, scale: NDArray[Any], zero: NDArray[Any] | None, axis: int = 0, half: bool = False
) -> Numbers:
    """Apply scales and zero points: (number - zero) * scale.

    Args:
        numbers: The integers.
        scale: One for all, or one for each index of `axis`.
        zero: As `scale`; None for zero.
        axis: The axis of the scales.
        half: Whether the scales are stored as fp16.
    """

    def along(values: NDArray[Any]) -> Floats:
        if values.size == 1:
            return values.astype(np.float32).reshape((1,) * numbers.value.ndim)
        shape = [1] * numbers.value.ndim
        shape[axis] = values.size
        return values.astype(np.float32).reshape(shape)

    moved = zero is not None and bool(np.any(zero))
    value = numbers.value - along(zero) if zero is not None and moved else numbers.value
    whole = replace(numbers, value=value, offset=numbers.offset or moved)
    return whole.times(Numbers(along(scale), halves=int(half)))
