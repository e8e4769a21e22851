"""`quantize` inside a budget: a search, then the ordinary steps for what it chose, in one workspace that a kill leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME, BudgetSearch, Candidate, ModelRecord, read_artefacts, strangers
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.files import sha256_json, sha256_path
from pocketbert.core.disk.ownership import remove
from pocketbert.core.disk.workspace import Workspace, finish_interrupted, remove_interrupted, workspace
from pocketbert.core.errors import GateError, Problem, nearest
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.progress import say
from pocketbert.core.host.versions import installed
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.recipe.recipe import Recipe, VerifySection
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.finished import is_made
from pocketbert.pipeline.direct.search import (
    Finding,
    Ledger,
    Material,
    chosen_files,
    material_of,
    outside_lines,
    search,
)
from pocketbert.pipeline.direct.search.choosing import ACCURATE, SMALLEST
from pocketbert.pipeline.direct.search.workbench import FOLDER
from pocketbert.pipeline.export_recipe import export_recipe, naming_flags
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.options import BudgetOptions, ExportOptions
from pocketbert.pipeline.phone.recording import record_search
from pocketbert.pipeline.requirements import require_for
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission

_WORK = "search inside a budget"
"""What the workspace remembers, so that a later search finds its figures."""
_LEDGER = "figures.json"


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
    for name in schemes or ():
        takers = [f for f in there if name in FORMATS[Format(f)].schemes]
        if not takers:
            schemes_there = sorted({s.value for f in there for s in FORMATS[Format(f)].schemes})
            problems.append(Problem("--scheme", f"'{name}' is no candidate here; {nearest(name, schemes_there)}."))
    known = ", ".join(there)
    lost = [name for name in asked.formats or () if name not in there]
    problems += [Problem("--format", f"the folder has no exported {name} file, only {known}.") for name in lost]
    formats = [Format(f) for f in there if asked.formats is None or f in asked.formats]
    untimed = [f for f in formats if not FORMATS[f].timed]
    if asked.limits.max_p90_ms is not None and untimed:
        what = f"{', '.join(untimed)} files cannot be timed on this machine."
        problems.append(Problem("--budget max_p90_ms", what, "Leave the limit out, or choose others with --format."))
    return problems


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
    made_from = _made_from(material, asked, inputs)
    if is_made(output, lambda made: made.search is not None and made.search.made_from == made_from, overwrite):
        remove_interrupted(output, _WORK)
        return output
    with leaving_nothing(output), workspace(output, resume=_WORK) as own:
        if own.resumed:
            say(f"continuing the interrupted search in {own.path}")
        findings = _search(material, asked, own)
        chosen = {f.format: f.chosen.scheme for f in findings if f.chosen is not None}
        section = QuantizeSection(files=chosen_files(chosen))
        final = recipe.model_copy(update={"quantize": section, "verify": _verified(recipe, asked.limits)})
        with naming_flags():
            inputs = Inputs(final, asked.ready, folder)
            Run(final, own.path / "run", Permission(overwrite=True), inputs, material.scoring).execute()
        told = _told(material, asked, findings, made_from)
        record_search(own.path / "run" / "phone", _as_written(told, own.path / "run" / "phone"))
        own.install(own.path / "run" / "phone", strangers, FILE_NAME)
    return output


def _made_from(material: Material, asked: Asked, inputs: Inputs) -> str:
    """Digest of everything that decides the search."""
    return sha256_json(
        [
            asked.limits.set_limits,
            list(asked.schemes),
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
    findings = search(material, asked.limits, asked.schemes, own.path, Ledger(own.path / _LEDGER))
    remove(own.path / FOLDER)
    outside = [line for f in findings if f.chosen is None for line in outside_lines(f, asked.limits)]
    if outside:
        others = [f.format.value for f in findings if f.chosen is not None]
        if others:
            outside.append(f"Others have a file inside; for these only: --format {','.join(others)}")
        raise GateError([*outside, "No folder was written."])
    return findings


def _told(material: Material, asked: Asked, findings: Sequence[Finding], made_from: str) -> BudgetSearch:
    assert asked.options.data is not None
    return BudgetSearch(
        budget=asked.limits.set_limits,
        wins=SMALLEST if asked.limits.smallest_wins else ACCURATE,
        metric=findings[0].metric,
        ranked_on=len(material.calibration),
        chosen_on=len(material.choosing.rows.examples),
        scored_on=len(material.scoring.splits["eval"].examples),
        data=Path(asked.options.data.title).name,
        machine=machine().summary,
        candidates=[c for f in findings for c in f.candidates],
        made_from=made_from,
    )


def _as_written(told: BudgetSearch, folder: Path) -> BudgetSearch:
    """The search with the digests of the files that the folder has; a format may not write the same bytes twice."""
    listed = {r.path: sha256_path(folder / r.path) for r in read_artefacts(folder).models()}

    def renewed(candidate: Candidate) -> Candidate:
        digest = listed.get(candidate.path)
        return candidate.model_copy(update={"sha256": digest}) if candidate.chosen and digest else candidate

    return told.model_copy(update={"candidates": [renewed(c) for c in told.candidates]})
