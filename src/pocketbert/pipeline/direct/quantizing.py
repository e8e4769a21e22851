"""`quantize`: the files of an artefact folder exported as they were, and smaller ones made of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pocketbert.core.artefacts import (
    FILE_NAME,
    Artefacts,
    ModelRecord,
    Sensitivities,
    artefact_folder,
    read_artefacts,
    strangers,
)
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import folder_destination, leaving_nothing
from pocketbert.core.disk.files import sha256_json
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.disk.workspace import Workspace, finish_interrupted, remove_interrupted, workspace
from pocketbert.core.errors import GateError, InputError, Problem, nearest
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.progress import say
from pocketbert.core.host.system import installed
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import CoremlSection, Recipe, VerifySection
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.exporting import (
    export_model,
    export_recipe,
    is_made,
    naming_flags,
    option_problems,
    unread_calibration,
)
from pocketbert.pipeline.direct.search import (
    Finding,
    Material,
    check_inside,
    chosen_files,
    material_of,
    search,
    told_of,
)
from pocketbert.pipeline.direct.search.candidates import Bench, Ledger, Sources, sensitivity
from pocketbert.pipeline.direct.search.searching import every_candidate
from pocketbert.pipeline.doctor import require_for
from pocketbert.pipeline.formats.base import ModelFile, RunModel
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import check_threshold, load_data
from pocketbert.pipeline.options import CONFIDENCE_KEYS, AnswerOptions, BudgetOptions, CalibrationOptions, ExportOptions
from pocketbert.pipeline.phone.recording import record_sensitivities, write_page
from pocketbert.pipeline.run import RECIPE_FILE, Run
from pocketbert.pipeline.run_folder import Permission

# --- budgeting ---
# `quantize` inside a budget: a search, then the ordinary steps for what it chose, in one workspace that a kill leaves.


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
            inputs.recipe.answer.model_dump(mode="json", include={*CONFIDENCE_KEYS}),
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


def quantize_folder(
    model: Path,
    output: Path,
    schemes: Sequence[str] | None,
    runtimes: Sequence[str],
    calibration: CalibrationOptions,
    budget: BudgetOptions | None,
    overwrite: bool,
    roles: Mapping[str, str],
) -> Path:
    """See `pocketbert.api.quantize`."""
    model = artefact_folder(model)
    artefacts = read_artefacts(model)
    exported = [r for r in artefacts.models() if r.scheme in (Scheme.FP32, FORMATS[r.format].base)]
    problems: list[Problem] = []
    calibrate, method = calibration.rows, calibration.method
    if budget is not None:
        if roles:
            problems.append(
                Problem("--roles", "a budget chooses among whole schemes.", "Leave --roles or --budget out.")
            )
        problems += budget_problems(budget, exported, schemes, runtimes, calibrate)
        exported = [r for r in exported if budget.formats is None or r.format in budget.formats] or exported
        options = as_exported(model, artefacts, exported, ["fp32"], [])
        answer = cast(AnswerOptions, {**options.answer, **budget.answer})
        options = replace(options, calibrate=calibrate, calibration=method, data=budget.data, answer=answer)
    else:
        wanted = ["int8"] if schemes is None else schemes
        options = as_exported(model, artefacts, exported, wanted, runtimes)
        answer = _without_fits(options.answer)
        options = replace(options, calibrate=calibrate, calibration=method, roles=roles, answer=answer)
        problems += unread_calibration(options)
    problems += option_problems(str(model), options)
    if not exported:
        problems.append(Problem(str(model), "has no fp32 file (Core ML: fp16) to quantize."))
    elif not problems and budget is None:
        problems += _nothing_to_make(options)
    if not (model / "model.safetensors").is_file():
        problems.append(
            Problem(
                str(model),
                "has no model.safetensors to compare the quantized file with.",
                "Export the model again: pocketbert export -m MODEL -o FOLDER",
            )
        )
    if problems:
        raise InputError(problems)
    if budget is None:
        _say_lost(model, artefacts, exported)
    ready = {r.path: model / r.path for r in exported}
    if budget is not None:
        plain = {r.format: model / r.path for r in exported if r.plain}
        bases = {Format(f): plain[Format(f)] for f in options.formats if f in plain}
        asked = Asked(budget.limits, [Scheme(s) for s in schemes or ()], options, bases, ready)
        return quantize_inside(str(model), output, asked, overwrite=overwrite)
    return export_model(str(model), output, options, overwrite=overwrite, ready=ready)


def _without_fits(answer: AnswerOptions) -> AnswerOptions:
    """Answers as a folder without held-out rows has them: no threshold can be fitted for its new files."""
    kept = {key: value for key, value in answer.items() if key != "unknown" or not isinstance(value, dict)}
    return cast(AnswerOptions, kept)


def _say_lost(model: Path, artefacts: Artefacts, exported: Sequence[ModelRecord]) -> None:
    """Tell what was fitted for the files of a folder and cannot be fitted for the new ones: there are no rows."""
    fitted = any(r.confidence is not None and r.confidence.fitted_rows for r in exported)
    lost = ["temperatures"] if fitted else []
    lost += ["thresholds for unknown answers"] if artefacts.processing.unknown_accuracy is not None else []
    if lost:
        softmax = "its probabilities are those of a plain softmax. " if fitted else ""
        say(
            f"  {model} has {' and '.join(lost)} that were fitted on rows of its run; the new folder has none, because a quantized file "
            f"needs its own: {softmax}A recipe with data.holdout fits them for each file, and so does --budget, on a half of --data."
        )


def _nothing_to_make(options: ExportOptions) -> list[Problem]:
    """The problem of schemes that no format has a further file of."""
    schemes = options.schemes
    if any(FORMATS[Format(f)].smaller(Scheme(s)) is not None for f in options.formats for s in schemes):
        return []
    what = f"{' and '.join(map(repr, schemes))} makes no further file of {', '.join(options.formats)}."
    return [Problem("--scheme", what, "Choose another scheme, e.g. int8 or small.")]


def _given(exported: Sequence[ModelRecord]) -> dict[str, float]:
    """The temperature that a user set for all files; empty where there is none, or where each file has a fitted one."""
    given = {r.temperature for r in exported if r.confidence is None or not r.confidence.fitted_rows}
    return {"temperature": given.pop()} if len(given) == 1 and given != {1.0} else {}


def as_exported(
    model: Path,
    artefacts: Artefacts,
    exported: Sequence[ModelRecord],
    schemes: Sequence[str],
    runtimes: Sequence[str],
) -> ExportOptions:
    """Return options that export the files of an artefact folder as they were exported, and quantize them.

    Args:
        model: The folder.
        artefacts: Its list.
        exported: The records of its exported files.
        schemes: Schemes of the smaller files.
        runtimes: Runtimes of further files.
    """
    resolved = model / RECIPE_FILE
    packages = load_recipe(resolved).export.coreml if resolved.is_file() else CoremlSection()
    defaults = ExportOptions()
    opened = artefacts.default_model().format if exported else None
    # the format of the default file comes first, wherever the list of files has it
    formats = [str(r.format) for r in sorted(exported, key=lambda r: r.format is not opened)]
    return ExportOptions(
        task=artefacts.task,
        form=artefacts.form,
        formats=list(dict.fromkeys(formats)) or defaults.formats,
        schemes=schemes,
        runtimes=runtimes,
        lengths=sorted({n for r in exported if r.signature for n in r.signature.lengths}) or defaults.lengths,
        max_length=artefacts.processing.max_length,
        ios=packages.ios,
        shapes=packages.shapes,
        precision=packages.precision,
        layout=packages.layout,
        answer=cast(AnswerOptions, {**artefacts.processing.settings().model_dump(mode="json"), **_given(exported)}),
    )


# --- sensitivity ---
# `sensitivity`: which roles of an exported model a scheme costs most, measured with real files.


def measure_sensitivity(
    model: Path,
    calibration: CalibrationOptions,
    schemes: Sequence[str] | None,
    record: bool,
) -> Sensitivities:
    """See `pocketbert.api.sensitivity`."""
    model = artefact_folder(model)
    artefacts = read_artefacts(model)
    exported = [r for r in artefacts.models() if r.plain and r.scheme in (Scheme.FP32, FORMATS[r.format].base)]
    formats = list(dict.fromkeys(r.format for r in exported))
    there = {(r.format, r.scheme) for r in artefacts.models() if r.plain}
    files = _files(formats, schemes, there)
    problems = [] if exported else [Problem(str(model), "has no fp32 file (Core ML: fp16) to quantize.")]
    if calibration.rows is None:
        what = "is missing: files are compared on training rows, and static schemes measure ranges on them."
        problems.append(Problem("--calibrate", what, "Give --calibrate train.csv"))
    if schemes is not None and exported and not files:
        known = ", ".join(dict.fromkeys(f.scheme.value for f in _files(formats, list(Scheme), there)))
        what = f"{', '.join(schemes)}: no format of the folder has such a file, only {known}."
        problems.append(Problem("--scheme", what, "Choose one of these."))
    if problems:
        raise InputError(problems)
    options = as_exported(model, artefacts, exported, ["fp32"], [])
    options = replace(options, calibrate=calibration.rows, calibration=calibration.method)
    recipe, folder = export_recipe(str(model), options)
    require_for(recipe)
    inputs = Inputs(recipe, {}, folder)
    with naming_flags():
        run = RunModel(recipe, folder.path, folder, inputs.length)
        rows = load_data(recipe, folder).calibration(run.tokenizer)
    sources = Sources(run, {r.format: model / r.path for r in exported}, rows)
    found = []
    with temporary_folder(Path(tempfile.gettempdir())) as work:
        ledger = Ledger(work / "figures.json")
        for format in formats:
            bench = Bench(sources, format, work, ledger)
            say(f"{format}: one role in at a time, {len(rows)} calibration rows")
            found += [sensitivity(bench, f) for f in files if f.format is format]
    made = Sensitivities(rows=len(rows), machine=machine().summary, schemes=found)
    if record:
        record_sensitivities(model, made)
    return made


def _files(
    formats: Sequence[Format], schemes: Sequence[str] | None, there: set[tuple[Format, Scheme]]
) -> list[ModelFile]:
    """The files to measure: those of the schemes, as each format has them; without any, those that the folder has.

    A folder without a smaller file has the default scheme measured.
    """
    every = [f for format in formats for f in every_candidate(format)]
    if schemes is None:
        own = [f for f in every if (f.format, f.scheme) in there]
        return own or _files(formats, [Scheme.INT8], there)
    wanted = [Scheme(s) for s in schemes if s in set(Scheme)]
    return [
        f for f in every if any(FORMATS[f.format].takes(s) and FORMATS[f.format].smaller(s) is f.scheme for s in wanted)
    ]
