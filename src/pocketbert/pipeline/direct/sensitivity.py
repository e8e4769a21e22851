"""`sensitivity`: which roles of an exported model a scheme costs most, measured with real files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pocketbert.core.artefacts import Sensitivities, artefact_folder, read_artefacts
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.progress import say
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.quantizing import as_exported
from pocketbert.pipeline.direct.search.bench import Bench
from pocketbert.pipeline.direct.search.ledger import Ledger
from pocketbert.pipeline.direct.search.one_role import sensitivity
from pocketbert.pipeline.direct.search.sources import Sources
from pocketbert.pipeline.direct.search.workbench import every_candidate
from pocketbert.pipeline.export_recipe import export_recipe, naming_flags
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import load_data
from pocketbert.pipeline.options import CalibrationOptions
from pocketbert.pipeline.phone.recording import record_sensitivities
from pocketbert.pipeline.requirements import require_for


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
