"""Schemes of single weights: which scheme a recipe gives to each weight of a file, by role or by name.

1. At export `list_weights` lists the matrices of the module with their roles, and `record_weights` records those that
   all files have,
2. `resolve_schemes` gives each weight its scheme: that of the last matching name, else of its role, else the default of the
   role in such files; `resolve_file_weights` does so for a file of a run, and `check_weight_choices` and `find_role_problems` report
   choices that are impossible,
3. `simulation_of_file` returns the torch simulation of such a file,
4. `build_role_table` lists for the card what became of the weights of each role, read from the written file.

A weight is identified by a digest of its numbers, since exporters and quantizers rename tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
    """List the matrices of a prepared module with their roles, which are places in a layer such as query or ffn_down.

    Args:
        module: The module that files are exported from.
        scheme: Scheme of the exported files, fp32 or fp16. The digest of a matrix is that of its numbers in this type.

    Returns:
        One entry for each matrix, in the module's order. A matrix that is used twice has the role of its first use.
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
    """Write ``weights.json`` with the weights of a module, their roles and digests, that all exported files hold.

    Weights that an exporter has changed are left out: in a graph for one length a lookup of positions becomes a sum
    with a constant.

    Args:
        folder: Folder of the format's files.
        weights: The weights, as `list_weights` returns them.
        files: The exported files.
        format: Format of the files.
    """
    stored = [set(digest_float_weights(file, format).values()) for file in files]
    kept = [w for w in weights if all(w.digest in digests for digests in stored)]
    write_json(folder / FILE_NAME, _LIST.dump_python(kept, mode="json"))


_KNOWN_FILES = 64
_DIGESTS: dict[tuple[Format, str], dict[str, str]] = {}
"""Digests of the float matrices of files, by format and sha256 of the file; the latest 64."""


def digest_float_weights(path: Path, format: Format) -> dict[str, str]:
    """Compute the digest of every float matrix in a file, and return the digests by the names of the matrices."""
    from pocketbert.quantize import read_stored_numbers

    key = format, sha256_path(path)  # a run moves its files
    if key not in _DIGESTS:
        floats = ((name, numbers) for name, numbers in read_stored_numbers(path, format) if numbers.dtype.kind == "f")
        _DIGESTS[key] = {name: found for name, numbers in floats if (found := matrix_digest(numbers)) is not None}
        if len(_DIGESTS) > _KNOWN_FILES:
            del _DIGESTS[next(iter(_DIGESTS))]
    return dict(_DIGESTS[key])


def _recorded_weights(run: Path, format: Format) -> list[WeightRole]:
    """Read ``weights.json`` of a format's exported files; empty if an earlier version exported them without it."""
    path = run / format / FILE_NAME
    return _LIST.validate_python(read_json(path)) if path.is_file() else []


def weights_in_file(model: RunModel, format: Format, path: Path) -> list[WeightRole]:
    """List the matrices of an exported file with their roles, which are places in a layer such as query.

    They are read from ``weights.json``. If there is none, as in an artefact folder, the model is prepared again as for an
    export.

    Args:
        model: The model that the file was exported from.
        format: Format of the file.
        path: Path of the exported file.

    Raises:
        InputError: If the file has large weights that the model, prepared as now, does not have.
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
    """Return the weights of a quantized file, each with its scheme; empty if every weight has the file's scheme.

    Raises:
        InputError: If the recipe chooses a scheme for some weights, and an earlier version of PocketBERT exported the
            model without a list of weights, or a weight's role cannot have the chosen scheme.
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
    """Return the weights of a file, each with its scheme.

    The last name in the recipe that matches a weight decides, else what the recipe says of its role, else the role's
    default.

    Args:
        section: The recipe's choices for this file; see `QuantizeSection.of`.
        weights: The weights in the file.
        scheme_of: Function that returns the default scheme of a role in this file, as `SchemeRow.scheme_of` does.
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
        row: What the file's scheme stores and computes, with its simulation.
        weights: The scheme of each weight; empty if all have the file's scheme.
        base: Scheme of the exported file.
    """
    assert row.simulation is not None

    def names_with(scheme: Scheme | None) -> frozenset[str]:
        """Return the names of the weights that have a scheme, or for None of those that the recipe leaves unchanged."""
        return frozenset(w.name for w in weights if w.scheme is scheme)

    seconds = tuple(
        (names, second.simulation.made_from(base)) for s, second in row.seconds.items() if (names := names_with(s))
    )
    return replace(row.simulation.made_from(base), left=names_with(None), seconds=seconds)


def check_weight_choices(section: QuantizeSection, weights: Sequence[WeightRole], format: Format | None = None) -> None:
    """Check that the names and roles of a recipe match weights of the model, and do not leave all weights as they are.

    Args:
        section: The section `quantize` of the recipe.
        weights: The weights of the exported module.
        format: Format whose choices are checked; None for all formats.

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
    """Return a problem, with the reason, for each role that cannot have the scheme that a recipe chooses for it.

    A name pattern is a problem if no role can have its scheme.
    """
    section, problems = recipe.quantize, list[Problem]()
    if not section.chosen and not any(f.roles or f.names for f in section.files or ()):
        return []
    from pocketbert.quantize.table import explain_refused_role, find_row

    fix = "Leave the role or this file out; docs/lab/quantization.md has a table."
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
    """List in which type a quantized file stores the weights of each role (place in the model, such as embedding or ffn_down).

    A weight is listed as float if the file holds the numbers of the exported file, even where the recipe sets a scheme for it. A
    role without weights, such as softmax, gets a row too, with the reason if a recipe cannot choose how it is computed.

    Args:
        model: The exported model, with its files.
        file: A file that a quantizer wrote.

    Returns:
        A row for each role and each way in which its weights are stored. Empty for exported files, for files made for one client
        app, and if an earlier version of PocketBERT exported the model.
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
    """Return one row of the model card's table of roles: the weights of the same role, scheme and stored type.

    Args:
        row: What the file's scheme stores and computes.
        role: The role.
        name: The name pattern of the recipe that chose the scheme; empty if none did.
        dtype: Type of the stored numbers.
        members: The weights, each with its size in bytes.
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
    """Return the reason why a recipe cannot leave a role as exported in such a file; empty if it can.

    For a role without weights it may also be the reason why the role cannot have the file's scheme.
    """
    from pocketbert.quantize.table import explain_refused_role

    why = explain_refused_role(row, role, None) or (
        explain_refused_role(row, role, row.scheme) if not role.weighs else None
    )
    return "" if why is None else why.removeprefix(f"{role}: ").removeprefix(f"{role} ")
