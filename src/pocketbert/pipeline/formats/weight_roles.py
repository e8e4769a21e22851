"""Schemes of single weights: which scheme a recipe gives to each weight of a file, by role or by name.

1. At export `list_weights` lists the matrices of the module with their roles, and `record_weights` records those that
   all files have,
2. `resolve_schemes` gives each weight its scheme: that of the last matching name, else of its role, else the default of the
   file's scheme; `resolve_file_weights` does so for a file of a run, and `check_weight_choices` and `find_role_problems` report choices that
   cannot be,
3. `simulation_of_file` returns the torch simulation of such a file,
4. `build_role_table` lists for the card what became of the weights of each role, read from the written file.

A weight is identified by a digest of its numbers, since exporters and quantizers rename tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from pocketbert.core.artefacts import RoleRow
from pocketbert.core.disk.files import read_json, sha256_path, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import WeightRole, classify_weight, matrix_digest
from pocketbert.core.recipe.quantize import UNCHANGED, QuantizeSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.pipeline.formats.base import (
    ModelFile,
    RunModel,
    exported_file,
    exported_source,
    format_place,
    quantized_files,
)
from pocketbert.pipeline.reference import load_reference_model, project_text_batches, project_texts, tokenize_batches

if TYPE_CHECKING:
    from torch import nn

    from pocketbert.quantize.rounding import Simulation
    from pocketbert.quantize.table import SchemeRow

FILE_NAME = "weights.json"
"""Record of the weights of a format's files, in the folder of its exported files."""
_LIST = TypeAdapter(list[WeightRole])
_DEFAULT_NOTE = "the default of this role in such files"
_SMALL_NOTE = "too small to be compressed"


# --- at export --------------------------------------------------------------------------------------------------------


def list_weights(module: nn.Module, scheme: Scheme = Scheme.FP32) -> list[WeightRole]:
    """List the matrices of a prepared module with their roles: places in a layer such as query or ffn_down.

    Args:
        module: The module that files are exported from.
        scheme: The scheme of the exported files: digests are those of numbers in fp32 or fp16.

    Returns:
        One entry for each matrix, in the module's order; a matrix with two uses has the role of the first.
    """
    weights = []
    for name, parameter in module.named_parameters():
        values: NDArray[np.float32] = parameter.detach().float().numpy()
        if scheme is Scheme.FP16:
            values = values.astype(np.float16).astype(np.float32)
        digest = matrix_digest(values)
        if digest is not None:
            weights.append(WeightRole(name=name, role=classify_weight(name), digest=digest, numbers=parameter.numel()))
    return weights


def record_weights(folder: Path, weights: Sequence[WeightRole], files: Sequence[Path], format: Format) -> None:
    """Write ``weights.json``: the weights of a module, with roles and digests, that all exported files hold.

    Exporters fold some of them: in a graph for one length a lookup of positions becomes a sum with a constant.

    Args:
        folder: Folder of the format's files.
        weights: As `list_weights` lists them.
        files: The exported files.
        format: Their format.
    """
    stored = [set(digest_float_weights(file, format).values()) for file in files]
    kept = [w for w in weights if all(w.digest in digests for digests in stored)]
    write_json(folder / FILE_NAME, _LIST.dump_python(kept, mode="json"))


def digest_float_weights(path: Path, format: Format) -> dict[str, str]:
    """Map the name of every float matrix in a file to the digest of its numbers; no content is read twice."""
    return dict(_digest_float_weights(path, format, sha256_path(path)))


