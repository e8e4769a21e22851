"""The constants of a torch module, among which the constants read from a file are found by their numbers.

`ReferenceConstants` finds which constants of the module a stored one may be: equal up to the rounding of fp32, of fp16
and of its scheme, whatever its name, since exporters rename tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pocketbert.pipeline.formats.constants import Constant, ConstantRole, Floats, StoredTensor


class ReferenceConstants:
    """The constants of a prepared torch module, among which the constants read from an exported file are found.

    Args:
        constants: The constants, as `trace_constants` returns them.
        multiples: Whether the exporter may have multiplied some of them by a power of two, see
            `pocketbert.export.adapters.half_range`. Which power depends on texts that are not known here.
        of_length: Function that returns the tensors that the module computes from its constants alone for inputs of a
            given length; files that take one length store these. None if there are no such tensors.
        needed: Names of the constants from which these tensors are computed.
    """

    def __init__(
        self,
        constants: Sequence[Constant],
        multiples: bool = False,
        of_length: Callable[[int], list[Constant]] | None = None,
        needed: Sequence[str] = (),
    ) -> None:
        self.constants, self.multiples, self.needed = list(constants), multiples, tuple(needed)
        self._own_count = len(self.constants)
        self._of_length, self._known_lengths = of_length, set[int]()
        self._by_shape: dict[tuple[ConstantRole, tuple[int, ...]], list[int]] = {}
        for i, constant in enumerate(constants):
            self._by_shape.setdefault((constant.role, constant.tensor.value.shape), []).append(i)
        self.downstream = [0] * len(constants)
        for i, constant in enumerate(constants):
            for j in list_bits(constant.upstream):
                self.downstream[j] |= 1 << i
        self._matches: dict[tuple[ConstantRole, int], list[int]] = {}
        self._largest: dict[int, float] = {}
        self._looked_up: list[StoredTensor] = []  # kept alive as long as they are known by their id

    def add_lengths(self, lengths: Sequence[int]) -> None:
        """Add the tensors that an exporter may precompute for inputs of these lengths, such as position embeddings.

        Files may store them or not.
        """
        for length in set(lengths) - self._known_lengths:
            self._known_lengths.add(length)
            for constant in self._of_length(length) if self._of_length else ():
                self._by_shape.setdefault((constant.role, constant.tensor.value.shape), []).append(len(self.constants))
                self.constants.append(replace(constant, upstream=0, group=-len(self.constants), covers=0, used=False))
                self.downstream.append(0)
                self._matches.clear()

    def forget_file(self) -> None:
        """Forget which constants of the module those of a file are, and free the memory of the file's numbers."""
        self._matches.clear()
        self._largest.clear()
        self._looked_up.clear()

    def matches(self, constant: Constant) -> list[int]:
        """Return the indices of the module's constants from which a constant of a file may have been made.

        They are equal to it within rounding or, if the exporter may have multiplied constants, up to a power of two. If an array
        equals none of them, they are the tables whose first rows, or the integer tensors whose first numbers, are equal to it.
        """
        key = constant.role, id(constant.tensor)
        if key not in self._matches:
            self._looked_up.append(constant.tensor)
            candidates = self._by_shape.get((constant.role, constant.tensor.value.shape), [])
            found = [i for i in candidates if self._is_same(constant.tensor, self.constants[i].tensor)]
            if constant.role is ConstantRole.ARRAY and not found:
                found = self._tables_with_first_rows(constant.tensor)
            self._matches[key] = found
        return self._matches[key]

    def _is_same(self, stored: StoredTensor, expected: StoredTensor) -> bool:
        """Return whether a tensor of a file equals one of the module within rounding.

        If the exporter may have multiplied tensors, it may also be 2^k times the module's tensor.
        """
        if _is_equal(stored, expected):
            return True
        if not self.multiples or not expected.is_float:
            return False
        largest = np.array([self._largest_magnitude(t) for t in (expected, stored)], np.float64)
        if not largest.all():
            return False
        return _is_equal(stored, expected, 2.0 ** np.round(np.log2(largest[0] / largest[1])))

    def _largest_magnitude(self, tensor: StoredTensor) -> float:
        """Return the largest magnitude of a tensor. It is computed once per tensor."""
        if id(tensor) not in self._largest:
            self._looked_up.append(tensor)
            self._largest[id(tensor)] = _largest_along(tensor.value, None).item()
        return self._largest[id(tensor)]

    def _tables_with_first_rows(self, stored: StoredTensor) -> list[int]:
        """Return the indices of the module's tables whose first rows equal an array of a file.

        For an array of integers they are the integer tensors that begin with its numbers. Exporters replace the
        lookup of known positions by its result. Other parts of tables, for one length, come from `add_lengths`.
        """
        if not stored.is_float:
            flat = stored.value.reshape(-1)
            ids = [
                (i, c.tensor.value) for i, c in enumerate(self.constants[: self._own_count]) if not c.tensor.is_float
            ]
            return [i for i, value in ids if np.array_equal(value.reshape(-1)[: flat.size], flat)]
        rows = stored.transform(lambda v: v.reshape(-1, v.shape[-1]))
        count, width = rows.value.shape
        found = []
        for i, constant in enumerate(self.constants):
            table = constant.tensor.value
            if constant.role is ConstantRole.TABLE and table.shape[1] == width:
                first = np.broadcast_to(table, rows.value.shape) if len(table) == 1 else table[:count]
                if len(first) == count and self._is_same(rows, StoredTensor(first)):
                    found.append(i)
        return found

    def describe_mismatch(self, constant: Constant) -> str:
        """Return a phrase on how a file's constant differs from the nearest one of the same role and shape."""
        candidates = self._by_shape.get((constant.role, constant.tensor.value.shape), [])
        if not candidates:
            return "the model has no tensor of that shape in such a place"
        wrong = [~_is_within_bounds(constant.tensor, self.constants[i].tensor) for i in candidates]
        nearest = int(np.argmin([w.sum() for w in wrong]))
        name, bad = self.constants[candidates[nearest]].tensor.name or "a tensor", wrong[nearest]
        if bad.ndim == 2 and bad.any(1).sum() < len(bad):
            rows = np.flatnonzero(bad.any(1))
            return f"{name} has other numbers in {len(rows):,} of {len(bad):,} rows, first in row {rows[0]}"
        return f"{name} has other numbers in {int(bad.sum()):,} of {bad.size:,} places"


