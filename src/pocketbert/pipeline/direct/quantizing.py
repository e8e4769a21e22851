"""Quantize: a new artefact folder with the exported files of an existing one and smaller files made of them.

`quantize_folder` is the command. With schemes it runs the steps of an export that starts from the finished files;
with a budget it first searches for the best file of each format and then runs the steps for the chosen schemes, in
one workspace that a killed process leaves for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pocketbert.core.artefacts import (
    ARTEFACTS_FILE,
    Artefacts,
    ModelRecord,
    find_artefact_folder,
    list_foreign_files,
    read_artefacts,
)
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import remove_new_folders_on_error, resolve_output_folder
from pocketbert.core.disk.files import sha256_json
from pocketbert.core.disk.workspace import finish_interrupted, open_workspace, remove_interrupted
from pocketbert.core.errors import GateError, InputError, Problem, suggest_allowed
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import installed_versions
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.budget_search import (
    SearchInputs,
    read_search_inputs,
    require_chosen_files,
    search_files,
    search_record,
)
from pocketbert.pipeline.direct.choosing import chosen_files
from pocketbert.pipeline.direct.exporting import (
    export_model,
    export_recipe,
    naming_flags,
    option_problems,
    options_of_folder,
    skip_finished,
    unread_calibration,
)
from pocketbert.pipeline.doctor import require_for
from pocketbert.pipeline.formats.base import RunModel
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import check_threshold
from pocketbert.pipeline.options import CONFIDENCE_KEYS, AnswerOptions, BudgetOptions, CalibrationOptions, ExportOptions
from pocketbert.pipeline.phone.recording import write_page
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission


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
    """Write the exported files of an artefact folder and new quantized ones; see `pocketbert.api.quantize`.

    Args:
        model: The existing artefact folder, which is not changed.
        output: The folder to write, which is returned. Quantized files that `model` has already are not copied to it.
        schemes: Schemes of the quantized files; None for int8, or with a budget for all as candidates.
        runtimes: Runtimes for each of which one more file is made, e.g. ``openvino``. A budget allows none.
        calibration: Rows on which static schemes measure activation ranges, and a budget ranks candidates.
        budget: Limits within which the best file of each format is chosen; None to make all `schemes`.
        overwrite: Whether an existing artefact folder may be replaced.
        roles: Schemes of single roles or weights, which replace `schemes` there. A budget allows none.

    Raises:
        InputError: Listing every problem of folder and options, or if `output` holds files that may not be replaced.
        GateError: If a format has no file inside the budget, or a written file fails a gate.
    """
    model = find_artefact_folder(model)
    artefacts = read_artefacts(model)
    exported = [r for r in artefacts.models() if r.scheme in (Scheme.FP32, FORMATS[r.format].base)]
    problems: list[Problem] = []
    if budget is not None:
        if roles:
            problems.append(
                Problem("--roles", "a budget chooses among whole schemes.", "Leave --roles or --budget out.")
            )
        problems += _budget_problems(budget, exported, schemes, runtimes, calibration.rows, artefacts.heads)
        exported = [r for r in exported if budget.formats is None or r.format in budget.formats] or exported
        options = options_of_folder(model, artefacts, exported, ["fp32"], [])
        answer = {**options.answer, **budget.answer}
        options = replace(options, data=budget.data, answer=cast(AnswerOptions, answer))
    else:
        options = options_of_folder(model, artefacts, exported, ["int8"] if schemes is None else schemes, runtimes)
        # a folder without held-out rows cannot fit thresholds for its new files
        answer = {k: v for k, v in options.answer.items() if k != "unknown" or not isinstance(v, dict)}
        options = replace(options, roles=roles, answer=cast(AnswerOptions, answer))
    options = replace(options, calibrate=calibration.rows, calibration=calibration.method)
    problems += unread_calibration(options) if budget is None else []
    problems += option_problems(str(model), options)
    if not exported:
        problems.append(Problem(str(model), "has no fp32 file (Core ML: fp16) to quantize."))
    elif not problems and budget is None:
        made = [FORMATS[Format(f)].smaller(Scheme(s)) for f in options.formats for s in options.schemes]
        if not any(made):
            titles = " and ".join(map(repr, options.schemes))
            what = f"{titles} makes no further file of {', '.join(options.formats)}."
            problems.append(Problem("--scheme", what, "Choose another scheme, e.g. int8 or small."))
    if not (model / "model.safetensors").is_file():
        what = "has no model.safetensors to compare the quantized file with."
        problems.append(Problem(str(model), what, "Export the model again: pocketbert export -m MODEL -o FOLDER"))
    if problems:
        raise InputError(problems)
    ready = {r.path: model / r.path for r in exported}
    if budget is not None:
        plain = {r.format: model / r.path for r in exported if r.plain}
        bases = {Format(f): plain[Format(f)] for f in options.formats if f in plain}
        request = _BudgetRequest(budget.limits, [Scheme(s) for s in schemes or ()], options, bases, ready)
        return _quantize_inside_budget(str(model), output, request, overwrite=overwrite)
    _note_lost_fits(model, artefacts, exported)
    return export_model(str(model), output, options, overwrite=overwrite, ready=ready)


def _note_lost_fits(model: Path, artefacts: Artefacts, exported: Sequence[ModelRecord]) -> None:
    """Print a note if temperatures or thresholds were fitted for files of the old folder, since the new folder gets none."""
    has_temperatures = any(r.confidence is not None and r.confidence.fitted_rows for r in exported)
    lost = ["temperatures"] if has_temperatures else []
    lost += ["thresholds for unknown answers"] if artefacts.processing.unknown_accuracy is not None else []
    if lost:
        softmax = "its probabilities are those of a plain softmax. " if has_temperatures else ""
        print_note(
            f"  {model} has {' and '.join(lost)} that were fitted on rows of its run; the new folder has none, because a quantized file "
            f"needs its own: {softmax}A recipe with data.holdout fits them for each file, and so does --budget, on a half of --data."
        )


# --- inside a budget --------------------------------------------------------------------------------------------------

_WORK = "search inside a budget"
"""Name of the workspace's content, by which a later search finds the figures of an interrupted one."""


