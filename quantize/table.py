"""The table of schemes: what each format can be compressed to, for which runtime, and how weights must then be stored.

A `SchemeRow` is one entry; the modules of the formats (`onnx`, `tflite`, `coreml`) add theirs with `register_scheme`,
and the functions that read their files with `register_reader`; `pocketbert.quantize.files` imports them all. A `Plan`
holds the settings of one file to write. `find_row_for_plan` finds the row that writes a plan's file, `find_row` the row
of any file, and `explain_refused_role` explains why a role of the model (a `Role`: attention, feed-forward, ...) cannot
have a scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import LearnedRanges, WeightRole
from pocketbert.core.types import Calibration, Format, Role, Runtime, Scheme
from pocketbert.quantize.calibration import STEPS
from pocketbert.quantize.rounding import Simulation
from pocketbert.quantize.weights import ExpectedWeights, WeightTypes, find_type_problems

Rows = Iterable[Mapping[str, NDArray[np.int64]]]
"""Calibration rows: inputs by name, each [1, L] without padding; names that a graph does not take are ignored."""
WEIGHTED_ROLES = frozenset(r for r in Role if r.weighs)
"""Roles whose operators read stored weights."""


@dataclass(frozen=True)
class Plan:
    """Settings of one quantized file to write.

    Attributes:
        format: Format of the source and of the written file.
        scheme: How weights and activations of the new file are compressed.
        runtime: The runtime for which the file is written; None for a file that any client of the format may open.
        rows: Function that returns the calibration rows on which static schemes measure ranges; called once, when they
            are needed. None for all other schemes.
        calibration: How static schemes choose ranges from these rows.
        learned: Ranges that the model was trained with; static schemes store them in place of measured ones.
        pads_left: Whether shorter rows are padded in front, as XLNet's are; padding is excluded from all ranges.
        weights: The scheme of each weight, if some stay as exported or have a second scheme; empty if all have
            `scheme`.
    """

    format: Format
    scheme: Scheme
    runtime: Runtime | None = None
    rows: Callable[[], Rows] | None = None
    calibration: Calibration = Calibration.MINMAX
    learned: LearnedRanges | None = None
    pads_left: bool = False
    weights: Sequence[WeightRole] = ()

    @property
    def padding_side(self) -> str:
        """The side on which shorter rows are padded, as `pocketbert.runtime.tflite.Padding` takes it."""
        return "left" if self.pads_left else "right"

    @property
    def steps(self) -> int:
        """Number of steps of a range, for `Calibration.MSE`.

        In a8w8 it is 255, even if a file for an NPU stores some activations in 16 bits.
        """
        return 65535 if self.scheme is Scheme.A16W8 else STEPS

    @property
    def left(self) -> frozenset[str]:
        """Digests of the weights that stay as exported."""
        return frozenset(w.digest for w in self.weights if w.scheme is None)

    @property
    def seconds(self) -> dict[Scheme, frozenset[str]]:
        """Digests of the weights that have another scheme than the file's, by that scheme."""
        others = dict.fromkeys(w.scheme for w in self.weights if w.scheme not in (None, self.scheme))
        return {s: frozenset(w.digest for w in self.weights if w.scheme is s) for s in others if s is not None}

    @property
    def title(self) -> str:
        """Name of the file in error messages, e.g. ``onnx a8w8 for openvino``."""
        return f"{self.format} {self.scheme}{f' for {self.runtime}' if self.runtime else ''}"


@dataclass(frozen=True)
class SecondScheme:
    """A second scheme that some weights of a file can have, chosen by their role (query, ffn_down, ...).

    Attributes:
        roles: Roles whose weights can have the scheme.
        weights: The types in which these weights must be stored.
        simulation: How torch rounds these weights and their inputs.
    """

    roles: frozenset[Role]
    weights: ExpectedWeights
    simulation: Simulation


@dataclass(frozen=True)
class SchemeRow:
    """One row of the table of schemes: a format, a scheme, and one runtime or any.

    Attributes:
        format: The format.
        scheme: The scheme.
        weights: The types in which weights must be stored.
        write: Function that writes the quantized file, given source, destination and plan. None for a scheme that an
            exporter writes.
        runtime: The runtime for which the file is written; None for any.
        simulation: How torch imitates a correct file, with whose outputs those of the file are compared. None if the
            bound on the file's error does not depend on the model.
        computes: Roles whose operators have the scheme; all others stay float.
        selective: Whether `write` leaves the weights of `Plan.left` float.
        seconds: Further schemes that `write` gives to the weights of `Plan.seconds`.
        usual: Roles that have a second scheme unless a recipe chooses another.
    """

    format: Format
    scheme: Scheme
    weights: ExpectedWeights
    write: Callable[[Path, Path, Plan], None] | None = None
    runtime: Runtime | None = None
    simulation: Simulation | None = None
    computes: frozenset[Role] = WEIGHTED_ROLES
    selective: bool = False
    seconds: Mapping[Scheme, SecondScheme] = field(default_factory=dict)
    usual: Mapping[Role, Scheme] = field(default_factory=dict)

    @property
    def calibrated(self) -> bool:
        """Whether writing such a file needs calibration rows."""
        return self.write is not None and self.scheme.static

    @property
    def title(self) -> str:
        """Name of the row in error messages, e.g. ``onnx a8w8 for openvino``."""
        return Plan(self.format, self.scheme, self.runtime).title

    def scheme_of(self, role: Role) -> Scheme:
        """Return the scheme of a role's weights if the recipe chooses none. A role is a weight's place, e.g. query."""
        return self.usual.get(role, self.scheme)

    def expected(self, scheme: Scheme | None) -> ExpectedWeights:
        """Return the types in which weights of the file's scheme, or of a second scheme, must be stored."""
        second = self.seconds.get(scheme) if scheme is not None else None
        return self.weights if second is None else second.weights

    def problems(self, types: WeightTypes, name: str, left: frozenset[str] = frozenset()) -> list[str]:
        """Return what is wrong with the weight types of a file for this row: sentences, empty if nothing is.

        Args:
            types: The weight types read from the file.
            name: Name of the file in the messages.
            left: Names of weights in the file that stay as they were exported.
        """
        return find_type_problems(types, name, self.weights, left)


