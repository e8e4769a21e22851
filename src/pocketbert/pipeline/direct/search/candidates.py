"""Writes smaller files of one format and compares them with the exported one; what the ledger knows is not done again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pocketbert.core.artefacts import RoleError, Sensitivity
from pocketbert.core.artefacts.search import named
from pocketbert.core.compare.evaluate import agreement, rms_error
from pocketbert.core.disk.files import path_bytes, read_json, sha256_json, sha256_path, write_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import GateError, InputError, MachineError
from pocketbert.core.families.weight_records import WeightRole
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.progress import say, waiting
from pocketbert.core.host.system import installed
from pocketbert.core.predict.predictor import Matrix, run_rows, whole
from pocketbert.core.predict.tokenization import Encoded
from pocketbert.core.tasks import LabelKind
from pocketbert.core.types import Calibration, Format, Role
from pocketbert.pipeline.formats.base import ModelFile, RunModel, exported_file, place_of
from pocketbert.pipeline.formats.weight_roles import stored_weights
from pocketbert.pipeline.make.model_files import plan_of
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from pocketbert.quantize.table import SchemeRow
    from pocketbert.quantize.weights import WeightUse


# --- ledger ---
# What a search measured, kept in a file after each figure, so that an interrupted search measures nothing twice.


class Figure(BaseModel):
    """Anything that is measured once; its class is part of its key."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


Kept = TypeVar("Kept", bound=Figure)


