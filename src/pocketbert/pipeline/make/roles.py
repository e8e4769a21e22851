"""Schemes by role: the weights of an exported module with their roles, and what the recipe makes of each in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.digests import digest_of
from pocketbert.core.families.roles import WeightRole
from pocketbert.core.recipe.quantize import LEFT, QuantizeSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.pipeline.formats.model_files import ModelFile, exported_file, smaller
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.weight_schemes import resolved

if TYPE_CHECKING:
    from pocketbert.quantize.table import SchemeRow

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
    from pocketbert.quantize.policy import reason_against

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
    from pocketbert.quantize.policy import reason_against
    from pocketbert.quantize.table import row_of

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