def list_bits(mask: int) -> Iterator[int]:
    """Yield the positions of the bits that are set in an integer, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


# --- comparing numbers ------------------------------------------------------------------------------------------------

_ROUNDING = 1e-6
"""Relative error of fp32 where an exporter multiplies two constants in advance."""
_HALF = 2.0**-11
"""Relative error of rounding to fp16."""
_LEAST_HALF = 2.0**-24
"""Smallest number of fp16; coremltools writes it for smaller ones, so that none becomes zero."""
_SAMPLED = 64
"""Numbers of a tensor that are compared first, because most pairs of tensors differ everywhere."""
_BLOCK = 1 << 18
"""Numbers that are compared at a time, so that the bounds of a large table stay in the processor's cache."""


def _is_equal(stored: StoredTensor, expected: StoredTensor, factor: float = 1.0) -> bool:
    """Return whether a file's tensor, times a factor, equals the module's: floats within rounding, integers exactly.

    Quantized numbers must also have steps that are as small as their bits allow.

    A few elements are compared first, because each tensor of a file is compared with all tensors of its shape, and most
    of these differ everywhere.
    """
    value = expected.value
    if not expected.is_float or not stored.is_float:
        return bool(np.array_equal(stored.value, value))
    scale = StoredTensor(np.array(factor, np.float32))
    places = np.unique(np.linspace(0, value.size - 1, min(_SAMPLED, value.size)).astype(np.int64))
    spots = np.unravel_index(places, value.shape)
    sample, wanted = stored.transform(lambda v: v[spots]).multiply(scale), expected.transform(lambda v: v[spots])
    if not (_is_near(sample, wanted) | (sample.value == wanted.value)).all():
        return False
    whole = stored if factor == 1.0 else stored.multiply(scale)
    if whole.step is None and np.array_equal(whole.value, value):
        return True
    return _is_near_in_blocks(whole, expected) and bool(np.all(_is_fine(whole, value)))


