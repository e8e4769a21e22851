"""The gate `stored`: whether the numbers in a file are those of the model, each in its place.

Parity compares the answers of a file with those of torch on golden rows, whose drawn ids reach every position and
every row of the vocabulary. Faults that stay below its bounds, or that no golden row shows, are left to this gate:

- In a quantized file the bound is several per cent of the spread of the logits. One wrong row of a table, a lost
  bias, a scale of another channel or two matrices of one shape in each other's place can hide in it.
  `compare_constants` compares every constant with the model's, up to the rounding of its own scheme.
- Golden rows that were recorded from the broken file agree with it.
- Each length of a TFLite file has its own graph. Rotations of positions, windows and rows of position tables of a
  length that no golden row has are compared as well.
- A range of activations that was measured on other texts clips only inputs larger than those of the golden rows
  (`_compare_ranges`). Ranges of what products with stored weights read and give are compared, as torch measures them.
  Those of other operators are not, such as the parts of a norm in files that compute in integers as a whole: a wrong one
  shows in parity alone.
- A weight in 8 bits where 4 were chosen, and one in 4 where 8 were chosen, have similar answers and, if they changed
  places, the same size (`_compare_schemes`).

`PreparedModels` prepares the torch model as the exporter does and traces its constants; the format's reader lists those of
the file, and `check_stored_numbers` compares them, whatever their names: exporters rename tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.families.weight_records import ProductRanges, Range, WeightRole
from pocketbert.core.models.checkpoints import load_model, missing_libraries
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, read_pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.formats.constants import (
    Constant,
    ConstantRole,
    StoredRange,
    StoredRanges,
)
from pocketbert.pipeline.gates.reference_constants import ReferenceConstants, list_bits
from pocketbert.pipeline.reference import project_text_batches
from pocketbert.pipeline.results import Gate, Subject, skipped_gate_without_reader
from pocketbert.quantize.calibration import ROOM

if TYPE_CHECKING:
    import torch

    from pocketbert.quantize.table import SchemeRow

UNDIVIDED_NOTE = "outlier channels are as in the model"
"""Note on files that were exported before outlier channels were divided."""
_NAME = "stored"
_LISTED_PROBLEMS = 3
"""Problems that the gate lists in full."""


def check_stored_numbers(subject: Subject, models: PreparedModels) -> Gate:
    """Check that a file holds the torch model's numbers: each constant equals a tensor of its role, none is missing.

    Quantized numbers may differ by the rounding of their scheme, channel by channel. The activation ranges that a static
    file holds for products with stored weights must be those that torch measured on the calibration texts, and each
    weight with a scheme of its own must have the bits of that scheme.

    Args:
        subject: The opened file.
        models: The torch model's constants, prepared for each format.

    Returns:
        The gate; skipped if nothing can read the file's constants here, or if there is no torch model.
    """
    from pocketbert.quantize import find_row

    def skipped(reason: str) -> Gate:
        return Gate(name=_NAME, file=subject.name, passed=True, skipped=True, detail=f"not checked: {reason}.")

    unread, place = skipped_gate_without_reader(subject, _NAME), format_place(subject.format)
    if unread is not None:
        return unread
    if models.absent is not None:
        return skipped(models.absent)
    layout, lengths = place.layout_of(subject.path), subject.predictor.lengths
    reference = models.reference(subject.format, layout)  # first: loading a model has its weights in memory twice
    try:
        graphs = place.constants(subject.path)
    except MissingBackendError as error:
        return skipped(str(error).rstrip("."))
    if graphs is None:
        return skipped(f"nothing reads the constants of {place.info.title} files")
    if subject.scheme is Scheme.FP32:  # only exact values will do
        graphs = [
            [replace(c, tensor=replace(c.tensor, step=None, fp16_factors=0)) for c in constants] for constants in graphs
        ]
    comparison, note = compare_constants(graphs, reference, lengths), ""
    row = find_row(subject.format, subject.scheme, subject.runtime)
    range_problems, range_count = _compare_ranges(comparison.products, subject.ranges, whole=row.weights.whole)
    scheme_problems = _compare_schemes(comparison.weights, subject.weights, row)
    if comparison.problems and (older := models.undivided(subject.format, layout)) is not None:
        with_older = compare_constants(graphs, older, lengths)
        if not with_older.problems:
            comparison, note = with_older, f"; {UNDIVIDED_NOTE}"
    problems = [*comparison.problems, *range_problems, *scheme_problems]
    note += f"; {range_count} ranges of activations are those of the calibration texts" if range_count else ""
    detail = f"all {comparison.count} tensors of the model are in the file, value by value{note}."
    if problems:
        more = len(problems) - _LISTED_PROBLEMS
        detail = f"{'; '.join(problems[:_LISTED_PROBLEMS])}{f' ({more} more)' if more > 0 else ''}."
    value = float(len(problems))
    return Gate(name=_NAME, file=subject.name, passed=not problems, value=value, bound=0.0, detail=detail)


# --- the model --------------------------------------------------------------------------------------------------------


class PreparedModels:
    """Caches the constants of one model folder's torch module, prepared for a format and layout when first needed.

    Args:
        folder: A folder that may have ``model.safetensors``.
        task: The task of the model.
        length: Longest input in tokens.
        model: The folder's torch model, if it is loaded already. It is not changed.
    """

    def __init__(self, folder: Path, task: Task, length: int, model: torch.nn.Module | None = None) -> None:
        self.folder, self.task, self.length, self._loaded = folder, task, length, model
        self._references: dict[tuple[Format, Layout, bool], ReferenceConstants] = {}
        self._with_outliers: set[tuple[Format, Layout]] = set()

    @property
    def absent(self) -> str | None:
        """Why there is no model to compare with; None if there is one."""
        if missing_packages := missing_libraries():
            return f"{missing_packages[0]} is not installed here"
        missing = [name for name in ("model.safetensors", "config.json") if not (self.folder / name).is_file()]
        return f"the folder has no {missing[0]}" if missing else None

    def reference(self, format: Format, layout: Layout) -> ReferenceConstants:
        """Return the constants (weights, buffers) of the torch module as prepared for a format and layout."""
        return self._reference(format, layout, divided=True)

    def undivided(self, format: Format, layout: Layout) -> ReferenceConstants | None:
        """Return the constants if no outlier channel is divided, as in files of earlier versions.

        The result is None if the module has no outlier channels, so that `reference` returns the same.
        """
        self.reference(format, layout)
        return self._reference(format, layout, divided=False) if (format, layout) in self._with_outliers else None

    def _reference(self, format: Format, layout: Layout, divided: bool) -> ReferenceConstants:
        """Prepare the torch model for export and return its constants, which are kept for the next call.

        Args:
            format: Format of the file.
            layout: Memory layout of activations in the file.
            divided: Whether outlier channels are divided, as the exporter does today.
        """
        from pocketbert.export.prepare import (
            is_rescaled_to_fp16,
            list_divided_outliers,
            prepare_with_shared_weights,
        )
        from pocketbert.pipeline.gates.torch_constants import ModuleConstants

        key = format, layout, divided
        if key not in self._references:
            # files of one format follow each other: the module of another format is not needed again
            self._references = {k: known for k, known in self._references.items() if k[:2] == key[:2]}
            pooling = read_pooling(self.folder) or DEFAULT_POOLING
            # texts on which large numbers inside a model are measured; the exporter measured those of the data, too
            family, samples = (
                self._opened.family,
                project_text_batches(self.task, TextTokenizer(self.folder, self.length)),
            )
            sentences = samples if divided else ()
            module = prepare_with_shared_weights(
                self._model, family, self.task, format, layout, pooling, samples, sentences
            )
            if list_divided_outliers(module):
                self._with_outliers.add((format, layout))
            traced = ModuleConstants(module, family.inputs, family.extra)
            multiples = is_rescaled_to_fp16(self._model, family, self.task, samples)
            self._references[key] = ReferenceConstants(traced.constants, multiples, traced.of_length, traced.needed)
        return self._references[key]

    @cached_property
    def _opened(self) -> ModelFolder:
        return open_model_folder(str(self.folder))

    @cached_property
    def _model(self) -> Any:
        return load_model(self._opened, self.task) if self._loaded is None else self._loaded


# --- comparing constants ----------------------------------------------------------------------------------------------

_SHOWN = 60
"""Last characters of a name that are shown: TFLite's are as long as the path of their module."""


