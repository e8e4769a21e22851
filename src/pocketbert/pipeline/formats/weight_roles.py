"""Schemes by role: the weights of an exported module with their roles, and what the recipe makes of each in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pocketbert.core.artefacts import RoleRow
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import WeightRole, digest_of, role_of
from pocketbert.core.recipe.quantize import LEFT, QuantizeSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.pipeline.formats.base import ModelFile, RunModel, base_of, exported_file, place_of, smaller
from pocketbert.pipeline.reference import own_texts, reference_model, sample_batches, sentence_batches

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pocketbert.quantize.rounding import Simulation
    from pocketbert.quantize.table import SchemeRow


# --- weight_schemes ---
# What becomes of each weight in a file: its scheme, by the recipe or by default, and how torch rounds it.


def weights_of(module: nn.Module, scheme: Scheme = Scheme.FP32) -> list[WeightRole]:
    """List the weights of a prepared module with their roles.

    Args:
        module: The module that files are exported from.
        scheme: What the files are exported as: digests are those of numbers in fp32 or fp16.

    Returns:
        One entry for each matrix, in the module's order; a matrix with two uses has the role of the first.
    """

    def numbers(matrix: Tensor) -> NDArray[np.float32]:
        values: NDArray[np.float32] = matrix.detach().float().numpy()
        return values.astype(np.float16).astype(np.float32) if scheme is Scheme.FP16 else values

    matrices = ((n, digest_of(numbers(p)), p.numel()) for n, p in module.named_parameters())
    return [WeightRole(name=n, role=role_of(n), digest=d, numbers=size) for n, d, size in matrices if d is not None]


def name_of(section: QuantizeSection, weight: WeightRole) -> str:
    """Return the pattern of `quantize.names` that decides about a weight, the last that means it; empty where none does."""
    return next((pattern for pattern in reversed(section.names) if weight.matches(pattern)), "")


def resolved(
    section: QuantizeSection, weights: Sequence[WeightRole], scheme_of: Callable[[Role], Scheme]
) -> list[WeightRole]:
    """Give each weight its scheme: that of the last name that means it, else of its role, else the usual one.

    Args:
        section: The choices of one file, see `QuantizeSection.of`.
        weights: The weights in the file.
        scheme_of: The scheme of a role where the recipe chooses none: `SchemeRow.scheme_of` of the file's row.
    """

    def of(weight: WeightRole) -> Scheme | None:
        name = name_of(section, weight)
        choice = section.names[name] if name else section.roles.get(weight.role, scheme_of(weight.role))
        return None if choice == LEFT else Scheme(choice)

    return [w.model_copy(update={"scheme": of(w)}) for w in weights]


def simulation_of(row: SchemeRow, weights: Sequence[WeightRole], base: Scheme) -> Simulation:
    """Return the simulation of a file in which weights have different schemes.

    Args:
        row: The file's scheme, which has a simulation.
        weights: What becomes of each weight; empty where all have the scheme.
        base: Numbers of the exported file.
    """
    assert row.simulation is not None

    def named(scheme: Scheme | None) -> frozenset[str]:
        return frozenset(w.name for w in weights if w.scheme is scheme)

    seconds = tuple(
        (names, second.simulation.made_from(base)) for s, second in row.seconds.items() if (names := named(s))
    )
    return replace(row.simulation.made_from(base), left=named(None), seconds=seconds)


FILE_NAME = "weights.json"
_LIST = TypeAdapter(list[WeightRole])


def write_weights(folder: Path, weights: Sequence[WeightRole], files: Sequence[Path], format: Format) -> None:
    """Record those weights of a module that all its files have, in the folder of the files.

    Exporters fold what they can: a lookup of positions in a graph for one length becomes a sum with a constant.

    Args:
        folder: Where the files of a format are.
        weights: What `weights_of` returned.
        files: What was exported.
        format: Its format.
    """
    from pocketbert.quantize import stored_numbers

    stored = [{digest_of(v) for _, v in stored_numbers(file, format) if v.dtype.kind == "f"} for file in files]
    kept = [w for w in weights if all(w.digest in digests for digests in stored)]
    write_json(folder / FILE_NAME, _LIST.dump_python(kept, mode="json"))


def all_weights(run: Path, format: Format) -> list[WeightRole]:
    """Read what an export recorded of the weights of a format's files; empty where an earlier version exported them."""
    path = run / format / FILE_NAME
    return _LIST.validate_python(read_json(path)) if path.is_file() else []


def roles_of(model: RunModel, file: ModelFile) -> list[WeightRole]:
    """Resolve what the recipe, or the scheme itself, makes of each weight; empty where all weights have the file's scheme.

    Raises:
        InputError: If an earlier version exported the model.
    """
    if file.exported:
        return []
    from pocketbert.quantize.table import row_of

    row, path = row_of(file.format, file.scheme, file.runtime), model.run / file.format / FILE_NAME
    section = model.recipe.quantize.of(file.format, file.scheme, file.runtime)
    if not section.chosen and not row.usual:
        return []
    if not path.is_file():
        raise InputError(
            Problem(
                str(path),
                "is missing: an earlier version exported this model, and roles are read from that file.",
                "Export it again: repeat the command with --overwrite.",
            )
        )
    found = resolved(section, all_weights(model.run, file.format), row.scheme_of)
    _check_policy(row, found)
    return found


def _check_policy(row: SchemeRow, weights: Sequence[WeightRole]) -> None:
    """Refuse schemes that a name gives to weights of a role that cannot have them.

    Raises:
        InputError: With the reasons of the policy.
    """
    from pocketbert.quantize.table import reason_against

    reasons = {reason_against(row, w.role, w.scheme): w.name for w in weights}
    problems = [Problem("quantize.names", f"{name}: {why}.") for why, name in reasons.items() if why is not None]
    if problems:
        raise InputError(problems)


