"""Candidates: smaller files that may be made of an exported one. This module writes, sizes and ranks them.

`candidate_files` lists the files that a format's quantizers make, and a `CandidateSpec` names one of them, with the
roles that stay float. `CandidateFiles` estimates the size of such a file, writes it, and compares its answers with
those of the exported file on calibration rows. Every figure goes into a `FigureCache`, so that an interrupted search
measures nothing twice.

`pocketbert.pipeline.direct.sensitivity` and `pocketbert.pipeline.direct.budget_search` work with these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pocketbert.core.artefacts.search import candidate_name
from pocketbert.core.compare.evaluate import label_agreement, rms_error
from pocketbert.core.disk.files import path_bytes, read_json, sha256_json, sha256_path, write_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import GateError, InputError, MachineError
from pocketbert.core.families.weight_records import WeightRole
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.progress import report_waiting
from pocketbert.core.host.system import installed_versions
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.predictor import Matrix, join_texts, run_rows
from pocketbert.core.tasks import LabelKind
from pocketbert.core.types import Calibration, Format, Role
from pocketbert.pipeline.formats.base import ModelFile, RunModel, exported_file, format_place, quantized_file
from pocketbert.pipeline.formats.weight_roles import weights_in_file
from pocketbert.pipeline.make.model_files import quantization_plan
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from pocketbert.quantize.table import SchemeRow
    from pocketbert.quantize.weights import WeightUse

CANDIDATES_FOLDER = "candidates"
"""Folder of the written candidates in a workspace."""


def candidate_files(format: Format) -> list[ModelFile]:
    """List the quantized files that can be made of a format's exported file, one per scheme; none made for a single runtime."""
    from pocketbert.quantize import files  # noqa: F401  the back ends register their rows
    from pocketbert.quantize.table import list_rows

    rows = [r for r in list_rows() if r.format is format and r.runtime is None and r.write is not None]
    return [quantized_file(format, r.scheme) for r in rows if FORMATS[format].smaller(r.scheme) is r.scheme]


class Figure(BaseModel):
    """A measured value or record that `FigureCache` keeps. The name of its class is part of its key there."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


FigureT = TypeVar("FigureT", bound=Figure)


class FigureCache:
    """Measured values in a JSON file, each found by a digest of everything that it depends on.

    The file is saved after each new value.

    Args:
        path: The file; read if it exists. A file that cannot be read counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._figures: dict[str, object] = {}
        if path.is_file():
            try:
                content = read_json(path)
            except InputError:
                content = None  # the machine killed a process while it wrote; everything is measured again
            self._figures = dict(content) if isinstance(content, dict) else {}

    def recall(self, kind: type[FigureT], decides: object, measure: Callable[[], FigureT]) -> FigureT:
        """Return a measured value from the cache; if it is not there, call `measure`, save the result and return it.

        Args:
            kind: Class of the value.
            decides: Everything that the value depends on, such as digests of files and rows, as plain values.
            measure: Function that measures the value.
        """
        key = sha256_json([kind.__name__, decides])
        if key in self._figures:
            try:
                return kind.model_validate(self._figures[key])
            except ValidationError:
                del self._figures[key]  # another version wrote it
        figure = measure()
        self._figures[key] = json.loads(figure.model_dump_json())  # NaN as text, which reads back
        write_json(self.path, self._figures)
        return figure


@dataclass(frozen=True)
class CandidateSpec:
    """A quantized file that may be made: its format, its scheme, and the roles that stay float.

    Attributes:
        file: Format and scheme of the file.
        left: Roles (places of weights, such as query) that stay as they were exported, in the order of `Role`.
    """

    file: ModelFile
    left: tuple[Role, ...] = ()

    @property
    def name(self) -> str:
        """Name in records and messages: the path in the artefact folder and the roles that stay float."""
        return candidate_name(self.file.path, self.left)

    @property
    def row(self) -> SchemeRow:
        """Row of the scheme table that describes the file."""
        from pocketbert.quantize.table import find_row

        return find_row(self.file.format, self.file.scheme, self.file.runtime)