@dataclass(frozen=True)
class Reader:
    """The functions that read what is stored in files of a format.

    Attributes:
        weight_types: Function that returns the types of all weights in a file.
        stored_numbers: Function that yields name and value of every array stored in a file.
    """

    weight_types: Callable[[Path], WeightTypes]
    stored_numbers: Callable[[Path], Iterator[tuple[str, NDArray[np.generic]]]]


_ROWS: dict[tuple[Format, Scheme, Runtime | None], SchemeRow] = {}
_READERS: dict[Format, Reader] = {}


def register_scheme(row: SchemeRow) -> None:
    """Add a row to the table of schemes. It replaces one with the same format, scheme and runtime."""
    _ROWS[row.format, row.scheme, row.runtime] = row


def register_reader(format: Format, reader: Reader) -> None:
    """Register the functions that read what is stored in files of a format."""
    _READERS[format] = reader


def list_rows() -> tuple[SchemeRow, ...]:
    """Return all rows of the table of schemes, in the order of registration."""
    return tuple(_ROWS.values())


def find_reader(format: Format) -> Reader:
    """Return the functions that read files of a format.

    Raises:
        InputError: If no reader is registered for the format.
    """
    if format not in _READERS:
        raise InputError(Problem(str(format), f"has no reader; formats with one: {', '.join(_READERS)}."))
    return _READERS[format]


def find_row(format: Format, scheme: Scheme, runtime: Runtime | None = None) -> SchemeRow:
    """Return the table row of a format, scheme and runtime, whether an exporter or a quantizer writes its file.

    Raises:
        InputError: If there is no such row; the message lists the rows of the format.
    """
    row = _ROWS.get((format, scheme, runtime))
    if row is None:
        raise InputError(_missing_row(Plan(format, scheme, runtime), [r for r in list_rows() if r.format is format]))
    return row


def find_row_for_plan(plan: Plan) -> SchemeRow:
    """Return the row of the scheme table that can write a plan's file, after checking the plan's calibration rows.

    Raises:
        InputError: If there is no such row, if calibration rows are needed and missing, or if rows are given that the
            scheme does not use.
    """
    row = _ROWS.get((plan.format, plan.scheme, plan.runtime))
    if row is None or row.write is None:
        raise InputError(_missing_row(plan, [r for r in list_rows() if r.format is plan.format and r.write]))
    if row.calibrated and plan.rows is None:
        raise InputError(
            Problem(
                plan.title,
                "measures ranges on calibration rows, and the plan has none.",
                "Give Plan(rows=...) a function that returns rows without padding, better 100 than 10.",
            )
        )
    if plan.rows is not None and not row.calibrated:
        raise InputError(Problem(plan.title, "reads no calibration rows.", "Leave rows out of the plan."))
    return row


def _missing_row(plan: Plan, rows: list[SchemeRow]) -> Problem:
    """Return the error for a plan that no row of the table matches. It lists the rows to choose from."""
    order = list(Scheme)
    rows = sorted(rows, key=lambda r: (order.index(r.scheme), r.runtime or ""))
    allowed = ", ".join(r.title for r in rows) or "nothing"
    return Problem(plan.title, f"does not exist in this version; {plan.format} has: {allowed}.", "Choose one of these.")


def explain_refused_role(row: SchemeRow, role: Role, scheme: Scheme | None) -> str | None:
    """Return the reason why weights of a role (place in a layer, e.g. query) cannot have a scheme; None if they can.

    Args:
        row: Table row of the file's format, scheme and runtime.
        role: The role: what the weights or operators do in the model.
        scheme: The scheme that the weights should have; None to leave them as exported.

    Returns:
        A clause without a full stop; None if the role can have the scheme.
    """
    computed = role in row.computes
    if scheme is None:
        return None if not computed or row.selective else f"{role}: the quantizer of {row.title} leaves no role out"
    if not computed:
        return f"{role} stays float in every file of {row.title}"
    second = row.seconds.get(scheme)
    if scheme is row.scheme or (second is not None and role in second.roles):
        return None
    if second is not None:
        return f"{role}: a file of {row.title} has {scheme} for {', '.join(r for r in Role if r in second.roles)} only"
    if row.seconds:
        return f"{role}: a file of {row.title} has {' or '.join(row.seconds)} as a second scheme, not {scheme}"
    floats = ", only weights that are left float" if row.selective else ""
    return f"{role}: a file of {row.title} has no second scheme{floats}"


def repeat_tokens(rows: Rows, length: int) -> Rows:
    """Yield the calibration rows with their tokens repeated up to a length. Longer rows are not changed.

    This is used if a whole graph with one length is quantized: padding could not be excluded from the ranges there,
    because it is unknown which axes hold tokens.

    Args:
        rows: Calibration rows.
        length: Number of tokens of the graph's inputs.
    """
    for row in rows:
        fits = row["input_ids"].shape[1] <= length
        yield {name: np.resize(value, (1, length)) if fits else value for name, value in row.items()}
