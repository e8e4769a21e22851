"""Quantize an exported file, and check that every weight in the written file is stored as planned.

`quantize` finds the registered scheme, writes the file, reads the types of its weights back and raises GateError if
they differ from the plan; `find_weight_problems` is that check. `read_weight_types` and `read_stored_numbers` read what
any file of a known format stores. Importing this module registers the schemes and readers of all formats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import GateError
from pocketbert.core.families.weight_records import WeightRole, matrix_digest
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize import coreml, onnx, tflite  # noqa: F401 - they register their schemes and readers
from pocketbert.quantize import weights as stored_types
from pocketbert.quantize.table import Plan, SchemeRow, find_reader, find_row_for_plan
from pocketbert.quantize.weights import ExpectedForm, Use, WeightTypes, WeightUse, find_type_problems


def quantize(source: Path, destination: Path, plan: Plan) -> WeightTypes:
    """Write a quantized copy of an exported file, and check how every weight in it is stored.

    Args:
        source: A file that an exporter wrote.
        destination: Where to write. A file that fails the check is not deleted.
        plan: Scheme and settings.

    Returns:
        The weight types read from the written file.

    Raises:
        InputError: If no scheme is registered for the plan's file, calibration rows are missing or wrong, or the scheme
            does not fit the file, such as blocks that do not divide a weight's rows.
        MissingBackendError: If a library that writes the format is not installed.
        GateError: If the weights in the written file do not have the types of the scheme, or a range could not be
            measured.
    """
    row = find_row_for_plan(plan)
    assert row.write is not None
    row.write(source, destination, plan)
    types = read_weight_types(destination, plan.format)
    problems = find_weight_problems(destination, row, types, destination.name, plan.weights)
    if problems:
        raise GateError(problems)
    return types


def read_weight_types(path: Path, format: Format) -> WeightTypes:
    """Read the storage type of every weight in a file of this format."""
    return find_reader(format).weight_types(path)


def read_stored_numbers(path: Path, format: Format) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Yield (name, value) of every array stored in a file of this format."""
    yield from find_reader(format).stored_numbers(path)


def find_weight_problems(
    path: Path, row: SchemeRow, types: WeightTypes, name: str, weights: Sequence[WeightRole] = ()
) -> list[str]:
    """Return what is wrong with the weights of a quantized file, given the plan: sentences, empty if nothing is.

    The weights that the plan leaves as exported are looked for among the file's float arrays, by the digest of their
    numbers: one is reported as lost if no array has its digest.

    Args:
        path: The quantized file.
        row: The registered scheme of the file, for its format.
        types: The weight types read from the file.
        name: Name of the file in the messages.
        weights: The plan: scheme and digest of each weight. Empty if all weights have the scheme of `row`.
    """
    left_digests = {w.digest for w in weights if w.scheme is None}
    digests_by_name, lost = dict[str, str](), list[str]()
    if left_digests:
        floats = ((n, v) for n, v in find_reader(row.format).stored_numbers(path) if v.dtype.kind == "f")
        digests_by_name = {n: digest for n, v in floats if (digest := matrix_digest(v)) in left_digests}
        lost = [w.name for w in weights if w.scheme is None and w.digest not in digests_by_name.values()]
    left = frozenset(digests_by_name)
    if any(w.scheme in row.seconds for w in weights):
        problems = _mixed_scheme_problems(row, types, name, weights, left)
    else:
        problems = row.problems(types, name, left)
    if lost:
        problems.append(
            f"{name}: to be left as exported, and not so in the file: {', '.join(lost[:5])} ({len(lost)} in all)."
        )
    return problems


def _mixed_scheme_problems(
    row: SchemeRow, types: WeightTypes, name: str, weights: Sequence[WeightRole], left: frozenset[str]
) -> list[str]:
    """Return what is wrong with the weights of a file with several schemes: sentences, empty if nothing is.

    The scheme of a stored weight is inferred from its type. Quantizers rename weights, so they are counted by size: for
    each size the file must have at least as many weights of each scheme as the plan; small weights are not counted.
    `left` holds the names of the weights that stay float.
    """
    expected = {row.scheme: row.weights}
    expected |= {s: second.weights for s, second in row.seconds.items() if any(w.scheme is s for w in weights)}
    tables = {u.numbers for u in types.uses if u.use is Use.TABLE}
    largest_table = max(tables, default=0)

    def form(weight: ExpectedForm | WeightUse) -> tuple[str, bool]:
        """Return the two facts that tell schemes apart: the type, and whether the other operand has a stored range."""
        return weight.dtype, weight.bits is not None

    def infer_scheme(use: WeightUse) -> Scheme:
        by_scheme = {s: kinds.of(use.use, use.numbers >= largest_table) for s, kinds in expected.items()}
        same_type = [s for s, wanted in by_scheme.items() if wanted.dtype == use.dtype]
        same_form = (s for s in same_type if form(by_scheme[s]) == form(use))
        return next(same_form, same_type[0] if same_type else row.scheme)

    problems, uses_by_scheme = list[str](), dict[Scheme, list[WeightUse]]()
    for use in types.uses:
        uses_by_scheme.setdefault(infer_scheme(use), []).append(use)
    for scheme, uses in uses_by_scheme.items():
        part = {"uses": uses} if scheme is row.scheme else {"uses": uses, "integers": [], "coarse": []}
        problems += find_type_problems(types.model_copy(update=part), name, expected[scheme], left, whole=False)

    stored = {u.name: u for u in types.uses if u.name not in left}.values()
    remaining = Counter((u.numbers, form(u)) for u in stored)
    products = Counter(u.numbers for u in stored if u.use is Use.MATMUL)
    for weight in (w for w in weights if w.scheme is not None and w.numbers >= stored_types.SMALL):
        # projected positions of DeBERTa are looked up, and have the role of what projected them
        is_table = weight.numbers in tables and (weight.role is Role.EMBEDDING or not products[weight.numbers])
        products[weight.numbers] -= not is_table
        use_kind = Use.TABLE if is_table else Use.MATMUL
        wanted = row.expected(weight.scheme).of(use_kind, weight.numbers >= largest_table)
        remaining[weight.numbers, form(wanted)] -= 1
        if remaining[weight.numbers, form(wanted)] < 0:
            scheme_title = f"{weight.scheme} ({wanted.dtype})"
            problems.append(f"{name}: {weight.name} is to have {scheme_title}, and the file has too few such weights.")
    return problems