@dataclass(frozen=True)
class CandidateInputs:
    """The exported model of a search, its exported files, and the rows on which files are compared.

    Attributes:
        model: The exported model.
        bases: Path of the exported file of each format.
        calibration: Rows on which activation ranges are measured and candidates are ranked.
    """

    model: RunModel
    bases: Mapping[Format, Path]
    calibration: list[Encoded]

    @cached_property
    def calibration_digest(self) -> str:
        """Digest of the token ids of the calibration rows."""
        return sha256_json([row.ids.tolist() for row in self.calibration])


class Written(Figure):
    """The outcome of writing a candidate file.

    Attributes:
        sha256: Digest of the file; empty if it could not be written.
        bytes: Size of the file.
        failure: Why it could not be written, or why its content is wrong; empty for a sound one.
    """

    sha256: str = ""
    bytes: int = 0
    failure: str = ""


class Ranked(Figure):
    """The distance of a candidate file from the exported file on the calibration rows.

    Attributes:
        rel: RMS difference of the answers, relative to their spread; NaN if their shapes differ.
        agreement: Share of rows (of tags: of tokens) with the same most likely label; None if the task has no such label.
    """

    rel: float
    agreement: float | None


class CandidateFiles:
    """The candidate files of one format: estimates their sizes, writes them, compares them with the exported file.

    Args:
        inputs: The model, its exported files and the calibration rows.
        format: The format.
        folder: Workspace that this process has locked. Candidate files are written below it.
        cache: Cache of measured values.

    Attributes:
        base: The exported file as a candidate.
        reference: The candidate files of the model with whose exported file candidates are compared: this object
            itself, or in `SearchFiles` those of another student.
    """

    def __init__(self, inputs: CandidateInputs, format: Format, folder: Path, cache: FigureCache) -> None:
        self.inputs, self.format, self.cache = inputs, format, cache
        self.source, self.folder = inputs.bases[format], folder / CANDIDATES_FOLDER / format
        self.base = CandidateSpec(exported_file(format, format_place(format).exported_scheme(inputs.model.recipe)))
        self.reference: CandidateFiles = self

    @cached_property
    def source_digest(self) -> str:
        """Digest of the exported file from which candidate files are made."""
        return sha256_path(self.source)

    @cached_property
    def weights(self) -> list[WeightRole]:
        """Weights in the exported file, with their roles."""
        return weights_in_file(self.inputs.model, self.format, self.source)

    @cached_property
    def _uses(self) -> list[WeightUse]:
        """Operators of the exported file that use a weight, one for each weight."""
        from pocketbert.quantize.files import read_weight_types

        return list({use.name: use for use in read_weight_types(self.source, self.format).uses}.values())

    def expected_bytes(self, spec: CandidateSpec) -> int:
        """Estimate the size of a candidate file in bytes from the number types that its scheme stores."""
        from pocketbert.quantize.weights import Use, bits_per_number

        stored_types = spec.row.weights
        exported = sum(u.numbers * bits_per_number(u.dtype, u.block) for u in self._uses) / 8
        largest_table = max((u.numbers for u in self._uses if u.use is Use.TABLE), default=0)
        total = 0.0
        for use in self._uses:
            stored_type = stored_types.of(use.use, use.numbers >= largest_table)
            total += use.numbers * bits_per_number(stored_type.dtype, stored_type.block) / 8
        if spec.left:  # floats instead of the scheme's type, on average
            numbers = sum(u.numbers for u in self._uses)
            left = sum(w.numbers for w in self.weights if w.role in spec.left)
            total += left / numbers * (exported - total) if numbers else 0
        return round(total + max(path_bytes(self.source) - exported, 0))

    def path_of(self, spec: CandidateSpec) -> Path:
        """Return the path in the workspace that a candidate file is written to."""
        return self.folder / "-".join(["all", *spec.left]) / Path(spec.file.path).name

    def write(self, spec: CandidateSpec) -> Written:
        """Write a candidate file, unless the cache has the outcome; return its digest and size, or why it failed.

        A cached file may have been removed since; `ensure_written` writes it again.
        """
        file, recipe = spec.file, self.inputs.model.recipe
        rows = self.inputs.calibration_digest if file.scheme.static else ""
        decides: list[object] = [self.source_digest, file.format, file.scheme, file.runtime, rows, installed_versions()]
        decides += [[*spec.left]] if spec.left else []
        decides += [[f"{role}={scheme}" for role, scheme in spec.row.usual.items()]] if spec.row.usual else []
        method = recipe.quantize.calibration
        decides += [method.value] if file.scheme.static and method is not Calibration.MINMAX else []
        return self.cache.recall(Written, decides, lambda: self._quantize(spec))

    def _quantize(self, spec: CandidateSpec) -> Written:
        """Quantize the exported file to a candidate's path; return the new file's digest and size, or why it failed."""
        from pocketbert.quantize import quantize

        path = self.path_of(spec)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove(path)
        model, rows = self.inputs.model, self.inputs.calibration
        plan = quantization_plan(
            spec.file,
            lambda: [model.tokenizer.pad([row]) for row in rows],
            model.weights,
            model.recipe.quantize.calibration,
        )
        if spec.left or spec.row.usual:
            schemes = {role: None if role in spec.left else spec.row.scheme_of(role) for role in Role}
            plan = replace(plan, weights=[w.model_copy(update={"scheme": schemes[w.role]}) for w in self.weights])
        try:
            with report_waiting(spec.name):
                quantize(self.source, path, plan)
        except (GateError, InputError) as error:  # a gate found it wrong, or this model cannot have it
            remove(path)
            return Written(failure=" ".join(str(error).split()))
        return Written(sha256=sha256_path(path), bytes=path_bytes(path))

    def ensure_written(self, spec: CandidateSpec) -> Path:
        """Return the path of a candidate file; write the file if it does not exist yet, was removed, or was changed.

        Raises:
            MachineError: If the file written again has other bytes than the first one. Core ML packages are exempt, because they
                contain random ids.
        """
        path, known = self.path_of(spec), self.write(spec)
        if not path.exists() or sha256_path(path) != known.sha256:
            again = self._quantize(spec)
            if again.sha256 != known.sha256 and self.format is not Format.COREML:
                raise MachineError(
                    f"{spec.name} is not the same when it is written twice: {again.failure or 'other bytes'}."
                )
        return path

    def rank(self, spec: CandidateSpec) -> Ranked:
        """Measure how far a candidate's outputs on the calibration rows are from those of the exported file.

        For a smaller student's files, the exported file is that of the recipe's own student, in `reference`.
        """

        def compare() -> Ranked:
            """Run the candidate file on the rows, and return its distance from the exported file."""
            path = self.source if spec == self.base else self.ensure_written(spec)
            answers, exact = self._answers(spec.file, path), self.reference._exported_answers
            has_labels = self.inputs.model.task.labels in (LabelKind.NAME, LabelKind.SPANS)
            if answers.shape != exact.shape:
                return Ranked(rel=float("nan"), agreement=None)
            return Ranked(
                rel=rms_error(answers, exact), agreement=label_agreement(answers, exact) if has_labels else None
            )

        other = self.reference
        against = [] if other is self else [other.source_digest, other.inputs.calibration_digest]
        return self.recall_figure(Ranked, spec, [self.inputs.calibration_digest, *against], compare)

    @cached_property
    def _exported_answers(self) -> Matrix:
        """Answers of the exported file on the calibration rows."""
        return self._answers(self.base.file, self.source)

    def _answers(self, file: ModelFile, path: Path) -> Matrix:
        """Run a model file on the calibration rows, and return its answers in one matrix."""
        predictor, model = open_file(path, file.format, runtime=file.runtime), self.inputs.model
        label = f"{file.path} on calibration rows"
        return join_texts(run_rows(predictor, model.tokenizer, self.inputs.calibration, model.task, label=label))

    def recall_figure(
        self, kind: type[FigureT], spec: CandidateSpec, rows: Sequence[str], measure: Callable[[], FigureT]
    ) -> FigureT:
        """Return a value measured on a candidate file from the cache, or measure it if it is not there.

        Args:
            kind: Class of the value.
            spec: The candidate file.
            rows: Digests of the rows on which it is measured.
            measure: Function that measures the value.
        """
        digest = self.source_digest if spec == self.base else self.write(spec).sha256
        model = self.inputs.model.folder.digest
        decides = [self.source_digest, digest, model, [*rows], describe_machine().summary, installed_versions()]
        return self.cache.recall(kind, decides, measure)
