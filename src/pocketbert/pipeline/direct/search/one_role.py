"""Sensitivity: files in which one role is compressed, and what they predict of the whole."""

from __future__ import annotations

import math

from pocketbert.core.artefacts import RoleError, Sensitivity
from pocketbert.core.disk.files import path_bytes
from pocketbert.core.host.progress import say
from pocketbert.core.types import Role
from pocketbert.pipeline.direct.search.bench import Bench
from pocketbert.pipeline.direct.search.trial import Trial
from pocketbert.pipeline.formats.model_files import ModelFile


def sensitivity(bench: Bench, file: ModelFile) -> Sensitivity:
    """Compress one role in at a time, with real files.

    One role *out* at a time would tell nothing: a file with one role less is hardly closer while another role decides.

    Args:
        bench: Writes and compares the files.
        file: Format and scheme.
    """
    from pocketbert.quantize.table import row_of

    row = row_of(file.format, file.scheme, file.runtime)
    record = Sensitivity(format=file.format, scheme=file.scheme)
    if not row.selective:
        return record.model_copy(update={"note": f"the quantizer of {row.title} leaves no role out"})
    smallest = row.simulation.small if row.simulation is not None else 0
    roles = [r for r in Role if any(w.role is r and w.numbers > smallest for w in bench.weights)]
    whole, base = Trial(file), path_bytes(bench.source)
    written = bench.written(whole)
    if written.failure:
        return record.model_copy(update={"note": written.failure})
    errors = [_only(bench, file, role, roles, base) for role in roles]
    found = record.model_copy(
        update={
            "roles": sorted(errors, key=lambda e: math.inf if e.rel is None else -e.rel),
            "whole": bench.ranked(whole).rel,
            "saved": base - written.bytes,
        }
    )
    predicted = "" if found.predicted is None else f", {found.predicted:.3g} predicted from its roles"
    say(f"  {file.path}: RMS difference {found.whole:.3g} of the spread{predicted}")
    return found


def _only(bench: Bench, file: ModelFile, role: Role, roles: list[Role], base: int) -> RoleError:
    """Measure the file in which only one role is compressed."""
    trial = Trial(file, tuple(r for r in dict.fromkeys([*roles, *(w.role for w in bench.weights)]) if r is not role))
    written = bench.written(trial)
    if written.failure:
        return RoleError(role=role, note=written.failure)
    rel = bench.ranked(trial).rel
    say(f"  {file.path}, only {role}: RMS difference {rel:.3g} of the spread")
    return RoleError(role=role, rel=rel, saved=base - written.bytes)