def check_names(section: QuantizeSection, weights: Sequence[WeightRole], format: Format | None = None) -> None:
    """Refuse names and roles that mean no weight of a model, and choices that leave nothing to quantize.

    Args:
        section: What the recipe chooses.
        weights: The weights of the exported module.
        format: The format that is exported; None for any.

    Raises:
        InputError: Listing all of them.
    """
    known = ", ".join(w.name.removesuffix(".weight") for w in weights[:4])
    roles, problems = dict.fromkeys(w.role for w in weights), list[Problem]()
    own = [f for f in section.files or () if format is None or f.concerns(format)]
    for pattern in dict.fromkeys([*section.names, *(n for f in own for n in f.names)]):
        if not any(w.matches(pattern) for w in weights):
            what = f"'{pattern}' is no module of the exported model, which has {known} and {len(weights) - 4} more."
            problems.append(Problem("quantize.names", what, f"Choose from the names in {FILE_NAME} of the run folder."))
    for role in dict.fromkeys([*section.roles, *(r for f in own for r in f.roles)]):
        if role.weighs and role not in roles:
            what = f"the exported model has no {role}, only {', '.join(roles)}."
            problems.append(Problem("quantize.roles", what, "Leave this role out."))
    choices = [section, *(section.of(format, f.scheme, f.runtime) for f in own if format is not None)]
    if any(c.chosen and all(w.scheme is None for w in resolved(c, weights, lambda _: Scheme.INT8)) for c in choices):
        problems.append(Problem("quantize.roles", "leaves every weight as it is.", "Choose the scheme fp32 instead."))
    if problems:
        raise InputError(problems)


def role_problems(recipe: Recipe) -> list[Problem]:
    """List the roles that a file of a recipe cannot have the chosen scheme for, with the reason of the policy."""
    section, out = recipe.quantize, list[Problem]()
    if not section.chosen and not any(f.roles or f.names for f in section.files or ()):
        return out
    from pocketbert.quantize.table import reason_against, row_of

    for format in recipe.export.formats:
        base = exported_file(format, place_of(format).exported_scheme(recipe))
        for file in smaller(recipe, [base]):
            own = section.of(file.format, file.scheme, file.runtime)
            # a name may mean weights of any role: which ones is only known when the module is exported
            row = row_of(file.format, file.scheme, file.runtime)
            choices = [*own.roles.items(), *((_role_with(row, c), c) for c in own.names.values())]
            reasons = (reason_against(row, role, None if c == LEFT else Scheme(c)) for role, c in choices)
            out += [
                Problem(
                    "quantize.roles", f"{why}.", "Leave the role or this file out; docs/quantization.md has a table."
                )
                for why in reasons
                if why is not None
            ]
    return list(dict.fromkeys(out))


def _role_with(row: SchemeRow, choice: Scheme | str) -> Role:
    """A role that can have a choice; the first one with weights where none can."""
    second = row.seconds.get(Scheme(choice)) if choice != LEFT else None
    return next(iter(second.roles)) if second is not None else Role.FFN_DOWN


# --- stored_weights ---
# The weights in an exported file with their roles, wherever the file is: in its run folder, or in an artefact folder.


def stored_weights(model: RunModel, format: Format, path: Path) -> list[WeightRole]:
    """List the weights in an exported file with their roles.

    Args:
        model: What it was exported from.
        format: Its format.
        path: The file.

    Raises:
        InputError: If the file has large weights that are not those of the model as it is prepared now.
    """
    from pocketbert.quantize import weight_types, weights

    known, stored = all_weights(model.run, format) or _prepared(model, format), float_digests(path, format)
    digests = {w.digest for w in known}
    large = {u.name for u in weight_types(path, format).uses if u.numbers >= weights.SMALL and u.name in stored}
    lost = [name for name in large if stored[name] not in digests]
    if lost:
        what = f"has weights without a role: {', '.join(sorted(lost)[:4])}; another version exported it."
        raise InputError(Problem(str(path), what, "Export the model again: pocketbert export -m MODEL -o FOLDER"))
    return [w for w in known if w.digest in set(stored.values())]


def float_digests(path: Path, format: Format) -> dict[str, str]:
    """Return the digest of every matrix that a file holds in floats, by its name in the file."""
    from pocketbert.quantize import stored_numbers

    floats = ((name, numbers) for name, numbers in stored_numbers(path, format) if numbers.dtype.kind == "f")
    return {name: digest for name, numbers in floats if (digest := digest_of(numbers)) is not None}


def _prepared(model: RunModel, format: Format) -> list[WeightRole]:
    """Prepare the model as an export does, and list the weights of the module."""
    from pocketbert.export.prepare import prepare

    place, family, reference = place_of(format), model.folder.family, reference_model(model.folder, model.task)
    layout, samples = (
        place.layout(model.recipe),
        sample_batches(model.tokenizer, own_texts(model.task, model.tokenizer)),
    )
    sentences = sentence_batches(model.task, model.tokenizer)
    module = prepare(reference.model, family, model.task, format, layout, reference.pooling, samples, sentences)
    return weights_of(module, place.exported_scheme(model.recipe))


# --- role_table ---
# The resolved table of a smaller file: what became of the weights of each role, read from the written file.


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
    from pocketbert.quantize.files import weight_types
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
    from pocketbert.quantize.table import reason_against

    why = reason_against(row, role, None) or (reason_against(row, role, row.scheme) if not role.weighs else None)
    return "" if why is None else why.removeprefix(f"{role}: ").removeprefix(f"{role} ")