@lru_cache(maxsize=64)
def _digest_float_weights(path: Path, format: Format, _content: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of `digest_float_weights`; the digest of the file makes a changed one another call."""
    from pocketbert.quantize import read_stored_numbers

    floats = ((name, numbers) for name, numbers in read_stored_numbers(path, format) if numbers.dtype.kind == "f")
    return tuple((name, digest) for name, numbers in floats if (digest := matrix_digest(numbers)) is not None)


def _recorded_weights(run: Path, format: Format) -> list[WeightRole]:
    """Read ``weights.json`` of a format's exported files; empty if an earlier version exported them without it."""
    path = run / format / FILE_NAME
    return _LIST.validate_python(read_json(path)) if path.is_file() else []


def weights_in_file(model: RunModel, format: Format, path: Path) -> list[WeightRole]:
    """List the weights of an exported file with their roles, for a file in a run or an artefact folder.

    In an artefact folder nothing is recorded: the model is prepared again as an export does.

    Args:
        model: The model that it was exported from.
        format: Its format.
        path: The file.

    Raises:
        InputError: If the file has large weights that are not those of the model as it is prepared now.
    """
    from pocketbert.quantize import read_weight_types, weights

    known, stored = _recorded_weights(model.run, format), digest_float_weights(path, format)
    if not known:
        from pocketbert.export.prepare import prepare_with_shared_weights

        place, family, reference = (
            format_place(format),
            model.folder.family,
            load_reference_model(model.folder, model.task),
        )
        layout = place.layout(model.recipe)
        samples = tokenize_batches(model.tokenizer, project_texts(model.task, model.tokenizer))
        sentences = project_text_batches(model.task, model.tokenizer)
        module = prepare_with_shared_weights(
            reference.model, family, model.task, format, layout, reference.pooling, samples, sentences
        )
        known = list_weights(module, place.exported_scheme(model.recipe))
    digests = {w.digest for w in known}
    large = {u.name for u in read_weight_types(path, format).uses if u.numbers >= weights.SMALL and u.name in stored}
    unknown = [name for name in large if stored[name] not in digests]
    if unknown:
        what = f"has weights without a role: {', '.join(sorted(unknown)[:4])}; another version exported it."
        raise InputError(Problem(str(path), what, "Export the model again: pocketbert export -m MODEL -o FOLDER"))
    return [w for w in known if w.digest in set(stored.values())]


# --- the schemes of weights -------------------------------------------------------------------------------------------


def resolve_file_weights(model: RunModel, file: ModelFile) -> list[WeightRole]:
    """Return a file's weights, each with the scheme that it gets; empty if all have the file's scheme.

    Raises:
        InputError: If an earlier version exported the model, or a name gives a scheme to a weight whose role cannot
            have it.
    """
    if file.exported:
        return []
    from pocketbert.quantize.table import explain_refused_role, find_row

    row, path = find_row(file.format, file.scheme, file.runtime), model.run / file.format / FILE_NAME
    section = model.recipe.quantize.of(file.format, file.scheme, file.runtime)
    if not section.chosen and not row.usual:
        return []
    if not path.is_file():
        what = "is missing: an earlier version exported this model, and roles are read from that file."
        raise InputError(Problem(str(path), what, "Export it again: repeat the command with --overwrite."))
    weights = resolve_schemes(section, _recorded_weights(model.run, file.format), row.scheme_of)
    reasons = {explain_refused_role(row, w.role, w.scheme): w.name for w in weights}
    problems = [Problem("quantize.names", f"{name}: {why}.") for why, name in reasons.items() if why is not None]
    if problems:
        raise InputError(problems)
    return weights


def resolve_schemes(
    section: QuantizeSection, weights: Sequence[WeightRole], scheme_of: Callable[[Role], Scheme]
) -> list[WeightRole]:
    """Return the weights, each with its scheme: by the last matching name, else by role, else the default.

    Args:
        section: The choices for one file, see `QuantizeSection.of`.
        weights: The weights in the file.
        scheme_of: Returns the default scheme of a role: `SchemeRow.scheme_of` of the file's row.
    """

    def scheme(weight: WeightRole) -> Scheme | None:
        """Return the scheme of one weight; None if the recipe leaves it unchanged."""
        pattern = _deciding_pattern(section, weight)
        choice = section.names[pattern] if pattern else section.roles.get(weight.role, scheme_of(weight.role))
        return None if choice == UNCHANGED else Scheme(choice)

    return [w.model_copy(update={"scheme": scheme(w)}) for w in weights]


def _deciding_pattern(section: QuantizeSection, weight: WeightRole) -> str:
    """Return the last name pattern in the recipe's ``quantize.names`` that matches a weight; empty if none does."""
    return next((pattern for pattern in reversed(section.names) if weight.matches(pattern)), "")


def simulation_of_file(row: SchemeRow, weights: Sequence[WeightRole], base: Scheme) -> Simulation:
    """Return the torch simulation of a quantized file: it rounds each weight by the scheme of that weight.

    Args:
        row: The file's scheme, which has a simulation.
        weights: The scheme of each weight; empty if all have the file's scheme.
        base: Scheme of the exported file.
    """
    assert row.simulation is not None

    def names_with(scheme: Scheme | None) -> frozenset[str]:
        """Return the names of the weights that have a scheme; with None of those left unchanged."""
        return frozenset(w.name for w in weights if w.scheme is scheme)

    seconds = tuple(
        (names, second.simulation.made_from(base)) for s, second in row.seconds.items() if (names := names_with(s))
    )
    return replace(row.simulation.made_from(base), left=names_with(None), seconds=seconds)


def check_weight_choices(section: QuantizeSection, weights: Sequence[WeightRole], format: Format | None = None) -> None:
    """Check that a recipe's names and roles match weights of the model, and that some weight is quantized.

    Args:
        section: The choices of the recipe.
        weights: The weights of the exported module.
        format: The format that is exported; None for any.

    Raises:
        InputError: Listing all problems.
    """
    known = ", ".join(w.name.removesuffix(".weight") for w in weights[:4])
    roles, problems = dict.fromkeys(w.role for w in weights), list[Problem]()
    files = [f for f in section.files or () if format is None or f.concerns(format)]
    for pattern in dict.fromkeys([*section.names, *(n for f in files for n in f.names)]):
        if not any(w.matches(pattern) for w in weights):
            what = f"'{pattern}' is no module of the exported model, which has {known} and {len(weights) - 4} more."
            problems.append(Problem("quantize.names", what, f"Choose from the names in {FILE_NAME} of the run folder."))
    for role in dict.fromkeys([*section.roles, *(r for f in files for r in f.roles)]):
        if role.weighs and role not in roles:
            what = f"the exported model has no {role}, only {', '.join(roles)}."
            problems.append(Problem("quantize.roles", what, "Leave this role out."))
    choices = [section, *(section.of(format, f.scheme, f.runtime) for f in files if format is not None)]
    if any(
        c.chosen and all(w.scheme is None for w in resolve_schemes(c, weights, lambda _: Scheme.INT8)) for c in choices
    ):
        problems.append(Problem("quantize.roles", "leaves every weight as it is.", "Choose the scheme fp32 instead."))
    if problems:
        raise InputError(problems)


def find_role_problems(recipe: Recipe) -> list[Problem]:
    """List the schemes that a recipe chooses for roles which cannot have them, each with the reason."""
    section, problems = recipe.quantize, list[Problem]()
    if not section.chosen and not any(f.roles or f.names for f in section.files or ()):
        return []
    from pocketbert.quantize.table import explain_refused_role, find_row

    fix = "Leave the role or this file out; docs/quantization.md has a table."
    for format in recipe.export.formats:
        base = exported_file(format, format_place(format).exported_scheme(recipe))
        for file in quantized_files(recipe, [base]):
            choices = section.of(file.format, file.scheme, file.runtime)
            row = find_row(file.format, file.scheme, file.runtime)
            pairs = [*choices.roles.items()]
            for choice in choices.names.values():
                # a name may match weights of any role, known at export only: take a role that can have the choice
                second = row.seconds.get(Scheme(choice)) if choice != UNCHANGED else None
                pairs.append((next(iter(second.roles)) if second is not None else Role.FFN_DOWN, choice))
            reasons = [explain_refused_role(row, role, None if c == UNCHANGED else Scheme(c)) for role, c in pairs]
            problems += [Problem("quantize.roles", f"{why}.", fix) for why in reasons if why is not None]
    return list(dict.fromkeys(problems))


# --- the table of the card --------------------------------------------------------------------------------------------


def build_role_table(model: RunModel, file: ModelFile) -> list[RoleRow]:
    """List how a quantized file stores the weights of each role, and why operators without weights stay as they are.

    A weight whose exported numbers are in the file stays float, whatever the scheme is.

    Args:
        model: The exported model, with its files.
        file: A file that a quantizer wrote.

    Returns:
        A row for each role and each way in which its weights are stored; empty for exported files, for files that one
        client has, and if an earlier version exported the model.
    """
    weights = _recorded_weights(model.run, file.format)
    if file.exported or file.client is not None or not weights or not all(w.numbers for w in weights):
        return []
    from pocketbert.quantize.files import read_weight_types
    from pocketbert.quantize.table import find_row
    from pocketbert.quantize.weights import Use, bits_per_number

    row, base = find_row(file.format, file.scheme, file.runtime), model.source(exported_source(file, model.files))
    digest_by_name = digest_float_weights(base, file.format)
    uses = {
        digest_by_name[u.name]: u
        for u in reversed(read_weight_types(base, file.format).uses)
        if u.name in digest_by_name
    }
    floats = set(digest_float_weights(model.source(file), file.format).values())
    largest_table = max((u.numbers for u in uses.values() if u.use is Use.TABLE), default=0)
    float_type = "float16" if any(u.dtype == "float16" for u in uses.values()) else "float32"
    section = model.recipe.quantize.of(file.format, file.scheme, file.runtime)
    groups = dict[tuple[Role, str, str, str], list[tuple[WeightRole, int]]]()
    for weight in resolve_schemes(section, weights, row.scheme_of):
        use = uses[weight.digest].use if weight.digest in uses else Use.MATMUL
        expected = row.expected(weight.scheme).of(use, weight.numbers >= largest_table)
        dtype, block = (float_type, None) if weight.digest in floats else (expected.dtype, expected.block)
        size = round(weight.numbers * bits_per_number(dtype, block) / 8)
        key = (weight.role, _deciding_pattern(section, weight), str(weight.scheme), dtype)
        groups.setdefault(key, []).append((weight, size))
    rows = [
        _role_row(row, role, name, dtype, members, role in section.roles)
        for (role, name, _, dtype), members in groups.items()
    ]
    rows += [RoleRow(role=role, note=_policy_note(row, role)) for role in Role if not role.weighs]
    order = list(Role)
    return sorted(rows, key=lambda r: (not r.weights, order.index(r.role)))


def _role_row(
    row: SchemeRow, role: Role, name: str, dtype: str, members: Sequence[tuple[WeightRole, int]], is_listed: bool
) -> RoleRow:
    """Return the row of the card's table for weights that have the same role, scheme and stored type.

    Args:
        row: The file's scheme.
        role: The role.
        name: The pattern that chose the scheme; empty if none did.
        dtype: Type of the stored numbers.
        members: The weights with their sizes in bytes.
        is_listed: Whether the recipe chooses a scheme for the role.
    """
    scheme, chosen = members[0][0].scheme, bool(name) or is_listed
    note = _DEFAULT_NOTE if role in row.usual and not chosen else _policy_note(row, role)
    if dtype.startswith("float") and scheme is not None and row.weights.products.dtype != dtype:
        note = _SMALL_NOTE
    return RoleRow(
        role=role,
        name=name,
        scheme=scheme,
        stored=dtype,
        weights=len(members),
        numbers=sum(w.numbers for w, _ in members),
        bytes=sum(size for _, size in members),
        chosen=chosen,
        note=note,
    )


def _policy_note(row: SchemeRow, role: Role) -> str:
    """Return why a role cannot have another scheme in such a file, without the role's name; empty if it can."""
    from pocketbert.quantize.table import explain_refused_role

    why = explain_refused_role(row, role, None) or (
        explain_refused_role(row, role, row.scheme) if not role.weighs else None
    )
    return "" if why is None else why.removeprefix(f"{role}: ").removeprefix(f"{role} ")
