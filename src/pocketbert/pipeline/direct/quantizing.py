"""`quantize`: the files of an artefact folder exported as they were, and smaller ones made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from pocketbert.core.artefacts import Artefacts, ModelRecord, artefact_folder, read_artefacts
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import CoremlSection
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.exporting import export_model
from pocketbert.pipeline.export_recipe import option_problems
from pocketbert.pipeline.options import AnswerOptions, ExportOptions
from pocketbert.pipeline.run import RECIPE_FILE


def quantize_folder(
    model: Path,
    output: Path,
    *,
    schemes: Sequence[str],
    runtimes: Sequence[str],
    calibrate: DataSource | None,
    overwrite: bool,
) -> Path:
    """See `pocketbert.api.quantize`."""
    model = artefact_folder(model)
    artefacts = read_artefacts(model)
    exported = [r for r in artefacts.models() if r.scheme in (Scheme.FP32, FORMATS[r.format].base)]
    options = replace(_as_exported(model, artefacts, exported, schemes, runtimes), calibrate=calibrate)
    problems = option_problems(str(model), options)
    if not exported:
        problems.append(Problem(str(model), "has no fp32 file (Core ML: fp16) to quantize."))
    elif not problems and all(FORMATS[Format(f)].smaller(Scheme(s)) is None for f in options.formats for s in schemes):
        what = f"{' and '.join(map(repr, schemes))} makes no further file of {', '.join(options.formats)}."
        problems.append(Problem("--scheme", what, "Choose another scheme, e.g. int8 or small."))
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
    if any(r.confidence is not None and r.confidence.fitted_rows for r in exported):
        say(
            f"  {model} has temperatures that were fitted on rows of its run; the new folder has none, because a quantized file needs "
            "its own: its probabilities are those of a plain softmax. A recipe with data.holdout fits one for each file."
        )
    ready = {r.path: model / r.path for r in exported}
    return export_model(str(model), output, options, overwrite=overwrite, ready=ready)


def _given(exported: Sequence[ModelRecord]) -> dict[str, float]:
    """The temperature that a user set for all files; empty where there is none, or where each file has a fitted one."""
    given = {r.temperature for r in exported if r.confidence is None or not r.confidence.fitted_rows}
    return {"temperature": given.pop()} if len(given) == 1 and given != {1.0} else {}


def _as_exported(
    model: Path,
    artefacts: Artefacts,
    exported: Sequence[ModelRecord],
    schemes: Sequence[str],
    runtimes: Sequence[str],
) -> ExportOptions:
    """Options that export the files of an artefact folder as they were exported, and quantize them."""
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
