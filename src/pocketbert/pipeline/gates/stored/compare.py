"""Compares the constants of a file with those of the module that it was made of, by value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.pipeline.formats.stored.numbers import Floats, Numbers
from pocketbert.pipeline.formats.stored.tracker import Constant, Role, StoredRanges

ROUNDING = 1e-6
"""Of a number, what fp32 loses where an exporter multiplies two constants in advance."""
HALF = 2.0**-11
"""Of a number, what fp16 rounds away."""
LEAST_HALF = 2.0**-24
"""The smallest number of fp16: coremltools writes it for smaller ones, so that none becomes zero."""
SAMPLED = 64
"""Numbers of a tensor that are looked at first."""

SHOWN = 60
"""Last characters of a name that are shown: TFLite's are as long as the path of their module."""


class Reference:
    """The constants of a prepared module.

    Args:
        constants: As `module_constants` returns them.
        multiples: Whether the exporter may have multiplied any of them by a power of two, see
            `pocketbert.export.adapters.half_range`. By which, it measured on texts that are not known here.
        of_length: Returns what the module computes from nothing but its own constants, for inputs of a length: files that
            take one length hold that. None where there is nothing of the kind.
        needed: Names of the numbers from which that is computed.
    """

    def __init__(
        self,
        constants: Sequence[Constant],
        multiples: bool = False,
        of_length: Callable[[int], list[Constant]] | None = None,
        needed: Sequence[str] = (),
    ) -> None:
        self.constants, self.multiples, self.needed = list(constants), multiples, tuple(needed)
        self._own = len(self.constants)
        self._of_length, self._known_lengths = of_length, set[int]()
        self._by_shape: dict[tuple[Role, tuple[int, ...]], list[int]] = {}
        for i, c in enumerate(constants):
            self._by_shape.setdefault((c.role, c.numbers.value.shape), []).append(i)
        self.after = [0] * len(constants)
        for i, c in enumerate(constants):
            for j in _bits(c.before):
                self.after[j] |= 1 << i
        self._found: dict[tuple[Role, int], list[int]] = {}
        self._kept: list[Numbers] = []

    def know(self, lengths: Sequence[int]) -> None:
        """Add what files hold that take inputs of these lengths only; it is none that a file needs."""
        for length in set(lengths) - self._known_lengths:
            self._known_lengths.add(length)
            for constant in self._of_length(length) if self._of_length else ():
                self._by_shape.setdefault((constant.role, constant.numbers.value.shape), []).append(len(self.constants))
                self.constants.append(replace(constant, before=0, group=-len(self.constants), covers=0, used=False))
                self.after.append(0)
                self._found.clear()

    def places(self, constant: Constant) -> list[int]:
        """Places of the constants that a stored one may be: the same role and shape, and every number within its bound."""
        key = constant.role, id(constant.numbers)
        if key not in self._found:
            self._kept.append(constant.numbers)  # else its number could be another's later
            shape = constant.numbers.value.shape
            candidates = self._by_shape.get((constant.role, shape), [])
            self._found[key] = [i for i in candidates if self._same(constant.numbers, self.constants[i].numbers)]
            if constant.role is Role.ARRAY and not self._found[key]:
                self._found[key] = self._parts(constant.numbers)
        return self._found[key]

    def _same(self, numbers: Numbers, wanted: Numbers) -> bool:
        if _equal(numbers, wanted) or not self.multiples or not wanted.is_float:
            return _equal(numbers, wanted)
        sizes = np.array([np.abs(n.value).max() for n in (wanted, numbers)], np.float64)
        if not sizes.all():
            return False
        factor = 2.0 ** np.round(np.log2(sizes[0] / sizes[1]))
        return _equal(numbers.times(Numbers(np.array(factor, np.float32))), wanted)

    def _parts(self, numbers: Numbers) -> list[int]:
        """Tables whose first rows an array is: an exporter looks them up in advance where it knows the places.

        What else an exporter cuts out of them for a length, `know` adds.
        """
        if not numbers.is_float:
            flat = numbers.value.reshape(-1)
            ids = [(i, c.numbers.value) for i, c in enumerate(self.constants[: self._own]) if not c.numbers.is_float]
            return [i for i, value in ids if np.array_equal(value.reshape(-1)[: flat.size], flat)]
        rows = numbers.changed(lambda v: v.reshape(-1, v.shape[-1]))
        count, width = rows.value.shape
        out = []
        for i, c in enumerate(self.constants):
            table = c.numbers.value
            if c.role is Role.TABLE and table.shape[1] == width:
                first = np.broadcast_to(table, rows.value.shape) if len(table) == 1 else table[:count]
                if len(first) == count and self._same(rows, Numbers(first)):
                    out.append(i)
        return out

    def nearest(self, constant: Constant) -> str:
        """Tell what is wrong with a constant that is none of the module's: how far it is from the most similar one."""
        value = constant.numbers.value
        found = self._by_shape.get((constant.role, value.shape), [])
        if not found:
            return "the model has no tensor of that shape in such a place"
        wrong = [~_within(constant.numbers, self.constants[i].numbers) for i in found]
        best = int(np.argmin([w.sum() for w in wrong]))
        title = self.constants[found[best]].numbers.name or "a tensor"
        bad = wrong[best]
        if bad.ndim == 2 and bad.any(1).sum() < len(bad):
            rows = np.flatnonzero(bad.any(1))
            return f"{title} has other numbers in {len(rows):,} of {len(bad):,} rows, first in row {rows[0]}"
        return f"{title} has other numbers in {int(bad.sum()):,} of {bad.size:,} places"


