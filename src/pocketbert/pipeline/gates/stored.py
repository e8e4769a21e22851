"""Compares the constants of a file with those of the module that it was made of, by value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families.weight_records import ProductRanges, Range, WeightRole
from pocketbert.core.models.checkpoints import load_model, missing_for_weights
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, pooling_of
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.pipeline.formats.base import place_of
from pocketbert.pipeline.formats.constants import Constant, Floats, Numbers, Role, StoredRange, StoredRanges
from pocketbert.pipeline.reference import sentence_batches
from pocketbert.pipeline.results import Gate, Subject, unread_gate
from pocketbert.quantize.calibration import ROOM

if TYPE_CHECKING:
    import torch

    from pocketbert.quantize.table import SchemeRow


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


# --- prepared ---
# The model of a folder, prepared for each format once: what its files have to hold.


WEIGHTS, CONFIG = "model.safetensors", "config.json"


class PreparedModels:
    """The prepared modules of one model folder; nothing is loaded before the first one is asked for.

    Args:
        folder: A folder that may have ``model.safetensors``.
        task: What the model does.
        length: Longest input in tokens.
        model: The folder's torch model, where it is loaded already; it is not changed.
    """

    def __init__(self, folder: Path, task: Task, length: int, model: torch.nn.Module | None = None) -> None:
        self.folder, self.task, self.length, self._loaded = folder, task, length, model
        self._made: dict[tuple[Format, Layout, bool], Reference] = {}
        self._divided: set[tuple[Format, Layout]] = set()

    @property
    def absent(self) -> str | None:
        """Why there is nothing to compare with; None where there is."""
        if lost := missing_for_weights():
            return f"{lost[0]} is not installed here"
        missing = [name for name in (WEIGHTS, CONFIG) if not (self.folder / name).is_file()]
        return f"the folder has no {missing[0]}" if missing else None

    def reference(self, format: Format, layout: Layout) -> Reference:
        """Return the constants of the module that files of a format and layout are exported from."""
        return self._reference(format, layout, divided=True)

    def undivided(self, format: Format, layout: Layout) -> Reference | None:
        """Return those of files with outlier channels as in the model; None where `reference` is the same.

        Such files were exported by versions of PocketBERT that did not divide them.
        """
        self.reference(format, layout)
        return self._reference(format, layout, divided=False) if (format, layout) in self._divided else None

    def _reference(self, format: Format, layout: Layout, divided: bool) -> Reference:
        from pocketbert.export.prepare import carries_multiples, outliers_of, prepare
        from pocketbert.pipeline.gates.torch_constants import Trace

        if (format, layout, divided) not in self._made:
            pooling = pooling_of(self.folder) or DEFAULT_POOLING
            family, samples = self._opened.family, self._samples
            sentences = samples if divided else ()
            module = prepare(self._model, family, self.task, format, layout, pooling, samples, sentences)
            if outliers_of(module):
                self._divided.add((format, layout))
            trace = Trace(module, family.inputs, family.extra)
            multiples = carries_multiples(self._model, family, self.task, samples)
            self._made[format, layout, divided] = Reference(trace.constants, multiples, trace.of_length, trace.needed)
        return self._made[format, layout, divided]

    @cached_property
    def _opened(self) -> ModelFolder:
        return open_model_folder(str(self.folder))

    @cached_property
    def _model(self) -> Any:
        return load_model(self._opened, self.task) if self._loaded is None else self._loaded

    @cached_property
    def _samples(self) -> list[dict[str, NDArray[np.int64]]]:
        """Texts that large numbers inside a model are measured on; the exporter measured those of the data, too."""
        tokenizer = TextTokenizer(self.folder, self.length)
        return sentence_batches(self.task, tokenizer)


# --- ranges ---
# Compares the ranges of activations in a static file with those that torch measured on the calibration texts.


CLOSE = 0.05
"""Of a range, how far an end of it may be off. Rounding of the zero point moves ends by half a step, 0.002 of a range of 8
bits, and fp16 by less; a wrong scale moves the width of the range by its factor."""
LEAST = 255 * 2.0**-25
"""What an end may be off in any case: Core ML stores scales in fp16, whose least step is 2**-24, and a range has 255 of them."""
_FIXED = ((0.0, 1.0), (-1.0, 1.0))
"""Ranges that compilers for NPUs prescribe behind softmax, sigmoid and tanh."""


def range_problems(
    products: Sequence[tuple[str, StoredRanges]], measured: Mapping[str, Sequence[ProductRanges]], whole: bool = False
) -> tuple[list[str], int]:
    """Compare ranges product by product.

    Products for which the file holds no range are not compared: the types gate tells whether there must be one. A range in 16
    bits may have the room that quantizers give it.

    Args:
        products: What the file holds, by the paths of weights in the torch module.
        measured: What torch measured, by the same paths; any of several is right. Empty where nothing was recorded.
        whole: Whether the file is in integers throughout; results of softmax and tanh have fixed ranges there.

    Returns:
        Sentences without a full stop, one for each wrong range, and how many ranges were compared.
    """
    problems, count = dict[str, None](), 0
    for name, stored in products:
        own = measured.get(name, ())
        inputs, outputs = [r.inputs for r in own if r.inputs], [r.outputs for r in own if r.outputs]
        pairs = ("is multiplied with numbers", stored.inputs, inputs), ("gives results", stored.outputs, outputs)
        for what, found, wanted in pairs:
            if found is None or not wanted or found.of_table:
                continue
            count += 1
            right = [*wanted, *(_FIXED if whole else ())]
            right += [(ROOM * low, ROOM * high) for low, high in wanted if found.bits > 8]
            if not any(_same(found, w) for w in right):
                problems[
                    f"{name} {what} from {found.low:.4g} to {found.high:.4g}, which were from {wanted[0][0]:.4g} to "
                    f"{wanted[0][1]:.4g} on the calibration texts"
                ] = None
    return list(problems), count


def _same(found: StoredRange, wanted: Range) -> bool:
    """Whether a stored range is a measured one; with zero in the middle it reaches as far on both sides."""
    if found.low == -found.high:
        most = max(-wanted[0], wanted[1])
        wanted = -most, most
    room = CLOSE * (wanted[1] - wanted[0]) + LEAST
    return all(abs(a - b) <= room for a, b in zip(found[:2], wanted, strict=True))


# --- schemes ---
# Compares the schemes of single weights with what was chosen for them: two weights of one size may have changed places.


def scheme_problems(stored: Sequence[tuple[str, Constant]], weights: Sequence[WeightRole], row: SchemeRow) -> list[str]:
    """Compare the bits of weights, and whether their products have ranges, with what their schemes want.

    The types gate counts the weights of each size and type, since quantizers rename them. Here a weight is known by its
    numbers, so that one of 8 bits in the place of one of 4 is seen, and a static product in the place of a dynamic one.

    Args:
        stored: Matrices and tables of a file, by the paths of the tensors in the torch module.
        weights: What was chosen for each weight; empty where all have the scheme of the file.
        row: The file's scheme.

    Returns:
        Sentences without a full stop.
    """
    from pocketbert.quantize.weights import Use

    chosen, problems = {w.name: w for w in weights}, dict[str, None]()
    largest = max((c.numbers.value.size for _, c in stored if c.role is Role.TABLE), default=0)
    for name, constant in stored:
        weight, numbers = chosen.get(name), constant.numbers
        if weight is None or weight.scheme is None or numbers.step is None:
            continue  # of floats the types gate compares every number
        use = Use.TABLE if constant.role is Role.TABLE else Use.MATMUL
        wanted = row.expected(weight.scheme).of(use, numbers.value.size >= largest)
        bits = re.search(r"\d+$", wanted.dtype)
        if bits is not None and int(bits[0]) != numbers.bits:
            problems[f"{name} is stored in {numbers.bits} bits, and {weight.scheme} was chosen for it"] = None
        static = constant.ranges.inputs is not None
        if row.seconds and use is Use.MATMUL and static is not (wanted.bits is not None):
            has = "a measured range" if static else "no measured range"
            problems[f"{name} is multiplied with numbers that have {has}, and {weight.scheme} was chosen for it"] = None
    return list(problems)


# --- gate ---
# The gate that compares the numbers in a file with those of the model, by value.


NAME = "stored"
UNDIVIDED = "outlier channels are as in the model"
"""What the gate says of files that were exported before outlier channels were divided."""
TOLD = 3
"""Problems that are told in full."""


def stored_gate(subject: Subject, models: PreparedModels) -> Gate:
    """Whether every constant of a file is a tensor of the model, in its place, and every tensor of the model is in the file.

    Names play no part. Compressed numbers may be off by what their scheme rounds, channel by channel. The ranges of a static
    file must be those that torch measured on the calibration texts, and each weight must have the bits of its scheme.

    Args:
        subject: The file.
        models: The model that it was made of.
    """
    from pocketbert.quantize import row_of

    unread, place = unread_gate(subject, NAME), place_of(subject.format)
    if unread is not None:
        return unread
    if models.absent is not None:
        return _skipped(subject, models.absent)
    try:
        graphs = place.constants(subject.path)
    except MissingBackendError as error:
        return _skipped(subject, str(error).rstrip("."))
    if graphs is None:
        return _skipped(subject, f"nothing reads the constants of {place.info.title} files")
    if subject.scheme is Scheme.FP32:
        graphs = as_floats(graphs)
    layout, lengths = place.layout_of(subject.path), subject.predictor.lengths
    found, note = compare(graphs, models.reference(subject.format, layout), lengths), ""
    row = row_of(subject.format, subject.scheme, subject.runtime)
    told, count = range_problems(found.products, subject.ranges, whole=row.weights.whole)
    told += scheme_problems(found.weights, subject.weights, row)
    if found.problems and (older := models.undivided(subject.format, layout)) is not None:
        as_before = compare(graphs, older, lengths)
        found, note = (found, note) if as_before.problems else (as_before, f"; {UNDIVIDED}")
    problems = [*found.problems, *told]
    more = len(problems) - TOLD
    note += f"; {count} ranges of activations are those of the calibration texts" if count else ""
    return Gate(
        name=NAME,
        file=subject.name,
        passed=not problems,
        value=float(len(problems)),
        bound=0.0,
        detail=f"{'; '.join(problems[:TOLD])}{f' ({more} more)' if more > 0 else ''}."
        if problems
        else f"all {found.count} tensors of the model are in the file, value by value{note}.",
    )


def _skipped(subject: Subject, why: str) -> Gate:
    return Gate(name=NAME, file=subject.name, passed=True, skipped=True, detail=f"not checked: {why}.")