@dataclass(frozen=True)
class _Comparison:
    """The result of comparing the constants of a file with those of the torch module.

    Attributes:
        count: Number of the model's tensors.
        problems: What differs, as sentences without a full stop.
        products: The ranges that the file holds for products, by the paths of their weights in the module; empty if the
            exporter may have multiplied constants.
        weights: Matrices and tables of the file that match exactly one tensor of the module, by the tensor's path
            there.
    """

    count: int
    problems: list[str]
    products: list[tuple[str, StoredRanges]] = field(default_factory=list)
    weights: list[tuple[str, Constant]] = field(default_factory=list)


def compare_constants(
    graphs: Sequence[Sequence[Constant]], reference: ReferenceConstants, lengths: Sequence[int]
) -> _Comparison:
    """Compare the constants of all graphs of a file with the module's; return problems, matched weights and ranges.

    Args:
        graphs: Constants of each graph of the file; a TFLite file has one graph per length.
        reference: Constants of the module.
        lengths: Input length of each graph that takes one length; empty if the graphs take any.
    """
    problems: dict[str, None] = {}  # the same in several graphs count once
    weights = list[tuple[str, Constant]]()
    reference.add_lengths(lengths)
    for constants in graphs:
        matches = [reference.matches(c) for c in constants]
        for constant, found in zip(constants, matches, strict=True):
            if not found:
                shape = "x".join(map(str, constant.tensor.value.shape))
                title = f"{constant.role} '{constant.tensor.name[-_SHOWN:]}' [{shape}]"
                problems[f"{title}: {reference.describe_mismatch(constant)}"] = None
            names = {reference.constants[i].tensor.name for i in found}
            if constant.role in (ConstantRole.MATRIX, ConstantRole.TABLE) and len(names) == 1:
                weights.append((names.pop(), constant))
        for check in (_find_missing, _find_misplaced, _find_misused):
            problems.update(dict.fromkeys(check(constants, matches, reference)))
    problems.update(dict.fromkeys(_find_short_tables(graphs, reference, lengths)))
    reference.forget_file()
    products = [(name, c.ranges) for name, c in weights if c.role is ConstantRole.MATRIX]
    return _Comparison(
        count=sum(c.used and not c.covers for c in reference.constants),
        problems=list(problems),
        products=[] if reference.multiples else products,  # multiples were measured on texts that are not known here
        weights=weights,
    )