@dataclass(frozen=True)
class Comparison:
    """What is wrong with the constants of a file.

    Attributes:
        count: Tensors of the model.
        problems: Sentences without a full stop.
        products: The ranges that the file holds for products, by the paths of their weights in the module.
        weights: Matrices and tables of the file that are one tensor of the module, by its path there.
    """

    count: int
    problems: list[str]
    products: list[tuple[str, StoredRanges]] = field(default_factory=list)
    weights: list[tuple[str, Constant]] = field(default_factory=list)


def as_floats(graphs: Sequence[Sequence[Constant]]) -> list[list[Constant]]:
    """Take constants for fp32, so that nothing but their exact values will do."""

    def exact(constant: Constant) -> Constant:
        return replace(constant, numbers=replace(constant.numbers, step=None, halves=0))

    return [[exact(c) for c in constants] for constants in graphs]


def compare(graphs: Sequence[Sequence[Constant]], reference: Reference, lengths: Sequence[int]) -> Comparison:
    """Compare all graphs of a file with the module.

    Args:
        graphs: Constants of the file, of each signature.
        reference: Those of the module.
        lengths: Tokens of the inputs of each graph that takes one length; empty where a graph takes any.
    """
    problems: dict[str, None] = {}
    weights = list[tuple[str, Constant]]()
    reference.know(lengths)
    for constants in graphs:
        places = [reference.places(c) for c in constants]
        for constant, found in zip(constants, places, strict=True):
            if not found:
                problems[_unknown(constant, reference)] = None
        used = [found for c, found in zip(constants, places, strict=True) if c.used]
        problems.update(dict.fromkeys(_missing(used, reference)))
        problems.update(dict.fromkeys(_misplaced(constants, places, reference)))
        problems.update(dict.fromkeys(_strange(constants, places, reference)))
        weights += _weights(constants, places, reference)
    problems.update(dict.fromkeys(_uncovered(graphs, reference, lengths)))
    products = [(name, c.ranges) for name, c in weights if c.role is Role.MATRIX]
    return Comparison(
        count=sum(c.used and not c.covers for c in reference.constants),
        problems=list(problems),
        products=[] if reference.multiples else products,  # multiples were measured on texts that are not known here
        weights=weights,
    )