@dataclass(frozen=True)
class _BudgetRequest:
    """A request to choose quantized files inside a budget.

    Attributes:
        limits: Limits on size, loss of accuracy and latency.
        schemes: Schemes of the quantized files to consider; empty for all.
        options: Options with which the folder's files were exported, with the evaluation and the calibration rows.
        bases: Path of the exported file of each format.
        ready: All exported files, by their path in the folder.
    """

    limits: BudgetSection
    schemes: Sequence[Scheme]
    options: ExportOptions
    bases: Mapping[Format, Path]
    ready: Mapping[str, Path]


def _budget_problems(
    budget: BudgetOptions,
    exported: Sequence[ModelRecord],
    schemes: Sequence[str] | None,
    runtimes: Sequence[str],
    calibrate: DataSource | None,
    heads: Mapping[str, str] | None,
) -> list[Problem]:
    """Return what is wrong with the command-line options of a budget search, by flag; empty if nothing is.

    A budget search chooses quantized files within limits on size, loss and latency. No data file is read here.

    Args:
        budget: Options of the search.
        exported: Records of the folder's exported files.
        schemes: Schemes that the user named; None for all.
        runtimes: Runtimes that the user named; a budget allows none.
        calibrate: Calibration rows, which a budget needs.
        heads: The model's heads, if it has several.
    """
    problems, existing = [], list(dict.fromkeys(r.format.value for r in exported if r.plain))
    if heads is not None:
        what = "chooses files by the score of one head, and the folder has several."
        problems.append(Problem("--budget", what, "Name the schemes to write: --scheme int8,small"))
    if budget.data is None:
        what = "a budget needs labelled rows to score candidates on."
        problems.append(Problem("--data", what, "Give --data dev.csv"))
    if calibrate is None:
        what = "a budget needs training rows to rank candidates and to measure ranges on; none may be in --data."
        problems.append(Problem("--calibrate", what, "Give --calibrate train.csv"))
    if runtimes:
        what = f"{', '.join(runtimes)}: a budget chooses among files for any runtime."
        problems.append(Problem("--runtime", what, "Leave it out, and add that file afterwards."))
    for name in budget.formats or ():
        if name not in existing:
            what = f"the folder has no exported {name} file, only {', '.join(existing)}."
            problems.append(Problem("--format", what))
    formats = [Format(f) for f in existing if budget.formats is None or f in budget.formats]
    problems += _scheme_problems(schemes, formats or [Format(f) for f in existing])
    untimed = [f for f in formats if not FORMATS[f].timed]
    if budget.limits.max_p90_ms is not None and untimed:
        what = f"{', '.join(untimed)} files cannot be timed on this machine."
        problems.append(Problem("--budget max_p90_ms", what, "Leave the limit out, or choose others with --format."))
    return problems


def _scheme_problems(schemes: Sequence[str] | None, formats: Sequence[Format]) -> list[Problem]:
    """Return what is wrong with the schemes that a user named; empty if nothing is, or if none was named.

    There is a problem for each scheme that no format can store; if there is none, for each format that can store none of the schemes.
    """
    if schemes is None:
        return []
    names = {f: [s.value for s in Scheme if FORMATS[f].takes(s) and FORMATS[f].smaller(s)] for f in formats}
    every = sorted({name for known in names.values() for name in known})
    unknown = [name for name in schemes if name not in every]
    if unknown:
        return [
            Problem("--scheme", f"'{name}' is no candidate here; {suggest_allowed(name, every)}.") for name in unknown
        ]
    without = [f for f in formats if not set(names[f]) & set(schemes)]
    fix = "Add one of them, or choose other formats with --format."
    return [Problem("--scheme", f"leaves no candidate of {f}, which has {', '.join(names[f])}.", fix) for f in without]


