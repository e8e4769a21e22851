"""Writes smaller files of one format and compares them with the exported one; what the ledger knows is not done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pocketbert.core.compare.evaluate import agreement, rms_error
from pocketbert.core.disk.files import path_bytes, sha256_path
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import GateError, InputError, MachineError
from pocketbert.core.families.roles import WeightRole
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.progress import waiting
from pocketbert.core.host.versions import installed
from pocketbert.core.predict.readout import Matrix, run_rows, whole
from pocketbert.core.tasks import LabelKind
from pocketbert.core.types import Calibration, Format
from pocketbert.pipeline.direct.search.ledger import Figure, Ledger
from pocketbert.pipeline.direct.search.sources import Sources
from pocketbert.pipeline.direct.search.trial import Trial
from pocketbert.pipeline.formats.model_files import ModelFile, exported_file
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.make.quantizing import plan_of
from pocketbert.pipeline.make.stored_weights import stored_weights
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


Kept = TypeVar("Kept", bound=Figure)


class Bench:
    """The smaller files of one format.

    Args:
        sources: What they are made from and compared on.
        format: The format.
        folder: A folder that this process holds; candidates are written below it.
        ledger: Keeps the figures.
    """

    def __init__(self, sources: Sources, format: Format, folder: Path, ledger: Ledger) -> None:
        self.sources, self.format, self.ledger = sources, format, ledger
        self.source, self.folder = sources.bases[format], folder / FOLDER / format
        self.base = Trial(exported_file(format, place_of(format).exported_scheme(sources.model.recipe)))
        self.reference: Bench = self

    @cached_property
    def source_digest(self) -> str:
        """Digest of the exported file."""
        return sha256_path(self.source)

    @cached_property
    def weights(self) -> list[WeightRole]:
        """The weights in the exported file with their roles."""
        return stored_weights(self.sources.model, self.format, self.source)

    def expected_bytes(self, trial: Trial) -> int:
        """Estimate the size of a candidate from the types that its scheme wants, before anything is written."""
        from pocketbert.quantize.table import row_of
        from pocketbert.quantize.weights import Use, bits_of

        file, stored = trial.file, sum(u.numbers * bits_of(u.dtype, u.block) for u in self._uses) / 8
        wanted = row_of(file.format, file.scheme, file.runtime).weights
        most = max((u.numbers for u in self._uses if u.use is Use.TABLE), default=0)
        total = 0.0
        for use in self._uses:
            kind = wanted.of(use.use, use.numbers >= most)
            total += use.numbers * bits_of(kind.dtype, kind.block) / 8
        if trial.left:  # floats in place of what the scheme stores, on average
            numbers = sum(u.numbers for u in self._uses)
            left = sum(w.numbers for w in self.weights if w.role in trial.left)
            total += left / numbers * (stored - total) if numbers else 0
        return round(total + max(path_bytes(self.source) - stored, 0))

    @cached_property
    def _uses(self) -> list[WeightUse]:
        from pocketbert.quantize.door import weight_types

        found = weight_types(self.source, self.format).uses
        return list({use.name: use for use in found}.values())

    def written(self, trial: Trial) -> Written:
        """Write a candidate where the ledger does not know it."""
        return self.ledger.recall(Written, self._origin(trial), lambda: self._write(trial))

    def _origin(self, trial: Trial) -> object:
        file, rows = trial.file, self.sources.calibration_digest if trial.file.scheme.static else ""
        left = [[*trial.left]] if trial.left else []
        usual = [f"{role}={scheme}" for role, scheme in trial.row.usual.items()]
        others: list[object] = [usual] if usual else []
        method = self.sources.model.recipe.quantize.calibration
        others += [method.value] if trial.file.scheme.static and method is not Calibration.MINMAX else []
        return [self.source_digest, file.format, file.scheme, file.runtime, rows, installed(), *left, *others]

    def _write(self, trial: Trial) -> Written:
        from pocketbert.quantize import quantize

        path = self.path(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove(path)
        tokenizer, rows = self.sources.model.tokenizer, self.sources.calibration
        model = self.sources.model
        plan = plan_of(
            trial.file, lambda: [tokenizer.pad([row]) for row in rows], model.weights, model.recipe.quantize.calibration
        )
        plan = replace(plan, weights=trial.weights(self.weights)) if trial.mixed else plan
        try:
            with waiting(trial.name):
                quantize(self.source, path, plan)
        except (GateError, InputError) as error:  # a gate found it wrong, or this model cannot have it
            remove(path)
            return Written(failure=" ".join(str(error).split()))
        return Written(sha256=sha256_path(path), bytes=path_bytes(path))

    def path(self, trial: Trial) -> Path:
        """Where a candidate is written."""
        return self.folder / "-".join(["all", *trial.left]) / Path(trial.file.path).name

    def there(self, trial: Trial) -> Path:
        """The file of a candidate that the ledger knows, written again where it is gone."""
        path, known = self.path(trial), self.written(trial)
        if not path.exists() or sha256_path(path) != known.sha256:
            again = self._write(trial)
            if again.sha256 != known.sha256 and self.format is not Format.COREML:
                raise MachineError(
                    f"{trial.name} is not the same when it is written twice: {again.failure or 'other bytes'}."
                )
        return path

    def ranked(self, trial: Trial) -> Ranked:
        """Compare a candidate, or the exported file of another student, with the exported file on the calibration rows."""

        def compare() -> Ranked:
            path = self.source if trial == self.base else self.there(trial)
            answers, exact = self._answers(trial.file, path), self.reference.exact
            named = self.sources.model.task.labels in (LabelKind.NAME, LabelKind.SPANS)
            if answers.shape != exact.shape:
                return Ranked(rel=float("nan"), agreement=None)
            return Ranked(rel=rms_error(answers, exact), agreement=agreement(answers, exact) if named else None)

        return self.measured(Ranked, trial, [self.sources.calibration_digest, *self._against], compare)

    @cached_property
    def exact(self) -> Matrix:
        """What the exported file answers on the calibration rows."""
        return self._answers(self.base.file, self.source)

    def _answers(self, file: ModelFile, path: Path) -> Matrix:
        predictor, model = open_file(path, file.format, runtime=file.runtime), self.sources.model
        label = f"{file.path} on calibration rows"
        return whole(run_rows(predictor, model.tokenizer, self.sources.calibration, model.task, label=label))

    @property
    def _against(self) -> list[str]:
        """Digests of what candidates are compared with, where that is another student's file."""
        other = self.reference
        return [] if other is self else [other.source_digest, other.sources.calibration_digest]

    def measured(self, kind: type[Kept], trial: Trial, rows: list[str], make: Callable[[], Kept]) -> Kept:
        """Return a figure of a candidate, made where the ledger does not have it.

        Args:
            kind: Its class.
            trial: The candidate.
            rows: Digests of the rows that it is of.
            make: Measures it.
        """
        own = self.source_digest if trial == self.base else self.written(trial).sha256
        weights = self.sources.model.folder.digest
        return self.ledger.recall(kind, [self.source_digest, own, weights, rows, machine().summary, installed()], make)