def _is_near_in_blocks(stored: StoredTensor, expected: StoredTensor) -> bool:
    """Return whether all numbers are near the expected ones, comparing blocks until one has a number that is not."""
    count = len(expected.value) if expected.value.ndim else 0
    rows = max(1, _BLOCK * count // max(expected.value.size, 1))
    if rows >= count:
        return bool(_is_near(stored, expected).all())
    return all(
        _is_near(_take_rows(stored, start, start + rows), _take_rows(expected, start, start + rows)).all()
        for start in range(0, count, rows)
    )


def _take_rows(tensor: StoredTensor, start: int, end: int) -> StoredTensor:
    """Return rows `start` to `end` of a tensor, with their quantization steps, magnitudes and palette ends."""

    def take(values: Floats) -> Floats:
        """Return the rows of values, or the values where all rows have the same."""
        return values if len(values) == 1 else values[start:end]

    step, sums, ends = tensor.step, tensor.magnitude_sum, tensor.palette_ends
    return replace(
        tensor,
        value=tensor.value[start:end],
        step=None if step is None else take(step),
        magnitude_sum=None if sums is None else take(sums),
        palette_ends=None if ends is None else (take(ends[0]), take(ends[1])),
    )


def _is_within_bounds(stored: StoredTensor, expected: StoredTensor) -> NDArray[np.bool_]:
    """Return for each number whether it is near the expected one and its quantization step is not too coarse."""
    return _is_near(stored, expected) & _is_fine(stored, expected.value)


def _is_near(stored: StoredTensor, expected: StoredTensor) -> NDArray[np.bool_]:
    """Return for each number whether rounding to fp32, fp16 or a scheme explains its distance from the expected one."""
    # quantized numbers were rounded to fp16 before, and their zero point afterwards
    roundings = stored.fp16_factors + (2 if stored.fp16_factors and stored.step is not None else 0)
    relative = _ROUNDING + roundings * _HALF * (1 + 2 * _HALF)
    bound = np.maximum(expected.magnitude, stored.magnitude) * np.float32(relative)
    if roundings:
        bound += np.float32(_LEAST_HALF)
    if stored.step is not None:
        # a zero point is rounded too, so that the numbers at both ends may be another half step off
        bound += stored.step * np.float32((1.0 if stored.has_zero_point else 0.5) * 1.001)
    value = expected.value if stored.palette_ends is None else np.clip(expected.value, *stored.palette_ends)
    near: NDArray[np.bool_] = np.abs(stored.value - value) <= bound
    return near


def _is_fine(stored: StoredTensor, value: Floats) -> NDArray[np.bool_] | bool:
    """Return whether the quantization step is as small as possible with the given bits: for each number, or once for all.

    The smallest possible step follows from the largest number that shares it. Numbers with equal steps count as sharing
    one, because the file does not always show which were quantized together. Of a palette, the RMS error of all numbers
    is judged.

    Args:
        stored: The tensor that the file stores, with its steps.
        value: The exact numbers of the torch model.
    """
    if stored.step is None or stored.bits > 16:
        return True
    if stored.palette_ends is not None:  # in all no worse than equal steps could be
        largest_error = np.ptp(value) / (2**stored.bits - 1) / 2
        return bool(np.sqrt(np.mean((stored.value - value) ** 2)) <= largest_error * 1.01)
    levels = 2 ** (stored.bits - 1) - 1
    if stored.had_one_step:
        ratio = float((np.abs(value) / np.broadcast_to(stored.step, value.shape)).max())
        return bool(ratio * 1.01 >= levels)
    steps, groups = np.unique(stored.step, return_inverse=True)
    groups = groups.reshape((1,) * (value.ndim - stored.step.ndim) + stored.step.shape)
    shared = tuple(axis for axis in range(value.ndim) if groups.shape[axis] == 1)  # first along them: `at` is slow
    largest = np.zeros(steps.shape, np.float32)
    np.maximum.at(largest, groups.reshape(-1), _largest_along(value, shared).reshape(-1))
    fine = (steps <= largest / levels * 1.01) | (largest == 0)
    return np.broadcast_to(np.asarray(fine[groups], bool), value.shape)


def _largest_along(values: Floats, axes: tuple[int, ...] | None) -> Floats:
    """Return the largest magnitude along axes (None: of all), which keep length 1, without a copy of the values."""
    highest, lowest = (
        np.asarray(end, np.float32) for end in (values.max(axes, keepdims=True), values.min(axes, keepdims=True))
    )
    return np.maximum(highest, -lowest)
