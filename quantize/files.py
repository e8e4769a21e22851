"""The check that a file holds each weight as its plan wants it: as it was exported, or in one of the schemes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import GateError
from pocketbert.core.families.weight_records import WeightRole, digest_of
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize import coreml, onnx, tflite  # noqa: F401 - they register their schemes and readers
from pocketbert.quantize import weights as stored_types
from pocketbert.quantize.table import Plan, SchemeRow, reader_of, row_for
from pocketbert.quantize.weights import Use, Wanted, WeightTypes, WeightUse, type_problems


def file_problems(
    path: Path, row: SchemeRow, types: WeightTypes, name: str, weights: Sequence[WeightRole] = ()
) -> list[str]:
    """List what is wrong with the weight types of a file.

    A weight that was left float is known by its numbers, every one of which must be that of the torch module.

    Args:
        path: The file.
        row: What it claims to be.
        types: What was found in it.
        name: What to call it.
        weights: What was to be made of each weight; empty where all have the scheme.
    """
    wanted = {w.digest for w in weights if w.scheme is None}
    found, lost = dict[str, str](), list[str]()
    if wanted:
        stored = ((n, v) for n, v in reader_of(row.format).stored_numbers(path) if v.dtype.kind == "f")
        found = {n: digest for n, v in stored if (digest := digest_of(v)) in wanted}
        lost = [w.name for w in weights if w.scheme is None and w.digest not in found.values()]
    out = _scheme_problems(row, types, name, weights, frozenset(found))
    if lost:
        out.append(
            f"{name}: to be left as exported, and not so in the file: {', '.join(lost[:5])} ({len(lost)} in all)."
        )
    return out


def _scheme_problems(
    row: SchemeRow, types: WeightTypes, name: str, weights: Sequence[WeightRole], left: frozenset[str]
) -> list[str]:
    """List what is wrong with the types, scheme by scheme where there are several.

    Quantizers rename weights, so that they are counted: of each size the file must have as many weights of each scheme as were
    chosen.
    """
    seconds = {s: second for s, second in row.seconds.items() if any(w.scheme is s for w in weights)}
    if not seconds:
        return row.problems(types, name, left)
    tables = {u.numbers for u in types.uses if u.use is Use.TABLE}
    wanted = {row.scheme: row.weights, **{s: second.weights for s, second in seconds.items()}}

    def form(kind: Wanted | WeightUse) -> tuple[str, bool]:
        """What tells schemes apart: the type, and whether a range makes what a weight is multiplied with an integer."""
        return kind.dtype, kind.bits is not None

    def of(use: WeightUse) -> Scheme:
        largest = use.numbers >= max(tables, default=0)
        kinds = {s: kind.of(use.use, largest) for s, kind in wanted.items()}
        alike = [s for s, kind in kinds.items() if kind.dtype == use.dtype]
        return next((s for s in alike if form(kinds[s]) == form(use)), alike[0] if alike else row.scheme)

    out, by_scheme = list[str](), dict[Scheme, list[WeightUse]]()
    for use in types.uses:
        by_scheme.setdefault(of(use), []).append(use)
    for scheme, uses in by_scheme.items():
        own = {"uses": uses} if scheme is row.scheme else {"uses": uses, "integers": [], "coarse": []}
        out += type_problems(types.model_copy(update=own), name, wanted[scheme], left, whole=False)
    counted = {u.name: u for u in types.uses if u.name not in left}.values()
    there = Counter((u.numbers, form(u)) for u in counted)
    products = Counter(u.numbers for u in counted if u.use is Use.MATMUL)
    for weight in (w for w in weights if w.scheme is not None and w.numbers >= stored_types.SMALL):
        looked_up = weight.numbers in tables
        # projected positions of DeBERTa are looked up, and have the role of what projected them
        reads = (
            Use.TABLE if looked_up and (weight.role is Role.EMBEDDING or not products[weight.numbers]) else Use.MATMUL
        )
        products[weight.numbers] -= reads is Use.MATMUL
        kind = row.expected(weight.scheme).of(reads, weight.numbers >= max(tables, default=0))
        there[weight.numbers, form(kind)] -= 1
        if there[weight.numbers, form(kind)] < 0:
            named = f"{weight.scheme} ({kind.dtype})"
            out.append(f"{name}: {weight.name} is to have {named}, and the file has too few such weights.")
    return out


# --- door ---
# The one way in: quantize a file, and read what is stored in one.


def quantize(source: Path, destination: Path, plan: Plan) -> WeightTypes:
    """Write a smaller copy of an exported file, and check the weight types in it.

    Args:
        source: A file with the weights that the exporter wrote.
        destination: Where to write. A file that fails the check stays there.
        plan: What to make.

    Returns:
        The types found in the written file.

    Raises:
        InputError: If no row of the table writes what the plan asks for, or calibration rows are missing or wrong.
        MissingBackendError: If a library that writes the format is not installed.
        GateError: If the weights in the written file are not those of the scheme, or a range could not be measured.
    """
    row = row_for(plan)
    assert row.write is not None
    row.write(source, destination, plan)
    types = weight_types(destination, plan.format)
    problems = file_problems(destination, row, types, destination.name, plan.weights)
    if problems:
        raise GateError(problems)
    return types


def weight_types(path: Path, format: Format) -> WeightTypes:
    """Read the types of all weights in a file."""
    return reader_of(format).weight_types(path)


def stored_numbers(path: Path, format: Format) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Read name and value of everything stored in a file."""
    yield from reader_of(format).stored_numbers(path)
