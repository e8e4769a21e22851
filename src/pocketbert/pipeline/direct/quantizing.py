"""`quantize`: the files of an artefact folder exported as they were, and smaller ones made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from pocketbert.core.artefacts import Artefacts, ModelRecord, artefact_folder, read_artefacts
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say
from pocketbert.core.recipe.export import CoremlSection
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.budgeting import Asked, budget_problems, quantize_inside
from pocketbert.pipeline.direct.exporting import export_model
from pocketbert.pipeline.export_recipe import option_problems, unread_calibration
from pocketbert.pipeline.options import AnswerOptions, BudgetOptions, CalibrationOptions, ExportOptions
from pocketbert.pipeline.run import RECIPE_FILE


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