def _find_missing(
    constants: Sequence[Constant], matches: Sequence[Sequence[int]], reference: ReferenceConstants
) -> list[str]:
    """Return a sentence for each float tensor that the module uses, and that the file lacks or does not use.

    A tensor is also there if the file stores its sums with other tensors.
    """
    held = {i for constant, found in zip(constants, matches, strict=True) if constant.used for i in found}
    problems = []
    for i, constant in enumerate(reference.constants):
        if i in held or not constant.used or not constant.tensor.is_float or constant.covers:
            continue
        sums = [j for j, other in enumerate(reference.constants) if other.used and other.covers >> i & 1]
        if not (sums and held.issuperset(sums)):
            name = constant.tensor.name or "without a name"
            problems.append(f"{constant.role} {name} is not in the file, or not used")
    return problems


def _find_misplaced(
    constants: Sequence[Constant], matches: Sequence[Sequence[int]], reference: ReferenceConstants
) -> list[str]:
    """Return a sentence for each tensor that the file uses in another place than the module.

    The file may use it after tensors that come later in the module, or in one operator with other tensors. Only constants
    of the file that equal a single tensor of the module are judged.
    """
    places = [found[0] if len(found) == 1 else None for found in matches]
    problems, groups = [], dict[int, int]()
    for constant, place in zip(constants, places, strict=True):
        if place is None:
            continue
        expected = reference.constants[place]
        upstream = sum(1 << p for p in {places[j] for j in list_bits(constant.upstream)} if p is not None)
        if too_early := upstream & reference.downstream[place]:
            other = reference.constants[next(list_bits(too_early))].tensor.name
            problems.append(f"{expected.tensor.name} is used behind {other}, which the model uses later")
        elif groups.setdefault(constant.group, expected.group) != expected.group:
            problems.append(f"{expected.tensor.name} is used with another tensor than in the model")
    return problems


