"""The table of schemes: what each format can be compressed to, for which runtime, and what its weights must then be.

The modules of the back ends register their rows and their readers here; `pocketbert.quantize.door` imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.weights import ExpectedWeights, WeightTypes, type_problems

WEIGHTED = frozenset(r for r in Role if r.weighs)
"""Roles whose operators read stored weights."""
Key = tuple[Format, Scheme, Runtime | None]


@dataclass(frozen=True)
class Second:
    """A second scheme that single weights of a file can have.

    Attributes:
        roles: Roles whose weights can have it.
        weights: What they must be stored as.
        simulation: Rounds them in torch.
    """

    roles: frozenset[Role]
    weights: ExpectedWeights
    simulation: Simulation


@dataclass(frozen=True)
class SchemeRow:
    """One scheme of a format, for all runtimes or for one.

    Attributes:
        format: The format.
        scheme: The scheme.
        weights: What its weights must be stored as.
        write: Writes the smaller file: source, destination, plan. None for what an exporter writes.
        runtime: The runtime it is written for; None for any.
        simulation: Computes in torch what a right file answers. None where the bound on its answers depends on no model.
        computes: Roles whose operators have the scheme; the others stay float.
        selective: Whether `write` leaves the weights float that the plan names, see `Plan.left`.
        seconds: Further schemes that `write` gives to the weights that the plan names, see `Plan.seconds`.
        usual: Roles that have a second scheme where a recipe chooses none for them.
    """

    format: Format
    scheme: Scheme
    weights: ExpectedWeights
    write: Callable[[Path, Path, Plan], None] | None = None
    runtime: Runtime | None = None
    simulation: Simulation | None = None
    computes: frozenset[Role] = WEIGHTED
    selective: bool = False
    seconds: Mapping[Scheme, Second] = field(default_factory=dict)
    usual: Mapping[Role, Scheme] = field(default_factory=dict)

    @property
    def calibrated(self) -> bool:
        """Whether a plan must bring rows that ranges are measured on."""
        return self.write is not None and self.scheme.static

    @property
    def title(self) -> str:
        """What errors call it."""
        return Plan(self.format, self.scheme, self.runtime).title

    def scheme_of(self, role: Role) -> Scheme:
        """Return the scheme of a role's weights where a recipe chooses none."""
        return self.usual.get(role, self.scheme)

    def expected(self, scheme: Scheme | None) -> ExpectedWeights:
        """Return what weights with the file's scheme, or with a second one, must be stored as."""
        second = self.seconds.get(scheme) if scheme is not None else None
        return self.weights if second is None else second.weights

    def problems(self, types: WeightTypes, name: str, left: frozenset[str] = frozenset()) -> list[str]:
        """List what is wrong with the weight types of a file that claims to be of this row.

        Args:
            types: What was found in it.
            name: What to call it.
            left: Names of weights in it that stay as they were exported.
        """
        return type_problems(types, name, self.weights, left)


@dataclass(frozen=True)
class Reader:
    """The functions that read what is stored in files of a format.

    Attributes:
        weight_types: The types of all weights in a file.
        stored_numbers: Name and value of everything stored in a file.
    """

    weight_types: Callable[[Path], WeightTypes]
    stored_numbers: Callable[[Path], Iterator[tuple[str, NDArray[np.generic]]]]


_ROWS: dict[Key, SchemeRow] = {}
_READERS: dict[Format, Reader] = {}


def register_scheme(row: SchemeRow) -> None:
    """Add a row to the table; a row with the same format, scheme and runtime is replaced."""
    _ROWS[row.format, row.scheme, row.runtime] = row


def register_reader(format: Format, reader: Reader) -> None:
    """Register the functions that read what is stored in files of a format."""
    _READERS[format] = reader


def all_rows() -> tuple[SchemeRow, ...]:
    """List every row, in the order in which they were registered."""
    return tuple(_ROWS.values())


def reader_of(format: Format) -> Reader:
    """Find the reader of a format.

    Raises:
        InputError: If the format has none.
    """
    if format not in _READERS:
        raise InputError(Problem(str(format), f"has no reader; formats with one: {', '.join(_READERS)}."))
    return _READERS[format]


def row_of(format: Format, scheme: Scheme, runtime: Runtime | None = None) -> SchemeRow:
    """Find the row of a file, whether an exporter or a quantizer writes it.

    Raises:
        InputError: Naming the rows that the format has.
    """
    row = _ROWS.get((format, scheme, runtime))
    if row is None:
        raise InputError(_absent(Plan(format, scheme, runtime), [r for r in all_rows() if r.format is format]))
    return row


def row_for(plan: Plan) -> SchemeRow:
    """Find the row that writes what a plan asks for.

    Raises:
        InputError: If there is none, or the plan lacks calibration rows or brings some that nobody reads.
    """
    row = _ROWS.get((plan.format, plan.scheme, plan.runtime))
    if row is None or row.write is None:
        raise InputError(_absent(plan, [r for r in all_rows() if r.format is plan.format and r.write]))
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


def _absent(plan: Plan, rows: list[SchemeRow]) -> Problem:
    order = list(Scheme)
    rows = sorted(rows, key=lambda r: (order.index(r.scheme), r.runtime or ""))
    allowed = ", ".join(r.title for r in rows) or "nothing"
    return Problem(plan.title, f"does not exist in this version; {plan.format} has: {allowed}.", "Choose one of these.")
