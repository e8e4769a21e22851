"""The search: write, rank, verify the front, choose; format by format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pocketbert.core.artefacts import BudgetSearch, Candidate, ConsideredStudent
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.examples import hold_out_share
from pocketbert.core.disk.files import sha256_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import machine
from pocketbert.core.host.progress import say
from pocketbert.core.host.system import installed
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.tokenization import Text
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct.search import choosing
from pocketbert.pipeline.direct.search.candidates import (
    FOLDER,
    Bench,
    Figure,
    Ledger,
    RoleTrial,
    Sources,
    Trial,
    role_trials,
)
from pocketbert.pipeline.direct.search.choosing import ACCURATE, SMALLEST, Finding, figures_line, outside_lines
from pocketbert.pipeline.formats.base import ModelFile, RunModel, smaller_file
from pocketbert.pipeline.gates.confidence import HELD_OUT
from pocketbert.pipeline.gates.stored import PreparedModels, stored_gate
from pocketbert.pipeline.gates.verify import subject_of
from pocketbert.pipeline.learn.data import RunData, load_data
from pocketbert.pipeline.make.measuring import measure

# --- material ---
# What a search reads: the exported files, and rows that rank, rows that choose and rows that score, none of them twice.


SCORING_SHARE = 0.5
"""Share of the evaluation rows that take no part in the choice and score what was chosen."""
TIMED_TEXTS = 100
"""Texts that latencies are measured on."""


@dataclass(frozen=True)
class Material(Sources):
    """What the candidates of all formats are made from and measured on.

    Attributes:
        choosing: Rows whose score decides whether a candidate is inside.
        scoring: Data of the run that writes the folder, with the choosing rows to fit confidences on.
        kept_apart: Number of its rows that are scored and took no part in the choice.
        student: Name of the student, where several are considered.
        against: The same of the recipe's own student, whose exported files decide what is lost; None for its own material.
    """

    choosing: EvalSet
    scoring: RunData
    kept_apart: int
    student: str | None = None
    against: Material | None = None

    @cached_property
    def choosing_digest(self) -> str:
        """Digest of the choosing rows and their labels."""
        rows = self.choosing.rows
        return sha256_json([[r.ids.tolist() for r in rows.encoded], [repr(e.label) for e in rows.examples]])

    @cached_property
    def prepared(self) -> PreparedModels:
        """The model's weights, that the numbers in candidates are compared with."""
        return PreparedModels(self.model.weights, self.model.task, self.model.length)

    @cached_property
    def texts(self) -> list[Text]:
        """Some of the choosing rows' texts."""
        chosen = sorted(self.choosing.rows.examples, key=lambda e: e.digest)[:TIMED_TEXTS]
        return [e.input for e in chosen]


def material_of(model: RunModel, bases: Mapping[Format, Path]) -> Material:
    """Read the rows of a recipe and divide those for evaluation by the hash of their text.

    Args:
        model: The exported model, with a recipe that names both files.
        bases: The exported file of each format.

    Raises:
        InputError: If a file cannot be read, no calibration row is left that is no evaluation row, or a part has no rows.
    """
    data, tokenizer = load_data(model.recipe, model.folder), model.tokenizer
    assert model.recipe.data.eval_source is not None
    title = model.recipe.data.eval_source.title
    choosing, scoring = hold_out_share(data.splits["eval"].examples, SCORING_SHARE)
    if not choosing or not scoring:
        what = f"{Path(title).name} has {len(choosing) + len(scoring):,} rows, too few for rows that choose and rows that score."
        raise InputError(Problem("data.eval", what, "Give more rows: some hundred of each label are better than ten."))
    parts = [data.head.prepare(rows, tokenizer, title) for rows in (choosing, scoring)]
    if not len(parts[0].truth):
        what = f"{Path(title).name} has no scored rows; what a candidate loses cannot be measured on it."
        raise InputError(Problem("data.eval", what, "Give rows with labels."))
    sure = data.head.task.name is TaskName.TEXT_CLASSIFICATION
    fitted = [EvalSet(HELD_OUT, data.head, parts[0])] if sure else []
    return Material(
        model,
        bases,
        data.calibration(tokenizer),
        EvalSet("rows that choose", data.head, parts[0]),
        replace(data, splits={**data.splits, "eval": parts[1]}, selection=fitted),
        len(scoring),
    )