def _weights(
    constants: Sequence[Constant], places: Sequence[Sequence[int]], reference: Reference
) -> list[tuple[str, Constant]]:
    """List matrices and tables that are one tensor of the module, with its path."""
    out = []
    for constant, found in zip(constants, places, strict=True):
        names = {reference.constants[i].numbers.name for i in found}
        if constant.role in (Role.MATRIX, Role.TABLE) and len(names) == 1:
            out.append((names.pop(), constant))
    return out


def _unknown(constant: Constant, reference: Reference) -> str:
    shape = "x".join(map(str, constant.numbers.value.shape))
    return f"{constant.role} '{constant.numbers.name[-SHOWN:]}' [{shape}]: {reference.nearest(constant)}"


def _missing(places: Sequence[Sequence[int]], reference: Reference) -> list[str]:
    """Name the tensors that decide the module's answer and that a graph lacks, unless it holds what they were added to."""
    held = {i for found in places for i in found}
    lost = []
    for i, c in enumerate(reference.constants):
        instead = [j for j, other in enumerate(reference.constants) if other.used and other.covers >> i & 1]
        needed = c.used and c.numbers.is_float and not c.covers and not (instead and held.issuperset(instead))
        lost += [c] if needed and i not in held else []
    return [f"{c.role} {c.numbers.name or 'without a name'} is not in the file, or not used" for c in lost]


def _misplaced(constants: Sequence[Constant], places: Sequence[Sequence[int]], reference: Reference) -> list[str]:
    """Name tensors that the file uses behind one that the module uses later, or beside another one's."""
    own = [found[0] if len(found) == 1 else None for found in places]
    out, groups = [], dict[int, int]()
    for constant, place in zip(constants, own, strict=True):
        if place is None:
            continue
        theirs = reference.constants[place]
        before = 0
        for j in _bits(constant.before):
            known = own[j]
            before |= 0 if known is None else 1 << known
        late = before & reference.after[place]
        if late:
            other = reference.constants[next(_bits(late))].numbers.name
            out.append(f"{theirs.numbers.name} is used behind {other}, which the model uses later")
        elif groups.setdefault(constant.group, theirs.group) != theirs.group:
            out.append(f"{theirs.numbers.name} is used with another tensor than in the model")
    return out


def _strange(constants: Sequence[Constant], places: Sequence[Sequence[int]], reference: Reference) -> list[str]:
    """Name what the module computes with in advance, where a file lacks it or uses it for another part of the model.

    Such numbers and their results, such as rotations of positions, have no place of their own among the module's constants:
    what counts is which tensors the module uses behind them.
    """
    used = [found for constant, found in zip(constants, places, strict=True) if constant.used]
    held = {name for found in used for i in found for name in reference.constants[i].names}
    out = [f"{name} is not in the file, or not used" for name in reference.needed if name not in held]
    for constant, found in zip(constants, places, strict=True):
        if len(found) != 1 or not reference.constants[found[0]].used:
            continue
        theirs = reference.constants[found[0]]
        known = set[str]().union(*(reference.constants[j].names for j in _bits(theirs.before)))
        for j in _bits(constant.before):
            other = [reference.constants[i] for i in places[j]]
            free = other and not any(o.used or o.covers or not o.numbers.is_float for o in other)
            if free and not any(o.names <= known for o in other):
                out.append(f"{other[0].numbers.name} is used for {theirs.numbers.name}, in the model it is not")
    return out


def _uncovered(graphs: Sequence[Sequence[Constant]], reference: Reference, lengths: Sequence[int]) -> list[str]:
    """Name tables of which a file with listed lengths holds fewer rows than its longest input reads."""
    rows: dict[int, int] = {}
    for constants in graphs:
        for constant in constants:
            for i in reference.places(constant):
                if constant.role is Role.ARRAY and reference.constants[i].role is Role.TABLE:
                    held = constant.numbers.value.shape[0] if constant.numbers.value.ndim > 1 else 1
                    rows[i] = max(rows.get(i, 0), held)
    out = []
    for i, held in rows.items():
        table = reference.constants[i].numbers
        wanted = min(len(table.value), max(lengths, default=len(table.value)))
        if held < wanted:
            out.append(f"{table.name}: {held} rows are in the file, {wanted} are needed")
    return out


