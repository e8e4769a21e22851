"""The check that a file holds those weights as they were exported that its plan leaves, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pocketbert.core.families.digests import digest_of
from pocketbert.core.families.roles import WeightRole
from pocketbert.quantize.table import SchemeRow, reader_of
from pocketbert.quantize.weights import WeightTypes


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
    if not wanted:
        return row.problems(types, name)
    stored = ((n, v) for n, v in reader_of(row.format).stored_numbers(path) if v.dtype.kind == "f")
    found = {n: digest for n, v in stored if (digest := digest_of(v)) in wanted}
    lost = [w.name for w in weights if w.scheme is None and w.digest not in found.values()]
    out = row.problems(types, name, frozenset(found))
    if lost:
        out.append(
            f"{name}: to be left as exported, and not so in the file: {', '.join(lost[:5])} ({len(lost)} in all)."
        )
    return out