def _find_misused(
    constants: Sequence[Constant], matches: Sequence[Sequence[int]], reference: ReferenceConstants
) -> list[str]:
    """Return a sentence for each buffer (such as rotary factors) that the file lacks, or uses for a weight for which the module does not.

    Exporters may store what was computed from a buffer in its place. So a buffer is not looked for at one place; only which
    weights come after it is compared with the module. A buffer that the file holds and does not use counts as lacking.
    """
    used = [found for constant, found in zip(constants, matches, strict=True) if constant.used]
    held = {name for found in used for i in found for name in reference.constants[i].names}
    problems = [f"{name} is not in the file, or not used" for name in reference.needed if name not in held]
    for constant, found in zip(constants, matches, strict=True):
        if len(found) != 1 or not reference.constants[found[0]].used:
            continue
        expected = reference.constants[found[0]]
        known = set[str]().union(*(reference.constants[j].names for j in list_bits(expected.upstream)))
        for j in list_bits(constant.upstream):
            others = [reference.constants[i] for i in matches[j]]
            has_no_place = others and not any(o.used or o.covers or not o.tensor.is_float for o in others)
            if has_no_place and not any(o.names <= known for o in others):
                problems.append(f"{others[0].tensor.name} is used for {expected.tensor.name}, in the model it is not")
    return problems


def _find_short_tables(
    graphs: Sequence[Sequence[Constant]], reference: ReferenceConstants, lengths: Sequence[int]
) -> list[str]:
    """Return a sentence for each embedding table that was cut to fewer rows than the file's longest input needs."""
    rows: dict[int, int] = {}
    for constant in (c for constants in graphs for c in constants if c.role is ConstantRole.ARRAY):
        for i in reference.matches(constant):
            if reference.constants[i].role is ConstantRole.TABLE:
                held = constant.tensor.value.shape[0] if constant.tensor.value.ndim > 1 else 1
                rows[i] = max(rows.get(i, 0), held)
    problems = []
    for i, held in rows.items():
        table = reference.constants[i].tensor
        needed = min(len(table.value), max(lengths, default=len(table.value)))
        if held < needed:
            problems.append(f"{table.name}: {held} rows are in the file, {needed} are needed")
    return problems


# --- comparing ranges and schemes -------------------------------------------------------------------------------------

_RANGE_ERROR = 0.05
"""Share of a range by which an end of it may be off. Rounding of the zero point moves ends by half a step, 0.002 of a
range of 8 bits, and fp16 by less; a wrong scale moves the width of the range by its factor."""
_LEAST_RANGE_ERROR = 255 * 2.0**-25
"""Error that is allowed in any case: Core ML stores scales in fp16, in steps of 2**-24 at least, 255 in a range."""
_FIXED_RANGES = ((0.0, 1.0), (-1.0, 1.0))
"""Ranges that compilers for NPUs prescribe for the results of softmax, sigmoid and tanh."""