def _equal(numbers: Numbers, wanted: Numbers) -> bool:
    """Whether stored numbers are a tensor's, rounded as their scheme may round."""
    value = wanted.value
    if not wanted.is_float or not numbers.is_float:
        return bool(np.array_equal(numbers.value, value))
    if numbers.step is None and np.array_equal(numbers.value, value):
        return True
    places = np.unique(np.linspace(0, value.size - 1, min(SAMPLED, value.size)).astype(np.int64))
    spots = np.unravel_index(places, value.shape)
    some = Numbers(numbers.value[spots], halves=numbers.halves, offset=numbers.offset, size=numbers.magnitude[spots])
    if numbers.step is not None:
        some = replace(some, step=np.broadcast_to(numbers.step, value.shape)[spots])
    if numbers.ends is not None:
        low, high = (np.broadcast_to(end, value.shape)[spots] for end in numbers.ends)
        some = replace(some, ends=(low, high))
    close = _near(some, Numbers(value[spots], size=wanted.magnitude[spots]))
    return bool(close.all() and _within(numbers, wanted).all())


def _within(numbers: Numbers, wanted: Numbers) -> NDArray[np.bool_]:
    """Where numbers are close enough to a tensor's."""
    return _near(numbers, wanted) & _fine(numbers, wanted.value)


def _near(numbers: Numbers, wanted: Numbers) -> NDArray[np.bool_]:
    """Where numbers differ from a tensor's by no more than rounding."""
    # what is compressed was rounded to fp16 before, and its zero point then
    halves = numbers.halves + (2 if numbers.halves and numbers.step is not None else 0)
    relative = ROUNDING + halves * HALF * (1 + 2 * HALF)
    bound = np.maximum(wanted.magnitude, numbers.magnitude) * np.float32(relative)
    if halves:
        bound += np.float32(LEAST_HALF)
    if numbers.step is not None:
        # a zero point is rounded too, so that the numbers at both ends may be another half step off
        bound += numbers.step * np.float32((1.0 if numbers.offset else 0.5) * 1.001)
    value = wanted.value if numbers.ends is None else np.clip(wanted.value, *numbers.ends)
    near: NDArray[np.bool_] = np.abs(numbers.value - value) <= bound
    return near


def _fine(numbers: Numbers, value: Floats) -> NDArray[np.bool_] | bool:
    """Where steps are no coarser than their bits allow over the range of the numbers that share one.

    What shares a step is told by its value: blocks with equal steps are taken together, however the numbers were moved.
    """
    if numbers.step is None or numbers.bits > 16:
        return True
    if numbers.ends is not None:  # a palette: no worse in all than equal steps could be
        most = np.ptp(value) / (2**numbers.bits - 1) / 2
        return bool(np.sqrt(np.mean((numbers.value - value) ** 2)) <= most * 1.01)
    if numbers.shared:
        ratio = float((np.abs(value) / np.broadcast_to(numbers.step, value.shape)).max())
        return bool(ratio * 1.01 >= 2 ** (numbers.bits - 1) - 1)
    steps, groups = np.unique(numbers.step, return_inverse=True)
    groups = np.broadcast_to(groups.reshape(numbers.step.shape), value.shape)
    largest = np.zeros(steps.shape, np.float32)
    np.maximum.at(largest, groups.reshape(-1), np.abs(value).reshape(-1))
    fine = (steps <= largest / (2 ** (numbers.bits - 1) - 1) * 1.01) | (largest == 0)
    return np.asarray(fine[groups], bool)


def _bits(mask: int) -> Any:
    """Places of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
