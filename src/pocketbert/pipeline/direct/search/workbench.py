"""Writes the candidates of one format and measures them; what the ledger knows is not done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pocketbert.core.compare.evaluate import agreement, evaluate, rms_error
from pocketbert.core.disk.files import path_bytes, sha256_path
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import GateError, InputError, MachineError
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.progress import waiting
from pocketbert.core.host.versions import installed
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.readout import Matrix, run_rows, whole
from pocketbert.core.tasks import LabelKind
from pocketbert.core.types import Format
from pocketbert.pipeline.direct.search.ledger import Figure, Ledger
from pocketbert.pipeline.direct.search.material import Material
from pocketbert.pipeline.formats.model_files import ModelFile, exported_file, smaller_file
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.gates.stored.gate import stored_gate
from pocketbert.pipeline.gates.verify import subject_of
from pocketbert.pipeline.make.measuring import measure
from pocketbert.pipeline.make.quantizing import plan_of
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from pocketbert.quantize.weights import WeightUse

FOLDER = "candidates"
"""Folder of the written candidates in a workspace."""


class Written(Figure):
    """A candidate on disk.

    Attributes:
        sha256: Its digest; empty where it failed.
        bytes: Its size.
        failure: Why it could not be written, or is not what it should be; empty for a sound one.
    """

    sha256: str = ""
    bytes: int = 0
    failure: str = ""


class Ranked(Figure):
    """How far a candidate is from the exported file on the calibration rows.

    Attributes:
        rel: RMS difference of the answers, relative to their spread.
        agreement: Share of rows with the same first label; None where the task has no such label.
    """

    rel: float
    agreement: float | None


class Checked(Figure):
    """Whether the numbers in a candidate are those of the model.

    Attributes:
        failure: What is wrong; empty where nothing is.
    """

    failure: str


class Scored(Figure):
    """The score of a file on the rows that choose.

    Attributes:
        metric: The deciding metric.
        value: Its value.
    """

    metric: str
    value: float


class Timed(Figure):
    """Latencies of files that were measured together.

    Attributes:
        p90_ms: 90th percentile by path.
    """

    p90_ms: dict[str, float]


Kept = TypeVar("Kept", bound=Figure)


class Workbench:
    """The candidates of one format.

    Args:
        material: What they are made from and measured on.
        format: The format.
        folder: A folder that this process holds; candidates are written below it.
        ledger: Keeps the figures.
    """

    def __init__(self, material: Material, format: Format, folder: Path, ledger: Ledger) -> None:
        self.material, self.format, self.ledger = material, format, ledger
        self.source, self.folder = material.bases[format], folder / FOLDER / format
        self.base = exported_file(format, place_of(format).exported_scheme(material.model.recipe))
        other = material.against
        self.reference = self if other is None else Workbench(other, format, folder, ledger)

    @cached_property
    def source_digest(self) -> str:
        """Digest of the exported file."""
        return sha256_path(self.source)

    def expected_bytes(self, file: ModelFile) -> int:
        """Estimate the size of a candidate from the types that its scheme wants, before anything is written."""
        from pocketbert.quantize.table import row_of
        from pocketbert.quantize.weights import Use, bits_of

        stored = sum(u.numbers * bits_of(u.dtype, u.block) for u in self._weights) / 8
        wanted = row_of(file.format, file.scheme, file.runtime).weights
        most = max((u.numbers for u in self._weights if u.use is Use.TABLE), default=0)
        total = 0.0
        for use in self._weights:
            kind = wanted.of(use.use, use.numbers >= most)
            total += use.numbers * bits_of(kind.dtype, kind.block) / 8
        return round(total + max(path_bytes(self.source) - stored, 0))

    @cached_property
    def _weights(self) -> list[WeightUse]:
        from pocketbert.quantize.door import weight_types

        found = weight_types(self.source, self.format).uses
        return list({use.name: use for use in found}.values())

    def written(self, file: ModelFile) -> Written:
        """Write a candidate where the ledger does not know it."""
        return self.ledger.recall(Written, self._origin(file), lambda: self._write(file))

    def _origin(self, file: ModelFile) -> object:
        rows = self.material.calibration_digest if file.scheme.static else ""
        return [self.source_digest, file.format, file.scheme, file.runtime, rows, installed()]

    def _write(self, file: ModelFile) -> Written:
        from pocketbert.quantize import quantize

        path = self.path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove(path)
        tokenizer, rows = self.material.model.tokenizer, self.material.calibration
        plan = plan_of(file, lambda: [tokenizer.pad([row]) for row in rows], self.material.model.weights)
        try:
            with waiting(file.path):
                quantize(self.source, path, plan)
        except (GateError, InputError) as error:  # a gate found it wrong, or this model cannot have it
            remove(path)
            return Written(failure=" ".join(str(error).split()))
        return Written(sha256=sha256_path(path), bytes=path_bytes(path))

    def path(self, file: ModelFile) -> Path:
        """Where a candidate is written."""
        return self.folder / Path(file.path).name

    def _there(self, file: ModelFile) -> Path:
        """The file of a candidate that the ledger knows, written again where it is gone."""
        path, known = self.path(file), self.written(file)
        if not path.exists() or sha256_path(path) != known.sha256:
            again = self._write(file)
            if again.sha256 != known.sha256 and self.format is not Format.COREML:
                raise MachineError(
                    f"{file.path} is not the same when it is written twice: {again.failure or 'other bytes'}."
                )
        return path

    def ranked(self, file: ModelFile) -> Ranked:
        """Compare a candidate, or the exported file of another student, with the exported file on the calibration rows."""

        def compare() -> Ranked:
            path = self.source if file is self.base else self._there(file)
            answers, exact = self._answers(file, path), self.reference.exact
            named = self.material.model.task.labels in (LabelKind.NAME, LabelKind.SPANS)
            if answers.shape != exact.shape:
                return Ranked(rel=float("nan"), agreement=None)
            return Ranked(rel=rms_error(answers, exact), agreement=agreement(answers, exact) if named else None)

        return self._measured(Ranked, file, [self.material.calibration_digest, *self._against], compare)

    @cached_property
    def exact(self) -> Matrix:
        """What the exported file answers on the calibration rows."""
        return self._answers(self.base, self.source)

    def _answers(self, file: ModelFile, path: Path) -> Matrix:
        predictor, model = open_file(path, file.format, runtime=file.runtime), self.material.model
        label = f"{file.path} on calibration rows"
        return whole(run_rows(predictor, model.tokenizer, self.material.calibration, model.task, label=label))

    def checked(self, file: ModelFile) -> Checked:
        """Compare the numbers in a candidate with the model's."""

        def check() -> Checked:
            gate = stored_gate(subject_of(self.material.model, file, self._there(file)), self.material.prepared)
            return Checked(failure="" if gate.passed else f"gate 'stored' failed: {gate.detail}")

        return self._measured(Checked, file, [], check)

    def drop(self, file: ModelFile) -> float:
        """Return what a candidate loses of the deciding metric on the rows that choose, as a fraction; NaN-sticky."""
        other = self.reference
        before = other._scored(other.base, lambda: other.source)
        after = self._scored(file, lambda: self._there(file))
        return METRICS[before.metric].drop(before.value, after.value)

    @property
    def metric(self) -> str:
        """Name of the deciding metric."""
        return self._scored(self.base, lambda: self.source).metric

    def _scored(self, file: ModelFile, path: Callable[[], Path]) -> Scored:
        def score() -> Scored:
            subject = subject_of(self.material.model, file, path())
            rows = self.material.choosing.within(subject.tokenizer.max_length)
            found, _ = evaluate(subject.predictor, subject.tokenizer, rows, label=f"{file.path} on {rows.name}")
            return Scored(metric=found.metric, value=found.value)

        return self._measured(Scored, file, [self.material.choosing_digest], score)

    def timed(self, files: Sequence[ModelFile]) -> dict[str, float]:
        """Measure the 90th percentile of the latency of candidates, in interleaved rounds; in ms, by path."""
        from pocketbert.benchmarks.measurement import Variant
        from pocketbert.benchmarks.options import BenchmarkOptions

        model = self.material.model

        def measure_all() -> Timed:
            variants = [
                Variant.of(f.path, self._there(f), model.weights, model.length, f.scheme, f.format, f.runtime)
                for f in files
            ]
            options = BenchmarkOptions(runs=50, repeats=3, budget_s=60.0, profile=False, label="latency")
            result = measure(variants, self.material.texts, options)
            found = {f.path: result.find(f.path, 1, "text") for f in files}
            return Timed(p90_ms={name: m.wall.p90 for name, m in found.items() if m is not None and m.wall is not None})

        digests = [self.written(f).sha256 for f in files]
        decides = [digests, self.material.choosing_digest, machine().summary, installed()]
        return self.ledger.recall(Timed, decides, measure_all).p90_ms

    @property
    def _against(self) -> list[str]:
        """Digests of what candidates are compared with, where that is another student's file."""
        other = self.reference
        return [] if other is self else [other.source_digest, other.material.calibration_digest]

    def _measured(self, kind: type[Kept], file: ModelFile, rows: list[str], make: Callable[[], Kept]) -> Kept:
        own = self.source_digest if file is self.base else self.written(file).sha256
        weights = self.material.model.folder.digest
        return self.ledger.recall(kind, [self.source_digest, own, weights, rows, machine().summary, installed()], make)


def every_candidate(format: Format) -> list[ModelFile]:
    """List the files for any runtime that the quantizer makes of a format's exported one."""
    from pocketbert.quantize import door  # noqa: F401  the back ends register their rows
    from pocketbert.quantize.table import all_rows

    rows = [r for r in all_rows() if r.format is format and r.runtime is None and r.write is not None]
    return [smaller_file(format, r.scheme) for r in rows if FORMATS[format].smaller(r.scheme) is r.scheme]
