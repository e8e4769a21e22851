"""Sensitivity: which roles of a model lose most when they are quantized, measured with real files.

`measure_sensitivity` is the command: for each scheme it writes files in which one role alone is quantized and
compares them with the exported file (`measure_role_sensitivity`). A budget search uses the same figures in
`mixed_candidates`: files that leave the most sensitive roles float, with their predicted size and error.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pocketbert.core.artefacts import RoleError, Sensitivities, Sensitivity, find_artefact_folder, read_artefacts
from pocketbert.core.disk.files import path_bytes
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.progress import print_note
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.pipeline.direct.candidates import (
    CandidateFiles,
    CandidateInputs,
    CandidateSpec,
    FigureCache,
    candidate_files,
)
from pocketbert.pipeline.direct.exporting import export_recipe, naming_flags, options_of_folder
from pocketbert.pipeline.doctor import require_for
from pocketbert.pipeline.formats.base import ModelFile, RunModel
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import load_data
from pocketbert.pipeline.options import CalibrationOptions
from pocketbert.pipeline.phone.recording import record_sensitivities

_SIZE_MARGIN = 1.02
"""A predicted size may be this much too large: the savings of single roles add up to within one per cent."""


def measure_sensitivity(
    model: Path,
    calibration: CalibrationOptions,
    schemes: Sequence[str] | None,
    record: bool,
) -> Sensitivities:
    """Measure which roles of a model lose most when quantized, per scheme; see `pocketbert.api.sensitivity`.

    A role is a place of weights in a layer, such as query or ffn_down.

    Args:
        model: The artefact folder.
        calibration: Rows on which quantized files are compared with the exported one.
        schemes: Schemes to measure; None for those of the folder's quantized files, or int8 if it has none.
        record: Whether to write the measured errors into the folder.

    Raises:
        InputError: If there are no rows or no exported file, no format has any of the named schemes, or the model has several heads.
    """
    model = find_artefact_folder(model)
    artefacts = read_artefacts(model)
    exported = [r for r in artefacts.models() if r.plain and r.scheme in (Scheme.FP32, FORMATS[r.format].base)]
    formats = list(dict.fromkeys(r.format for r in exported))
    existing = {(r.format, r.scheme) for r in artefacts.models() if r.plain}
    files = _files_to_measure(formats, schemes, existing)
    if artefacts.heads is not None:
        what = "has several heads; sensitivity is measured for one."
        raise InputError(
            Problem(str(model), what, "Compare whole files instead: pocketbert verify -m FOLDER --data FILE")
        )
    problems = [] if exported else [Problem(str(model), "has no fp32 file (Core ML: fp16) to quantize.")]
    if calibration.rows is None:
        what = "is missing: files are compared on training rows, and static schemes measure ranges on them."
        problems.append(Problem("--calibrate", what, "Give --calibrate train.csv"))
    if schemes is not None and exported and not files:
        known = ", ".join(dict.fromkeys(f.scheme.value for f in _files_to_measure(formats, list(Scheme), existing)))
        what = f"{', '.join(schemes)}: no format of the folder has such a file, only {known}."
        problems.append(Problem("--scheme", what, "Choose one of these."))
    if problems:
        raise InputError(problems)
    options = options_of_folder(model, artefacts, exported, ["fp32"], [])
    options = replace(options, calibrate=calibration.rows, calibration=calibration.method)
    recipe, folder = export_recipe(str(model), options)
    require_for(recipe)
    with naming_flags():
        run_model = RunModel(recipe, folder.path, folder, Inputs(recipe, {}, folder).length)
        rows = load_data(recipe, folder).calibration(run_model.tokenizer)
    inputs = CandidateInputs(run_model, {r.format: model / r.path for r in exported}, rows)
    records = []
    with temporary_folder(Path(tempfile.gettempdir())) as work:
        cache = FigureCache(work / "figures.json")
        for format in formats:
            candidates = CandidateFiles(inputs, format, work, cache)
            print_note(f"{format}: one role in at a time, {len(rows)} calibration rows")
            records += [measure_role_sensitivity(candidates, f) for f in files if f.format is format]
    result = Sensitivities(rows=len(rows), machine=describe_machine().summary, schemes=records)
    if record:
        record_sensitivities(model, result)
    return result


def _files_to_measure(
    formats: Sequence[Format], schemes: Sequence[str] | None, existing: set[tuple[Format, Scheme]]
) -> list[ModelFile]:
    """List the quantized files to measure, for each format and scheme.

    Args:
        formats: The formats.
        schemes: Names of the schemes; None for those that the folder has, or int8 if it has none.
        existing: The formats and schemes of the folder's files.
    """
    every = [f for format in formats for f in candidate_files(format)]
    if schemes is None:
        own = [f for f in every if (f.format, f.scheme) in existing]
        return own or _files_to_measure(formats, [Scheme.INT8], existing)
    known = [Scheme(s) for s in schemes if s in set(Scheme)]
    return [
        f for f in every if any(FORMATS[f.format].takes(s) and FORMATS[f.format].smaller(s) is f.scheme for s in known)
    ]


def measure_role_sensitivity(candidates: CandidateFiles, file: ModelFile) -> Sensitivity:
    """Quantize one role of the weights at a time, and measure each file's distance from the exported file.

    A role is a place of weights in a layer, such as query or ffn_down. Quantizing all roles but one instead would show
    little: as long as another role dominates the error, leaving out one role hardly lowers it.

    Args:
        candidates: Object that writes candidate files and compares them with the exported file.
        file: Format and scheme of the files.

    Returns:
        The error of each role and of all roles together. A role whose file cannot be written has a note instead of an
        error. If the quantizer leaves no role out, or the file with all roles cannot be written, there is only a note.
    """
    whole = CandidateSpec(file)
    row, record = whole.row, Sensitivity(format=file.format, scheme=file.scheme)
    if not row.selective:
        return record.model_copy(update={"note": f"the quantizer of {row.title} leaves no role out"})
    smallest = row.simulation.small if row.simulation is not None else 0
    roles = [r for r in Role if any(w.role is r and w.numbers > smallest for w in candidates.weights)]
    written = candidates.write(whole)
    if written.failure:
        return record.model_copy(update={"note": written.failure})
    exported_bytes, errors = path_bytes(candidates.source), []
    for role in roles:
        others = dict.fromkeys([*roles, *(w.role for w in candidates.weights)])
        alone = CandidateSpec(file, tuple(r for r in others if r is not role))
        outcome = candidates.write(alone)
        if outcome.failure:
            errors.append(RoleError(role=role, note=outcome.failure))
            continue
        rel = candidates.rank(alone).rel
        print_note(f"  {file.path}, only {role}: RMS difference {rel:.3g} of the spread")
        errors.append(RoleError(role=role, rel=rel, saved=exported_bytes - outcome.bytes))
    record = record.model_copy(
        update={
            "roles": sorted(errors, key=lambda e: math.inf if e.rel is None else -e.rel),
            "whole": candidates.rank(whole).rel,
            "saved": exported_bytes - written.bytes,
        }
    )
    predicted = "" if record.predicted is None else f", {record.predicted:.3g} predicted from its roles"
    print_note(f"  {file.path}: RMS difference {record.whole:.3g} of the spread{predicted}")
    return record


@dataclass(frozen=True)
class MixedCandidate:
    """A quantized file that leaves some roles float, with its predicted size and error.

    Attributes:
        spec: Scheme of the file, and the roles that stay float.
        bytes: Predicted size.
        rel: Predicted RMS difference from the exported file.
    """

    spec: CandidateSpec
    bytes: int
    rel: float

    def beats(self, other: MixedCandidate) -> bool:
        """Return whether this file is predicted to be better than another in size or error, and worse in neither."""
        mine, theirs = (self.bytes, self.rel), (other.bytes, other.rel)
        return mine != theirs and self.bytes <= other.bytes and self.rel <= other.rel


def mixed_candidates(
    candidates: CandidateFiles, whole: Sequence[CandidateSpec], limit: float
) -> Iterator[MixedCandidate]:
    """Yield files to try in which the 1, 2, 3 ... most sensitive roles stay float, the smallest file first.

    The sensitivities of a scheme are measured only if its file with all roles quantized leaves room below the limit for
    one float role. A file is left out if another file with float roles, of any scheme, is predicted to be better.

    Args:
        candidates: Object that writes candidate files and compares them with the exported file.
        whole: Candidate files of the schemes, with all roles quantized.
        limit: Largest size in bytes.
    """
    mixed = list[MixedCandidate]()
    for spec in whole:
        if not spec.row.selective:
            continue
        size, estimated = candidates.write(spec).bytes, candidates.expected_bytes(spec)
        roles = dict.fromkeys(w.role for w in candidates.weights)
        least_growth = min(
            (candidates.expected_bytes(CandidateSpec(spec.file, (role,))) - estimated for role in roles), default=0
        )
        if size >= limit or size + least_growth > _SIZE_MARGIN * limit:
            continue
        sensitivity = measure_role_sensitivity(candidates, spec.file)
        order = [r.role for r in sensitivity.roles if r.rel is not None]
        for count in range(1, len(order)):
            left = tuple(r for r in Role if r in order[:count])
            rel, size = sensitivity.without(*left), size + sensitivity.roles[count - 1].saved
            if rel is not None and size <= _SIZE_MARGIN * limit:
                mixed.append(MixedCandidate(CandidateSpec(spec.file, left), size, rel))
    for candidate in sorted(mixed, key=lambda m: (m.bytes, m.rel)):
        if not any(other.beats(candidate) for other in mixed):
            yield candidate