def _quantize_inside_budget(model: str, output: Path, request: _BudgetRequest, *, overwrite: bool) -> Path:
    """Choose the best quantized file of each format inside a budget, and write an artefact folder with them.

    If `output` was written by the same search before, nothing is done.

    Raises:
        GateError: If a format has no file inside the budget, or a chosen file fails on rows that were not used to
            choose it. No folder is written then; what was measured stays in the workspace.
    """
    limits = request.limits
    recipe, folder = export_recipe(model, request.options)
    require_for(recipe)
    output = resolve_output_folder(output, folder.path)
    finish_interrupted(output)
    inputs = Inputs(recipe, request.ready, folder)
    with naming_flags():
        search_inputs = read_search_inputs(RunModel(recipe, folder.path, folder, inputs.length), request.bases)
        check_threshold(recipe, search_inputs.scoring)
    made_from = _search_digest(search_inputs, request, inputs)
    if skip_finished(output, _was_made_from(output, made_from), overwrite):
        remove_interrupted(output, _WORK)
        return output
    with remove_new_folders_on_error(output), open_workspace(output, resume=_WORK) as work:
        if work.resumed:
            print_note(f"continuing the interrupted search in {work.path}")
        results = search_files(search_inputs, limits, request.schemes, work.path)
        require_chosen_files(results, limits, "--format ")
        section = recipe.quantize.choosing(chosen_files([r.chosen for r in results if r.chosen is not None]))
        # on the rows that had no part in the choice, no file may lose more than the budget allows
        max_drop = 1.0 if limits.max_drop is None else limits.max_drop
        verify = recipe.verify.model_copy(update={"max_drop": max_drop})
        final = recipe.model_copy(update={"quantize": section, "verify": verify})
        record = search_record(results, search_inputs, limits, _describe_rows(search_inputs, request.options))
        record = record.model_copy(update={"made_from": made_from})
        with naming_flags():
            inputs = Inputs(final, request.ready, folder, record)
            _execute(
                Run(final, work.path / "run", Permission(overwrite=True), inputs, search_inputs.scoring), search_inputs
            )
        write_page(work.path / "run" / "phone")
        work.install(work.path / "run" / "phone", list_foreign_files, ARTEFACTS_FILE)
    return output


def _was_made_from(output: Path, made_from: str) -> bool:
    """Return whether `output` is an artefact folder that a search with the same digest of inputs has written."""
    with suppress(InputError):
        if (output / ARTEFACTS_FILE).is_file():
            search = read_artefacts(output).search
            return search is not None and search.made_from == made_from
    return False


def _search_digest(search_inputs: SearchInputs, request: _BudgetRequest, inputs: Inputs) -> str:
    """Return a digest of everything that a budget search depends on: limits, options, files, rows and versions."""
    return sha256_json(
        [
            request.limits.set_limits,
            inputs.recipe.answer.model_dump(mode="json", include={*CONFIDENCE_KEYS}),
            list(request.schemes),
            inputs.recipe.quantize.calibration,
            inputs.model.digest,
            inputs.all_ready_digests,
            search_inputs.calibration_digest,
            search_inputs.choosing_digest,
            [e.digest for e in search_inputs.scoring.splits["eval"].examples],
            installed_versions(),
        ]
    )


def _execute(run: Run, search_inputs: SearchInputs) -> None:
    """Run the steps that write the artefact folder.

    Raises:
        GateError: If a gate failed, with a sentence on the rows on which the gates are measured.
    """
    try:
        run.execute()
    except GateError as error:
        chose = len(search_inputs.choosing.rows.examples)
        why = (
            f"The files were inside on the {chose:,} rows that chose them. These gates are of the {search_inputs.kept_apart:,} rows "
            "that chose nothing: give more rows, or a wider --budget."
        )
        raise GateError([*error.failures, why]) from error


def _describe_rows(search_inputs: SearchInputs, options: ExportOptions) -> str:
    """Return a sentence on how many rows chose files and how many are scored."""
    assert options.data is not None
    chose, name = len(search_inputs.choosing.rows.examples), Path(options.data.title).name
    scored = len(search_inputs.scoring.splits["eval"].examples)
    return f"{chose:,} rows of {name} chose; its other {scored:,} rows chose nothing, and all scores of the folder are of these."