class Ledger:
    """Figures by what decides them.

    Args:
        path: The file; read where it is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._figures: dict[str, object] = {}
        if path.is_file():
            try:
                content = read_json(path)
            except InputError:
                content = None  # a process was killed by the machine; everything is measured again
            self._figures = dict(content) if isinstance(content, dict) else {}

    def recall(self, kind: type[Kept], decides: object, measure: Callable[[], Kept]) -> Kept:
        """Return a figure, measured where the ledger does not have it.

        Args:
            kind: Its class.
            decides: Everything that decides it, such as digests of files and rows; plain values.
            measure: Measures it.
        """
        key = sha256_json([kind.__name__, decides])
        if key in self._figures:
            try:
                return kind.model_validate(self._figures[key])
            except ValidationError:
                del self._figures[key]  # another version wrote it
        found = measure()
        self._figures[key] = json.loads(found.model_dump_json())  # NaN as text, which reads back
        write_json(self.path, self._figures)
        return found


# --- trial ---
# A smaller file that may be made: a scheme, and the roles that stay as they were exported.


@dataclass(frozen=True)
class Trial:
    """A smaller file that may be made.

    Attributes:
        file: Format and scheme.
        left: Roles whose weights stay as they were exported, in the order of `Role`.
    """

    file: ModelFile
    left: tuple[Role, ...] = ()

    @property
    def name(self) -> str:
        """What figures are told of; the path in the artefact folder is the same for all choices of roles."""
        return named(self.file.path, self.left)

    @property
    def row(self) -> SchemeRow:
        """The row of the table of schemes that the file is of."""
        from pocketbert.quantize.table import row_of

        return row_of(self.file.format, self.file.scheme, self.file.runtime)

    @property
    def mixed(self) -> bool:
        """Whether some weights have another scheme than the file."""
        return bool(self.left or self.row.usual)

    def weights(self, weights: Sequence[WeightRole]) -> list[WeightRole]:
        """Resolve what the file makes of each weight.

        Args:
            weights: The weights of the exported file.
        """
        schemes = {role: None if role in self.left else self.row.scheme_of(role) for role in Role}
        return [w.model_copy(update={"scheme": schemes[w.role]}) for w in weights]


# --- sources ---
# What smaller files are made from and compared on.


@dataclass(frozen=True)
class Sources:
    """What smaller files are made from and compared on.

    Attributes:
        model: The exported model.
        bases: The exported file of each format.
        calibration: Rows on which ranges are measured and candidates are ranked.
    """

    model: RunModel
    bases: Mapping[Format, Path]
    calibration: list[Encoded]

    @cached_property
    def calibration_digest(self) -> str:
        """Digest of the calibration rows as the model reads them."""
        return sha256_json([row.ids.tolist() for row in self.calibration])


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
        from pocketbert.quantize.files import weight_types

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


# --- one_role ---
# Sensitivity: files in which one role is compressed, and what they predict of the whole.


def sensitivity(bench: Bench, file: ModelFile) -> Sensitivity:
    """Compress one role in at a time, with real files.

    One role *out* at a time would tell nothing: a file with one role less is hardly closer while another role decides.

    Args:
        bench: Writes and compares the files.
        file: Format and scheme.
    """
    from pocketbert.quantize.table import row_of

    row = row_of(file.format, file.scheme, file.runtime)
    record = Sensitivity(format=file.format, scheme=file.scheme)
    if not row.selective:
        return record.model_copy(update={"note": f"the quantizer of {row.title} leaves no role out"})
    smallest = row.simulation.small if row.simulation is not None else 0
    roles = [r for r in Role if any(w.role is r and w.numbers > smallest for w in bench.weights)]
    whole, base = Trial(file), path_bytes(bench.source)
    written = bench.written(whole)
    if written.failure:
        return record.model_copy(update={"note": written.failure})
    errors = [_only(bench, file, role, roles, base) for role in roles]
    found = record.model_copy(
        update={
            "roles": sorted(errors, key=lambda e: math.inf if e.rel is None else -e.rel),
            "whole": bench.ranked(whole).rel,
            "saved": base - written.bytes,
        }
    )
    predicted = "" if found.predicted is None else f", {found.predicted:.3g} predicted from its roles"
    say(f"  {file.path}: RMS difference {found.whole:.3g} of the spread{predicted}")
    return found


def _only(bench: Bench, file: ModelFile, role: Role, roles: list[Role], base: int) -> RoleError:
    """Measure the file in which only one role is compressed."""
    trial = Trial(file, tuple(r for r in dict.fromkeys([*roles, *(w.role for w in bench.weights)]) if r is not role))
    written = bench.written(trial)
    if written.failure:
        return RoleError(role=role, note=written.failure)
    rel = bench.ranked(trial).rel
    say(f"  {file.path}, only {role}: RMS difference {rel:.3g} of the spread")
    return RoleError(role=role, rel=rel, saved=base - written.bytes)


# --- role_trials ---
# Files that leave the most sensitive roles float, and what single roles predict of them.


PREDICTED = 1.02
"""A predicted size may be this much too large: what the files with one role save adds up to within a per cent."""


@dataclass(frozen=True)
class RoleTrial:
    """A file that leaves some roles float.

    Attributes:
        trial: Scheme and roles.
        bytes: Its predicted size.
        rel: Its predicted RMS difference from the exported file.
    """

    trial: Trial
    bytes: int
    rel: float


def role_trials(bench: Bench, whole: Sequence[Trial], limit: float) -> Iterator[RoleTrial]:
    """List the files of some schemes without their k most sensitive roles, the smallest first.

    Sensitivities of a scheme are measured only where one of its files can be small enough. Of two files of all schemes, one
    that is predicted to be larger and further is left out.

    Args:
        bench: Writes and compares the files with one role.
        whole: The schemes, all roles compressed.
        limit: Largest size in bytes.
    """
    found = list[RoleTrial]()
    for trial in whole:
        file = trial.file
        if not trial.row.selective:
            continue
        size, estimated = bench.written(trial).bytes, bench.expected_bytes(trial)
        roles = dict.fromkeys(w.role for w in bench.weights)
        more = min((bench.expected_bytes(Trial(file, (role,))) - estimated for role in roles), default=0)
        if size >= limit or size + more > PREDICTED * limit:
            continue
        measured = sensitivity(bench, file)
        order = [r.role for r in measured.roles if r.rel is not None]
        for count in range(1, len(order)):
            left = tuple(r for r in Role if r in order[:count])
            rel, size = measured.without(*left), size + measured.roles[count - 1].saved
            if rel is not None and size <= PREDICTED * limit:
                found.append(RoleTrial(Trial(file, left), size, rel))
    yield from (t for t in sorted(found, key=lambda t: (t.bytes, t.rel)) if not any(_beats(o, t) for o in found))


def _beats(one: RoleTrial, other: RoleTrial) -> bool:
    return (one.bytes, one.rel) != (other.bytes, other.rel) and one.bytes <= other.bytes and one.rel <= other.rel
