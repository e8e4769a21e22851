"""The resolved table of a smaller file: what became of the weights of each role, read from the written file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import RoleRow
from pocketbert.core.families.roles import WeightRole
from pocketbert.core.types import Role
from pocketbert.pipeline.formats.model_files import ModelFile, base_of
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.weight_schemes import name_of, resolved
from pocketbert.pipeline.make.roles import all_weights
from pocketbert.pipeline.make.stored_weights import float_digests

if TYPE_CHECKING:
    from pocketbert.quantize.table import SchemeRow

_USUAL = "the default of this role in such files"
_SMALL = "too small to be compressed"


def role_table(model: RunModel, file: ModelFile) -> list[RoleRow]:
    """Tell what a file makes of the weights of each role, and why operators without weights stay as they are.

    Weights are known by their numbers: one that is in the file as it was exported stays float, whatever the scheme is.

    Args:
        model: The exported model, with its files.
        file: A file that a quantizer wrote.

    Returns:
        A row for each role and each way in which its weights are stored; empty for exported files, for files that one
        client has, and where an earlier version exported the model.
    """
    weights = all_weights(model.run, file.format)
    if file.exported or file.client is not None or not weights or not all(w.numbers for w in weights):
        return []
    from pocketbert.quantize.door import weight_types
    from pocketbert.quantize.table import row_of
    from pocketbert.quantize.weights import Use, bits_of

    row, base = row_of(file.format, file.scheme, file.runtime), model.source(base_of(file, model.files))
    names = float_digests(base, file.format)
    uses = {names[u.name]: u for u in reversed(weight_types(base, file.format).uses) if u.name in names}
    floats = set(float_digests(model.source(file), file.format).values())
    most = max((u.numbers for u in uses.values() if u.use is Use.TABLE), default=0)
    kind = "float16" if any(u.dtype == "float16" for u in uses.values()) else "float32"
    section = model.recipe.quantize.of(file.format, file.scheme, file.runtime)
    found = dict[tuple[Role, str, str, str], list[tuple[WeightRole, int]]]()
    for weight in resolved(section, weights, row.scheme_of):
        use = uses[weight.digest].use if weight.digest in uses else Use.MATMUL
        wanted = row.expected(weight.scheme).of(use, weight.numbers >= most)
        stored, block = (kind, None) if weight.digest in floats else (wanted.dtype, wanted.block)
        size = round(weight.numbers * bits_of(stored, block) / 8)
        key = (weight.role, name_of(section, weight), str(weight.scheme), stored)
        found.setdefault(key, []).append((weight, size))
    order = list(Role)
    rows = [
        _row(row, role, name, stored, kept, role in section.roles) for (role, name, _, stored), kept in found.items()
    ]
    rows += [RoleRow(role=role, note=_policy(row, role)) for role in Role if not role.weighs]
    return sorted(rows, key=lambda r: (not r.weights, order.index(r.role)))


def _row(
    row: SchemeRow, role: Role, name: str, stored: str, weights: Sequence[tuple[WeightRole, int]], listed: bool
) -> RoleRow:
    scheme = weights[0][0].scheme
    chosen = bool(name) or listed
    small = stored.startswith("float") and scheme is not None and row.weights.products.dtype != stored
    return RoleRow(
        role=role,
        name=name,
        scheme=scheme,
        stored=stored,
        weights=len(weights),
        numbers=sum(w.numbers for w, _ in weights),
        bytes=sum(size for _, size in weights),
        chosen=chosen,
        note=_SMALL if small else _USUAL if role in row.usual and not chosen else _policy(row, role),
    )


def _policy(row: SchemeRow, role: Role) -> str:
    """Why a role cannot be otherwise: the reason of the policy, without the role that the table names."""
    from pocketbert.quantize.policy import reason_against

    why = reason_against(row, role, None) or (reason_against(row, role, row.scheme) if not role.weighs else None)
    return "" if why is None else why.removeprefix(f"{role}: ").removeprefix(f"{role} ")