def _compare_ranges(
    products: Sequence[tuple[str, StoredRanges]], measured: Mapping[str, Sequence[ProductRanges]], whole: bool = False
) -> tuple[list[str], int]:
    """Compare the activation ranges in a static file with those that torch measured on the calibration texts.

    Matrix products without a range in the file are not compared, since another gate checks whether there must be one; nor
    are ranges that were taken from a stored table. A range of 16-bit integers may be wider, since quantizers add room.

    Args:
        products: The ranges in the file, by the paths of the product's weights in the torch module.
        measured: The measured ranges by the same paths. If a path has several, any of them is right. Empty if none were
            recorded.
        whole: Whether the whole file computes in integers, so that results of softmax and tanh have fixed ranges.

    Returns:
        Sentences without a full stop, one for each wrong range, and the number of ranges that were compared.
    """
    problems, count = dict[str, None](), 0
    for name, ranges in products:
        own = measured.get(name, ())
        compared = (
            ("is multiplied with numbers", ranges.inputs, [r.inputs for r in own]),
            ("gives results", ranges.outputs, [r.outputs for r in own]),
            ("gives results without offset", ranges.before_offset, [r.before_offset for r in own]),
        )
        for what, stored, known in compared:
            expected = [r for r in known if r]
            if stored is None or not expected or stored.of_table:
                continue
            count += 1
            right = [*expected, *(_fixed_ranges(expected) if whole else ())]
            right += [(ROOM * low, ROOM * high) for low, high in expected if stored.bits > 8]
            if not any(_is_same_range(stored, r) for r in right):
                low, high = expected[0]
                problem = (
                    f"{name} {what} from {stored.low:.4g} to {stored.high:.4g}, which were from {low:.4g} to {high:.4g}"
                )
                problems[f"{problem} on the calibration texts"] = None
    return list(problems), count


def _fixed_ranges(measured: Sequence[Range]) -> list[Range]:
    """Return the ranges that NPU compilers prescribe for softmax, sigmoid and tanh, if a measured range lies inside.

    A measured range may reach a little further, because learned ranges reach further than the results of softmax and
    tanh.
    """

    def is_around(fixed: Range) -> bool:
        room = 0.25 * (fixed[1] - fixed[0])
        return any(fixed[0] - room <= low and high <= fixed[1] + room for low, high in measured)

    return [fixed for fixed in _FIXED_RANGES if is_around(fixed)]


def _is_same_range(stored: StoredRange, measured: Range) -> bool:
    """Return whether a stored activation range equals a measured one within 5 % of its width.

    If the stored range is symmetric around 0, the measured one is made symmetric first.
    """
    low, high = measured
    if stored.low == -stored.high:
        low, high = -max(-low, high), max(-low, high)
    allowed = _RANGE_ERROR * (high - low) + _LEAST_RANGE_ERROR
    return abs(stored.low - low) <= allowed and abs(stored.high - high) <= allowed


def _compare_schemes(
    stored: Sequence[tuple[str, Constant]], weights: Sequence[WeightRole], row: SchemeRow
) -> list[str]:
    """Return a sentence for each weight that is stored or multiplied in another way than the scheme chosen for it says.

    The weight may have other bits, or a static product although its scheme makes it dynamic, or the reverse. Another
    gate only counts the weights of each size and type, since quantizers rename them. Here weights are identified by
    their numbers, so that two weights which have changed places are found.

    Args:
        stored: Matrices and tables of a file, by the paths of the tensors in the torch module.
        weights: The scheme chosen for each weight; empty if all have that of the file, and nothing is compared.
        row: What the file's scheme stores and computes.
    """
    from pocketbert.quantize.weights import Use

    chosen, problems = {w.name: w for w in weights}, dict[str, None]()
    largest_table = max((c.tensor.value.size for _, c in stored if c.role is ConstantRole.TABLE), default=0)
    for name, constant in stored:
        weight, tensor = chosen.get(name), constant.tensor
        if weight is None or weight.scheme is None or tensor.step is None:
            continue  # of floats the types gate compares every number
        use = Use.TABLE if constant.role is ConstantRole.TABLE else Use.MATMUL
        expected = row.expected(weight.scheme).of(use, tensor.value.size >= largest_table)
        bits = re.search(r"\d+$", expected.dtype)
        if bits is not None and int(bits[0]) != tensor.bits:
            problems[f"{name} is stored in {tensor.bits} bits, and {weight.scheme} was chosen for it"] = None
        is_static = constant.ranges.inputs is not None
        if row.seconds and use is Use.MATMUL and is_static is not (expected.bits is not None):
            has = "a measured range" if is_static else "no measured range"
            problems[f"{name} is multiplied with numbers that have {has}, and {weight.scheme} was chosen for it"] = None
    return list(problems)
