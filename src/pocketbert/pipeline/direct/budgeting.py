"""`quantize` inside a budget: a search, then the ordinary steps for what it chose, in one workspace that a kill leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME, ModelRecord, strangers
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.files import sha256_json
from pocketbert.core.disk.workspace import Workspace, finish_interrupted, remove_interrupted, workspace
from pocketbert.core.errors import GateError, Problem, nearest
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say
from pocketbert.core.host.versions import installed
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.recipe import Recipe, VerifySection
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.finished import is_made
from pocketbert.pipeline.direct.search import (
    Finding,
    Material,
    check_inside,
    chosen_files,
    material_of,
    search,
    told_of,
)
from pocketbert.pipeline.export_recipe import export_recipe, naming_flags
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.inputs import SURE, Inputs
from pocketbert.pipeline.learn.data import check_threshold
from pocketbert.pipeline.options import BudgetOptions, ExportOptions
from pocketbert.pipeline.phone.recording import write_page
from pocketbert.pipeline.requirements import require_for
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission

_WORK = "search inside a budget"
"""What the workspace remembers, so that a later search finds its figures."""


@dataclass(frozen=True)
class Asked:
    """What is searched.

    Attributes:
        limits: The budget.
        schemes: Schemes to consider; empty for all.
        options: How the folder's files were exported, with both files of rows.
        bases: The exported file of each format.
        ready: All exported files, by their path in the folder.
    """

    limits: BudgetSection
    schemes: Sequence[Scheme]
    options: ExportOptions
    bases: Mapping[Format, Path]
    ready: Mapping[str, Path]


def budget_problems(
    asked: BudgetOptions,
    exported: Sequence[ModelRecord],
    schemes: Sequence[str] | None,
    runtimes: Sequence[str],
    calibrate: DataSource | None,
) -> list[Problem]:
    """List what is wrong with a search before anything is read, by the names of the flags."""
    problems, there = [], list(dict.fromkeys(r.format.value for r in exported if r.plain))
    if asked.data is None:
        problems.append(
            Problem("--data", "a budget needs labelled rows to score candidates on.", "Give --data dev.csv")
        )
    if calibrate is None:
        what = "a budget needs training rows to rank candidates and to measure ranges on; none may be in --data."
        problems.append(Problem("--calibrate", what, "Give --calibrate train.csv"))
    if runtimes:
        what = f"{', '.join(runtimes)}: a budget chooses among files for any runtime."
        problems.append(Problem("--runtime", what, "Leave it out, and add that file afterwards."))
    known = ", ".join(there)
    lost = [name for name in asked.formats or () if name not in there]
    problems += [Problem("--format", f"the folder has no exported {name} file, only {known}.") for name in lost]
    formats = [Format(f) for f in there if asked.formats is None or f in asked.formats]
    problems += _scheme_problems(schemes, formats or [Format(f) for f in there])
    untimed = [f for f in formats if not FORMATS[f].timed]
    if asked.limits.max_p90_ms is not None and untimed:
        what = f"{', '.join(untimed)} files cannot be timed on this machine."
        problems.append(Problem("--budget max_p90_ms", what, "Leave the limit out, or choose others with --format."))
    return problems


def _scheme_problems(schemes: Sequence[str] | None, formats: Sequence[Format]) -> list[Problem]:
    """List schemes that are no candidate, and formats that are left without one."""
    if schemes is None:
        return []
    names = {f: [s.value for s in Scheme if FORMATS[f].takes(s) and FORMATS[f].smaller(s)] for f in formats}
    every = sorted({name for known in names.values() for name in known})
    wrong = [name for name in schemes if name not in every]
    if wrong:
        return [Problem("--scheme", f"'{name}' is no candidate here; {nearest(name, every)}.") for name in wrong]
    without = [f for f in formats if not set(names[f]) & set(schemes)]
    fix = "Add one of them, or choose other formats with --format."
    return [Problem("--scheme", f"leaves no candidate of {f}, which has {', '.join(names[f])}.", fix) for f in without]


def quantize_inside(model: str, output: Path, asked: Asked, *, overwrite: bool) -> Path:
    """Choose the best file of each format inside a budget, and write a folder with these.

    Args:
        model: The folder with exported files; it is not changed.
        output: The new artefact folder.
        asked: What is searched.
        overwrite: Whether an existing artefact folder may be replaced.

    Raises:
        GateError: If a format has no file inside, or what was chosen fails on the rows that had no part in the choice. No
            folder is written; the figures stay in the workspace.
    """
    recipe, folder = export_recipe(model, asked.options)
    require_for(recipe)
    output = folder_destination(output, folder.path)
    finish_interrupted(output)
    inputs = Inputs(recipe, asked.ready, folder)
    with naming_flags():
        material = material_of(RunModel(recipe, folder.path, folder, inputs.length), asked.bases)
        check_threshold(recipe, material.scoring)
    made_from = _made_from(material, asked, inputs)
    if is_made(output, lambda made: made.search is not None and made.search.made_from == made_from, overwrite):
        remove_interrupted(output, _WORK)
        return output
    with leaving_nothing(output), workspace(output, resume=_WORK) as own:
        if own.resumed:
            say(f"continuing the interrupted search in {own.path}")
        findings = _search(material, asked, own)
        section = recipe.quantize.choosing(chosen_files([f.chosen for f in findings if f.chosen is not None]))
        final = recipe.model_copy(update={"quantize": section, "verify": _verified(recipe, asked.limits)})
        told = told_of(findings, material, asked.limits, _rows(material, asked))
        with naming_flags():
            inputs = Inputs(final, asked.ready, folder, told.model_copy(update={"made_from": made_from}))
            _write(Run(final, own.path / "run", Permission(overwrite=True), inputs, material.scoring), material)
        write_page(own.path / "run" / "phone")
        own.install(own.path / "run" / "phone", strangers, FILE_NAME)
    return output


def _write(run: Run, material: Material) -> None:
    """Run the steps that write the folder.

    Raises:
        GateError: If a gate failed, with what the user must know of its rows.
    """
    try:
        run.execute()
    except GateError as error:
        chose = len(material.choosing.rows.examples)
        why = (
            f"The files were inside on the {chose:,} rows that chose them. These gates are of the {material.kept_apart:,} rows that chose "
            "nothing: give more rows, or a wider --budget."
        )
        raise GateError([*error.failures, why]) from error


def _made_from(material: Material, asked: Asked, inputs: Inputs) -> str:
    """Digest of everything that decides the search."""
    return sha256_json(
        [
            asked.limits.set_limits,
            inputs.recipe.answer.model_dump(mode="json", include={*SURE}),
            list(asked.schemes),
            inputs.recipe.quantize.calibration,
            inputs.model.digest,
            inputs.ready_digests,
            material.calibration_digest,
            material.choosing_digest,
            [e.digest for e in material.scoring.splits["eval"].examples],
            installed(),
        ]
    )


def _verified(recipe: Recipe, limits: BudgetSection) -> VerifySection:
    """The gates of the folder: on the rows that had no part in the choice, nothing may lose more than the budget allows."""
    return recipe.verify.model_copy(update={"max_drop": 1.0 if limits.max_drop is None else limits.max_drop})


def _search(material: Material, asked: Asked, own: Workspace) -> list[Finding]:
    """Search, and leave nothing but the figures.

    Raises:
        GateError: If a format has no file inside.
    """
    findings = search(material, asked.limits, asked.schemes, own.path)
    check_inside(findings, asked.limits, "--format ")
    return findings


def _rows(material: Material, asked: Asked) -> str:
    """Which rows chose and which scored."""
    assert asked.options.data is not None
    chose, name = len(material.choosing.rows.examples), Path(asked.options.data.title).name
    scored = len(material.scoring.splits["eval"].examples)
    return f"{chose:,} rows of {name} chose; its other {scored:,} rows chose nothing, and all scores of the folder are of these."