# --- workbench ---
# Writes the candidates of one format and measures them; what the ledger knows is not done again.


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
        p90_ms: 90th percentile by name.
    """

    p90_ms: dict[str, float]


class Workbench(Bench):
    """The candidates of one format, as a search measures them.

    Args:
        material: What they are made from and measured on.
        format: The format.
        folder: A folder that this process holds; candidates are written below it.
        ledger: Keeps the figures.
    """

    reference: Workbench

    def __init__(self, material: Material, format: Format, folder: Path, ledger: Ledger) -> None:
        super().__init__(material, format, folder, ledger)
        self.material, other = material, material.against
        self.reference = self if other is None else Workbench(other, format, folder, ledger)

    def checked(self, trial: Trial) -> Checked:
        """Compare the numbers in a candidate with the model's."""

        def check() -> Checked:
            subject = subject_of(self.material.model, trial.file, self.there(trial))
            gate = stored_gate(subject, self.material.prepared)
            return Checked(failure="" if gate.passed else f"gate 'stored' failed: {gate.detail}")

        return self.measured(Checked, trial, [], check)

    def drop(self, trial: Trial) -> float:
        """Return what a candidate loses of the deciding metric on the rows that choose, as a fraction; NaN-sticky."""
        other = self.reference
        before = other._scored(other.base, lambda: other.source)
        after = self._scored(trial, lambda: self.there(trial))
        return METRICS[before.metric].drop(before.value, after.value)

    @property
    def metric(self) -> str:
        """Name of the deciding metric."""
        return self._scored(self.base, lambda: self.source).metric

    def _scored(self, trial: Trial, path: Callable[[], Path]) -> Scored:
        def score() -> Scored:
            subject = subject_of(self.material.model, trial.file, path())
            rows = self.material.choosing.within(subject.tokenizer.max_length)
            found, _ = evaluate(subject.predictor, subject.tokenizer, rows, label=f"{trial.name} on {rows.name}")
            return Scored(metric=found.metric, value=found.value)

        return self.measured(Scored, trial, [self.material.choosing_digest], score)

    def timed(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Measure the 90th percentile of the latency of candidates, in interleaved rounds; in ms, by name."""
        from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant

        model = self.material.model

        def measure_all() -> Timed:
            variants = [
                Variant.of(
                    t.name, self.there(t), model.weights, model.length, t.file.scheme, self.format, t.file.runtime
                )
                for t in trials
            ]
            options = BenchmarkOptions(runs=50, repeats=3, budget_s=60.0, profile=False, label="latency")
            result = measure(variants, self.material.texts, options)
            found = {t.name: result.find(t.name, 1, "text") for t in trials}
            return Timed(p90_ms={name: m.wall.p90 for name, m in found.items() if m is not None and m.wall is not None})

        digests = [self.written(t).sha256 for t in trials]
        decides = [digests, self.material.choosing_digest, machine().summary, installed()]
        return self.ledger.recall(Timed, decides, measure_all).p90_ms


def every_candidate(format: Format) -> list[ModelFile]:
    """List the files for any runtime that the quantizer makes of a format's exported one."""
    from pocketbert.quantize import files  # noqa: F401  the back ends register their rows
    from pocketbert.quantize.table import all_rows

    rows = [r for r in all_rows() if r.format is format and r.runtime is None and r.write is not None]
    return [smaller_file(format, r.scheme) for r in rows if FORMATS[format].smaller(r.scheme) is r.scheme]


_NO_NUMBERS = "its answers are no finite numbers, or of another shape than those of the exported file"
FIGURES = "figures.json"
"""Where the figures stay."""

MARGIN = 1.25
"""A candidate is written where its expected size is at most this many times the limit: the estimate was never 10 % off."""
PREDICTION = 1.2
"""A predicted error may be this much too large (10 % was measured), so that another file must be closer by this factor."""


def search(
    material: Material,
    budget: BudgetSection,
    schemes: Sequence[Scheme],
    folder: Path,
    errors: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Find the best file of each format.

    Args:
        material: Exported files and rows.
        budget: The limits.
        schemes: The schemes to consider; empty for all.
        folder: A folder that this process holds. Candidates are written below it and removed at the end; the figures stay.
        errors: RMS differences of the recipe's own student's files, by name; the errors of a smaller student's are predicted
            from them. None for the own student.
    """
    out, ledger = [], Ledger(folder / FIGURES)
    for format in material.bases:
        wanted = {FORMATS[format].smaller(s) for s in schemes if FORMATS[format].takes(s)}  # int8 means w8 in Core ML
        trials = [Trial(f) for f in every_candidate(format) if f.scheme in wanted or not schemes]
        say(f"{format}: {len(trials)} candidates inside {budget.text}?")
        out.append(_Hunt(Workbench(material, format, folder, ledger), budget, trials, errors or {}).find())
    remove(folder / FOLDER)
    return out


def exported_error(material: Material, folder: Path) -> float:
    """Compare the exported file of a smaller student with that of the own student, in the first format.

    Args:
        material: The smaller student's.
        folder: Where the figures are kept.

    Returns:
        RMS difference of their answers on calibration rows, relative to their spread.
    """
    bench = Workbench(material, next(iter(material.bases)), folder, Ledger(folder / FIGURES))
    return bench.ranked(bench.base).rel


class _Hunt:
    """The search in one format; candidates by name, their figures filled in as they are measured."""

    def __init__(
        self, bench: Workbench, budget: BudgetSection, trials: Sequence[Trial], errors: Mapping[str, float]
    ) -> None:
        self.bench, self.budget, self.errors = bench, budget, errors
        self.expected = {t.name: bench.expected_bytes(t) for t in trials}
        self.trials = {t.name: t for t in sorted(trials, key=lambda t: self.expected[t.name])}
        self.found: dict[str, Candidate] = {}

    def find(self) -> Finding:
        for number, trial in enumerate(self.trials.values()):
            self.found[trial.name] = self._ranked(trial, least=number == 0)
        chosen = self._measured()
        if self._with_roles(chosen):
            chosen = self._measured()
        if chosen is None:  # what would have been enough, whatever its size
            self._measure([c.name for c in self.found.values() if c.sound])
        else:
            self._update(chosen.name, chosen=True)
            say(f"  {chosen.name}: chosen", style="green")
        listed = list(self.found.values())
        nearest = choosing.nearest_outside(listed, self.budget) if chosen is None else None
        return Finding(self.bench.format, self.bench.metric, listed, chosen and self.found[chosen.name], nearest)

    def _measured(self) -> Candidate | None:
        """Measure the candidates that are small enough, and return the best."""
        sound = [c for c in self.found.values() if c.sound]
        self._measure([c.name for c in sound if choosing.fits(c, self.budget, "max_size_mb")])
        return choosing.best(list(self.found.values()), self.budget)

    def _with_roles(self, chosen: Candidate | None) -> bool:
        """Add files that leave the most sensitive roles float, where one may be better than the best whole scheme.

        Nothing of a smaller student is added: its files are compared with those of another one, which hides single roles.
        """
        if self.bench.reference is not self.bench:
            return False
        sound = [self.trials[c.name] for c in self.found.values() if c.sound]
        limit = None if self.budget.max_size_mb is None else self.budget.max_size_mb * 1e6
        smaller = chosen.bytes if chosen is not None and self.budget.smallest_wins else None
        most = min((b for b in (limit, smaller) if b is not None), default=math.inf)
        written = 0
        for role in role_trials(self.bench, sound, most):
            self.trials[role.trial.name], self.expected[role.trial.name] = role.trial, role.bytes
            note = self._beaten(role, chosen)
            if note:
                self.found[role.trial.name] = self._candidate(role.trial).model_copy(update={"note": note})
                continue
            self.found[role.trial.name] = self._ranked(role.trial, least=False)
            written += 1
        return written > 0

    def _beaten(self, role: RoleTrial, chosen: Candidate | None) -> str:
        """Say why a file with roles left float need not be written; empty where it must be."""
        told = (
            f"not written: about {role.bytes / 1e6:.1f} MB and an RMS difference of about {role.rel:.3g} are predicted"
        )
        if chosen is not None and chosen.rel is not None and not self.budget.smallest_wins and chosen.rel <= role.rel:
            return f"{told}, and {chosen.name} is closer"
        for other in self.found.values():
            if other.sound and (other.bytes or 0) <= role.bytes and other.rel is not None and other.rel <= role.rel:
                return f"{told}, and {other.name} is smaller and closer"
        return ""

    def _candidate(self, trial: Trial) -> Candidate:
        file = trial.file
        return Candidate(
            path=file.path,
            format=file.format,
            scheme=file.scheme,
            runtime=file.runtime,
            left=[*trial.left],
            student=self.bench.material.student,
            inside=False,
        )

    def _ranked(self, trial: Trial, least: bool) -> Candidate:
        """Write and rank a candidate, unless it is surely too large; of all, the one that should be the smallest is written."""
        candidate = self._candidate(trial)
        limit, expected = self.budget.max_size_mb, self.expected[trial.name] / 1e6
        if limit is not None and expected > MARGIN * limit and not least:
            return candidate.model_copy(update={"note": f"not written: about {expected:.1f} MB"})
        if closer := self._closer(trial):
            return candidate.model_copy(update={"note": closer})
        written = self.bench.written(trial)
        if written.failure:
            say(f"  {trial.name}: {written.failure}", style="red")
            return candidate.model_copy(update={"note": written.failure})
        ranked = self.bench.ranked(trial)
        known: dict[str, object] = {"sha256": written.sha256, "bytes": written.bytes}
        if not math.isfinite(ranked.rel):
            say(f"  {trial.name}: {_NO_NUMBERS}", style="red")
            return candidate.model_copy(update={**known, "note": _NO_NUMBERS})
        known |= {"rel": ranked.rel, "agreement": ranked.agreement}
        candidate = candidate.model_copy(update=known)
        say(f"  {figures_line(candidate)}")
        return candidate.model_copy(update={"inside": choosing.is_inside(candidate, self.budget)})

    def _closer(self, trial: Trial) -> str:
        """Say why a smaller student's candidate need not be written; empty where it must be.

        The errors of a student and of a scheme are independent, so their squares add. A file that is slower has to be timed.
        """
        if self.errors.get(trial.name) is None or self.budget.max_p90_ms is not None:
            return ""
        predicted = math.hypot(self.bench.ranked(self.bench.base).rel, self.errors[trial.name])
        for other in self.found.values():
            smaller = other.sound and (other.bytes or 0) <= self.expected[trial.name]
            if smaller and other.rel is not None and other.rel * PREDICTION < predicted:
                megabytes = self.expected[trial.name] / 1e6
                return (
                    f"not written: about {megabytes:.1f} MB and an RMS difference of about {predicted:.3g} are predicted, and "
                    f"{other.name} is smaller and closer"
                )
        return ""

    def _measure(self, names: Sequence[str]) -> None:
        """Time candidates where time is limited, then check and score those of them that no other one dominates."""
        if self.budget.max_p90_ms is not None and names:
            for name, p90 in self.bench.timed([self.trials[n] for n in names]).items():
                self._update(name, p90_ms=p90)
        while True:
            pool = [self.found[n] for n in names if self.found[n].sound]
            fast = [c for c in pool if choosing.fits(c, self.budget, "max_p90_ms")] or pool
            new = [c.name for c in choosing.front(fast) if not c.front or c.drop is None]
            if not new:
                return
            for name in new:
                self._verify(name)

    def _verify(self, name: str) -> None:
        """Check and score one candidate; one that fails a gate leaves the front, and others come forward."""
        failure = self.bench.checked(self.trials[name]).failure
        drop = math.nan if failure else self.bench.drop(self.trials[name])
        if failure or math.isnan(drop):
            failure = failure or _NO_NUMBERS
            self._update(name, note=failure)
            say(f"  {name}: {failure}", style="red")
            return
        self._update(name, front=True, drop=drop)
        say(f"  {figures_line(self.found[name], self.bench.metric)}")

    def _update(self, name: str, **figures: object) -> None:
        candidate = self.found[name].model_copy(update=figures)
        self.found[name] = candidate.model_copy(update={"inside": choosing.is_inside(candidate, self.budget)})


# --- telling ---
# What is told of a finished search: the record of it, or the error where a format has no file inside.


def check_inside(findings: Sequence[Finding], budget: BudgetSection, only: str) -> None:
    """Refuse to go on where a format has no file inside.

    Args:
        findings: What was found.
        budget: The limits.
        only: What the user writes in front of the formats to choose.

    Raises:
        GateError: With the nearest file of each such format, and the limits that would take it.
    """
    outside = [line for f in findings if f.chosen is None for line in outside_lines(f, budget)]
    if outside:
        others = [f.format.value for f in findings if f.chosen is not None]
        if others:
            outside.append(f"Others have a file inside; for these only: {only}{','.join(others)}")
        raise GateError([*outside, "No folder was written."])


def told_of(
    findings: Sequence[Finding],
    material: Material,
    budget: BudgetSection,
    rows: str,
    students: Sequence[ConsideredStudent] = (),
) -> BudgetSearch:
    """Record a search that found a file in each format.

    Args:
        findings: What was found.
        material: What was read.
        budget: The limits.
        rows: Which rows chose and which scored, in words.
        students: The students that were considered, where there were several.
    """
    return BudgetSearch(
        budget=budget.set_limits,
        wins=SMALLEST if budget.smallest_wins else ACCURATE,
        metric=findings[0].metric,
        ranked_on=len(material.calibration),
        chosen_on=len(material.choosing.rows.examples),
        scored_on=material.kept_apart,
        rows=rows,
        calibration=material.model.recipe.quantize.calibration,
        machine=machine().summary,
        students=[*students],
        candidates=[c for f in findings for c in f.candidates],
    )
