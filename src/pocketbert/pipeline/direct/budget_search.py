"""The budget search: the best quantized file of each format inside limits on size, accuracy and latency.

`search_files` goes through the formats of an exported model. In each format (`_FormatSearch`) it

1. writes every candidate that is not surely too large and ranks it by its distance from the exported file,
2. times candidates if latency is limited, then compares the stored numbers and measures the score of those on the
   front,
3. tries files that leave the most sensitive roles float, where one may be better than the best file of a whole scheme,
4. chooses the best file inside the budget.

`read_search_inputs` divides the rows: some rank candidates, some choose files, the rest scores what was chosen.
`search_record` is what the artefact folder keeps of a search, and `require_chosen_files` raises if a format has no
file inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pocketbert.core.artefacts import BudgetSearch, Candidate, ConsideredStudent
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.disk.files import sha256_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import installed_versions
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.examples import hold_out_share
from pocketbert.core.predict.inputs import Text
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct import choosing
from pocketbert.pipeline.direct.candidates import (
    CANDIDATES_FOLDER,
    CandidateFiles,
    CandidateInputs,
    CandidateSpec,
    Figure,
    FigureCache,
    candidate_files,
)
from pocketbert.pipeline.direct.choosing import FormatResult
from pocketbert.pipeline.direct.sensitivity import MixedCandidate, mixed_candidates
from pocketbert.pipeline.formats.base import RunModel
from pocketbert.pipeline.gates.confidence import HELD_OUT
from pocketbert.pipeline.gates.stored import PreparedModels, check_stored_numbers
from pocketbert.pipeline.gates.verify import open_model_file
from pocketbert.pipeline.learn.data import RunData, load_data
from pocketbert.pipeline.make.measuring import measure

_FIGURES_FILE = "figures.json"
"""Where the figures stay."""
_SCORING_SHARE = 0.5
"""Share of the evaluation rows that take no part in the choice and score what was chosen."""
_TIMED_TEXTS = 100
"""Texts that latencies are measured on."""
_SIZE_MARGIN = 1.25
"""A candidate is written if its expected size is at most this many times the limit: the estimate was never 10 % off."""
_ERROR_MARGIN = 1.2
"""A predicted error may be this much too large (10 % was measured), so another file must be closer by this factor."""
_NO_NUMBERS = "its answers are no finite numbers, or of another shape than those of the exported file"


@dataclass(frozen=True)
class SearchInputs(CandidateInputs):
    """The exported model and the rows of a budget search. Rows that score files did not rank or choose any.

    Attributes:
        choosing: Rows whose score decides whether a candidate file is inside the budget.
        scoring: Data of the run that writes the folder, with the choosing rows to fit confidences on.
        kept_apart: Number of rows that are scored and took no part in the choice.
        student: Name of the student, if several are considered.
        against: The inputs of the recipe's own student, with whose exported files those of a smaller student are
            compared; None for the own student.
    """

    choosing: EvalSet
    scoring: RunData
    kept_apart: int
    student: str | None = None
    against: SearchInputs | None = None

    @cached_property
    def choosing_digest(self) -> str:
        """Digest of the rows that choose files, with their labels."""
        rows = self.choosing.rows
        return sha256_json([[r.ids.tolist() for r in rows.encoded], [repr(e.label) for e in rows.examples]])

    @cached_property
    def prepared(self) -> PreparedModels:
        """The prepared torch model, whose numbers are compared with those stored in candidate files."""
        return PreparedModels(self.model.weights, self.model.task, self.model.length)

    @cached_property
    def texts(self) -> list[Text]:
        """Texts of up to 100 of the rows that choose files. Latency is measured on them."""
        chosen = sorted(self.choosing.rows.examples, key=lambda e: e.digest)[:_TIMED_TEXTS]
        return [e.input for e in chosen]


def read_search_inputs(model: RunModel, bases: Mapping[Format, Path]) -> SearchInputs:
    """Read a recipe's rows, and split its evaluation rows into rows that choose files and rows that score them.

    The hash of a row's text decides in which part the row is.

    Args:
        model: The exported model, whose recipe names the calibration rows and the evaluation rows.
        bases: Path of the exported file of each format.

    Raises:
        InputError: If a file cannot be read, if every calibration row is an evaluation row too, or if a part has no
            rows or no labels.
    """
    data, tokenizer = load_data(model.recipe, model.folder), model.tokenizer
    assert model.recipe.data.eval_source is not None
    title = model.recipe.data.eval_source.title
    choosing_rows, scoring_rows = hold_out_share(data.splits["eval"].examples, _SCORING_SHARE)
    if not choosing_rows or not scoring_rows:
        count = len(choosing_rows) + len(scoring_rows)
        what = f"{Path(title).name} has {count:,} rows, too few for rows that choose and rows that score."
        raise InputError(Problem("data.eval", what, "Give more rows: some hundred of each label are better than ten."))
    to_choose, to_score = (data.head.prepare(rows, tokenizer, title) for rows in (choosing_rows, scoring_rows))
    if not len(to_choose.truth):
        what = f"{Path(title).name} has no scored rows; what a candidate loses cannot be measured on it."
        raise InputError(Problem("data.eval", what, "Give rows with labels."))
    classifies = data.head.task.name is TaskName.TEXT_CLASSIFICATION
    fitted_on = [EvalSet(HELD_OUT, data.head, to_choose)] if classifies else []
    return SearchInputs(
        model,
        bases,
        data.calibration(tokenizer),
        EvalSet("rows that choose", data.head, to_choose),
        replace(data, splits={**data.splits, "eval": to_score}, selection=fitted_on),
        len(scoring_rows),
    )


def search_files(
    inputs: SearchInputs,
    budget: BudgetSection,
    schemes: Sequence[Scheme],
    folder: Path,
    errors: Mapping[str, float] | None = None,
) -> list[FormatResult]:
    """Find the best quantized file of each format inside a budget, and return the result of each format.

    Args:
        inputs: Exported files and rows.
        budget: Limits on size, loss of accuracy and latency.
        schemes: Schemes of the quantized files to consider; empty for all.
        folder: Workspace that this process has locked. Candidates are written below it and removed; measured numbers
            stay.
        errors: RMS differences of the files of the recipe's own student, by name, from which the errors of a smaller
            student's files are predicted. None for the own student.
    """
    results, cache = [], FigureCache(folder / _FIGURES_FILE)
    for format in inputs.bases:
        stored = {FORMATS[format].smaller(s) for s in schemes if FORMATS[format].takes(s)}  # int8 means w8 in Core ML
        specs = [CandidateSpec(f) for f in candidate_files(format) if f.scheme in stored or not schemes]
        print_note(f"{format}: {len(specs)} candidates inside {budget.text}?")
        results.append(_FormatSearch(SearchFiles(inputs, format, folder, cache), budget, specs, errors or {}).run())
    remove(folder / CANDIDATES_FOLDER)
    return results


def exported_file_error(inputs: SearchInputs, folder: Path) -> float:
    """Measure how far a smaller student's exported file is from that of the recipe's own student, in the first format.

    Args:
        inputs: Exported model and rows of the smaller student.
        folder: Workspace folder that keeps measured numbers.

    Returns:
        RMS difference of their answers on the calibration rows, relative to their spread.
    """
    files = SearchFiles(inputs, next(iter(inputs.bases)), folder, FigureCache(folder / _FIGURES_FILE))
    return files.rank(files.base).rel


class _FormatSearch:
    """The search for the best quantized file of one format.

    Args:
        files: Object that writes and measures candidate files.
        budget: Limits on size, loss of accuracy and latency.
        specs: The candidate files, with all roles quantized.
        errors: RMS differences of the own student's files by name; empty unless a smaller student is searched.

    Attributes:
        candidates: Record of each candidate by its name. What is measured is added to it.
    """

    def __init__(
        self, files: SearchFiles, budget: BudgetSection, specs: Sequence[CandidateSpec], errors: Mapping[str, float]
    ) -> None:
        self.files, self.budget, self.errors = files, budget, errors
        self.expected = {s.name: files.expected_bytes(s) for s in specs}
        self.specs = {s.name: s for s in sorted(specs, key=lambda s: self.expected[s.name])}
        self.candidates: dict[str, Candidate] = {}

    def run(self) -> FormatResult:
        """Write, rank and measure candidate files, choose the best one inside the budget, and return the result."""
        for number, spec in enumerate(self.specs.values()):
            self.candidates[spec.name] = self._write_and_rank(spec, is_smallest=number == 0)
        chosen = self._best_of_small_enough()
        if self._add_mixed_candidates(chosen):
            chosen = self._best_of_small_enough()
        if chosen is None:  # measure all, to report which limits would have been enough
            self._measure([c.name for c in self.candidates.values() if c.sound])
        else:
            self._update(chosen.name, chosen=True)
            print_note(f"  {chosen.name}: chosen", style="green")
        every = list(self.candidates.values())
        nearest = choosing.nearest_candidate(every, self.budget) if chosen is None else None
        chosen = chosen and self.candidates[chosen.name]
        return FormatResult(self.files.format, self.files.metric, every, chosen, nearest)

    def _write_and_rank(self, spec: CandidateSpec, is_smallest: bool) -> Candidate:
        """Write a candidate file and compare it with the exported file; return its record with size and error.

        A file that is surely too large, or surely worse than another candidate, is not written; its record has the
        reason. The candidate that should be the smallest is never left out for its size.
        """
        candidate = self._new_record(spec)
        limit, expected = self.budget.max_size_mb, self.expected[spec.name] / 1e6
        if limit is not None and expected > _SIZE_MARGIN * limit and not is_smallest:
            return candidate.model_copy(update={"note": f"not written: about {expected:.1f} MB"})
        if note := self._predicted_worse(spec):
            return candidate.model_copy(update={"note": note})
        written = self.files.write(spec)
        if written.failure:
            print_note(f"  {spec.name}: {written.failure}", style="red")
            return candidate.model_copy(update={"note": written.failure})
        ranked = self.files.rank(spec)
        figures: dict[str, object] = {"sha256": written.sha256, "bytes": written.bytes}
        if not math.isfinite(ranked.rel):
            print_note(f"  {spec.name}: {_NO_NUMBERS}", style="red")
            return candidate.model_copy(update={**figures, "note": _NO_NUMBERS})
        figures |= {"rel": ranked.rel, "agreement": ranked.agreement}
        candidate = candidate.model_copy(update=figures)
        print_note(f"  {choosing.describe_candidate(candidate)}")
        return candidate.model_copy(update={"inside": choosing.is_inside(candidate, self.budget)})

    def _predicted_worse(self, spec: CandidateSpec) -> str:
        """Predict whether a smaller student's candidate file is worse than another one; return why, else "".

        The errors of a student and of a scheme are taken as independent: their squares add up to the square of the
        predicted one. Nothing is predicted if the own student's file was not ranked, or if latency is limited, because
        every file has to be timed then.
        """
        if self.errors.get(spec.name) is None or self.budget.max_p90_ms is not None:
            return ""
        predicted = math.hypot(self.files.rank(self.files.base).rel, self.errors[spec.name])
        for other in self.candidates.values():
            is_smaller = other.sound and (other.bytes or 0) <= self.expected[spec.name]
            if is_smaller and other.rel is not None and other.rel * _ERROR_MARGIN < predicted:
                megabytes = self.expected[spec.name] / 1e6
                return (
                    f"not written: about {megabytes:.1f} MB and an RMS difference of about {predicted:.3g} are predicted, and "
                    f"{other.name} is smaller and closer"
                )
        return ""

    def _best_of_small_enough(self) -> Candidate | None:
        """Measure the sound candidate files inside the size limit; return the best of all, None if none is inside."""
        sound = [c for c in self.candidates.values() if c.sound]
        self._measure([c.name for c in sound if choosing.is_within(c, self.budget, "max_size_mb")])
        return choosing.best_candidate(list(self.candidates.values()), self.budget)

    def _measure(self, names: Sequence[str]) -> None:
        """Time candidate files if the budget limits latency, then check and score the files on the Pareto front.

        The front is that of the fast enough files, or of all if none is fast enough. A file that fails its check leaves the front, and others take its place, until all files on the front are
        scored.
        """
        if self.budget.max_p90_ms is not None and names:
            for name, p90 in self.files.time([self.specs[n] for n in names]).items():
                self._update(name, p90_ms=p90)
        while True:
            pool = [self.candidates[n] for n in names if self.candidates[n].sound]
            fast = [c for c in pool if choosing.is_within(c, self.budget, "max_p90_ms")] or pool
            unscored = [c.name for c in choosing.pareto_front(fast) if not c.front or c.drop is None]
            if not unscored:
                return
            for name in unscored:
                self._check_and_score(name)

    def _check_and_score(self, name: str) -> None:
        """Check the numbers stored in a candidate file, measure its loss, and record the loss or the failure."""
        failure = self.files.check(self.specs[name]).failure
        drop = math.nan if failure else self.files.score_drop(self.specs[name])
        if failure or math.isnan(drop):
            failure = failure or _NO_NUMBERS
            self._update(name, note=failure)
            print_note(f"  {name}: {failure}", style="red")
            return
        self._update(name, front=True, drop=drop)
        print_note(f"  {choosing.describe_candidate(self.candidates[name], self.files.metric)}")

    def _add_mixed_candidates(self, chosen: Candidate | None) -> bool:
        """Write further candidates in which the most sensitive roles stay float, if one may be better than the best.

        A role is the place of weights in a layer, such as query. Smaller students get none: their files are compared
        with those of another student, which hides the effect of single roles.

        Args:
            chosen: The best file so far; None if none is inside the budget.

        Returns:
            Whether there is a further candidate that was not predicted to be worse. It may still be too large to be written.
        """
        if self.files.reference is not self.files:
            return False
        sound = [self.specs[c.name] for c in self.candidates.values() if c.sound]
        limit = None if self.budget.max_size_mb is None else self.budget.max_size_mb * 1e6
        smallest = chosen.bytes if chosen is not None and self.budget.smallest_wins else None
        most_bytes = min((b for b in (limit, smallest) if b is not None), default=math.inf)
        any_written = False
        for mixed in mixed_candidates(self.files, sound, most_bytes):
            spec = mixed.spec
            self.specs[spec.name], self.expected[spec.name] = spec, mixed.bytes
            if note := self._mixed_predicted_worse(mixed, chosen):
                self.candidates[spec.name] = self._new_record(spec).model_copy(update={"note": note})
            else:
                self.candidates[spec.name] = self._write_and_rank(spec, is_smallest=False)
                any_written = True
        return any_written

    def _mixed_predicted_worse(self, mixed: MixedCandidate, chosen: Candidate | None) -> str:
        """Predict whether a candidate with some float roles is worse than another file; return why, else ""."""
        note = f"not written: about {mixed.bytes / 1e6:.1f} MB and an RMS difference of about {mixed.rel:.3g} are predicted"
        if chosen is not None and chosen.rel is not None and not self.budget.smallest_wins and chosen.rel <= mixed.rel:
            return f"{note}, and {chosen.name} is closer"
        for other in self.candidates.values():
            if other.sound and (other.bytes or 0) <= mixed.bytes and other.rel is not None and other.rel <= mixed.rel:
                return f"{note}, and {other.name} is smaller and closer"
        return ""

    def _new_record(self, spec: CandidateSpec) -> Candidate:
        """Return the record of a candidate file before anything is measured."""
        file = spec.file
        return Candidate(
            path=file.path,
            format=file.format,
            scheme=file.scheme,
            runtime=file.runtime,
            left=[*spec.left],
            student=self.files.inputs.student,
            inside=False,
        )

    def _update(self, name: str, **figures: object) -> None:
        """Add measured numbers to a candidate's record, and decide anew whether it is inside the budget."""
        candidate = self.candidates[name].model_copy(update=figures)
        self.candidates[name] = candidate.model_copy(update={"inside": choosing.is_inside(candidate, self.budget)})


# --- measuring --------------------------------------------------------------------------------------------------------


class Checked(Figure):
    """The outcome of comparing the numbers stored in a candidate file with the model's.

    Attributes:
        failure: Which stored numbers are wrong; empty if none are.
    """

    failure: str


class Scored(Figure):
    """The score of a file on the evaluation rows that choose files.

    Attributes:
        metric: Name of the metric that decides on files.
        value: Value of the metric.
    """

    metric: str
    value: float


class Timed(Figure):
    """The latencies of candidate files that were measured in turns.

    Attributes:
        p90_ms: 90th percentile in ms, by the name of the file.
    """

    p90_ms: dict[str, float]


class SearchFiles(CandidateFiles):
    """The candidate files of one format in a budget search, which also checks, scores and times them.

    Args:
        inputs: Exported files and rows.
        format: The format.
        folder: Workspace that this process has locked. Candidate files are written below it.
        cache: Cache of measured numbers.
    """

    inputs: SearchInputs
    reference: SearchFiles

    def __init__(self, inputs: SearchInputs, format: Format, folder: Path, cache: FigureCache) -> None:
        super().__init__(inputs, format, folder, cache)
        other = inputs.against
        self.reference = self if other is None else SearchFiles(other, format, folder, cache)

    def check(self, spec: CandidateSpec) -> Checked:
        """Compare the numbers stored in a candidate file with the torch model's, and return which are wrong."""

        def compare() -> Checked:
            subject = open_model_file(self.inputs.model, spec.file, self.ensure_written(spec))
            gate = check_stored_numbers(subject, self.inputs.prepared)
            return Checked(failure="" if gate.passed else f"gate 'stored' failed: {gate.detail}")

        return self.recall_figure(Checked, spec, [], compare)

    def score_drop(self, spec: CandidateSpec) -> float:
        """Return how much of the metric a file loses against the exported one, as a fraction; NaN if that is undefined.

        Both files are scored on the rows that choose files.
        """
        before, after = self.reference._score(self.reference.base), self._score(spec)
        return METRICS[before.metric].drop(before.value, after.value)

    @property
    def metric(self) -> str:
        """Name of the metric that decides on files."""
        return self._score(self.base).metric

    def _score(self, spec: CandidateSpec) -> Scored:
        """Score a candidate file, or the exported file, on the rows that choose files."""

        def score() -> Scored:
            """Run the file on the rows that choose files, and return its score."""
            path = self.source if spec == self.base else self.ensure_written(spec)
            subject = open_model_file(self.inputs.model, spec.file, path)
            rows = self.inputs.choosing.within(subject.tokenizer.max_length)
            result, _ = evaluate(subject.predictor, subject.tokenizer, rows, label=f"{spec.name} on {rows.name}")
            return Scored(metric=result.metric, value=result.value)

        return self.recall_figure(Scored, spec, [self.inputs.choosing_digest], score)

    def time(self, specs: Sequence[CandidateSpec]) -> dict[str, float]:
        """Time candidate files in turns, and return the 90th percentile of each in ms, by its name.

        Files without a measurement are left out.
        """
        from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant

        model = self.inputs.model

        def measure_all() -> Timed:
            """Time all files in turns, and return their latencies."""
            variants = [
                Variant.of(
                    s.name,
                    self.ensure_written(s),
                    model.weights,
                    model.length,
                    s.file.scheme,
                    self.format,
                    s.file.runtime,
                )
                for s in specs
            ]
            options = BenchmarkOptions(runs=50, repeats=3, budget_s=60.0, profile=False, label="latency")
            result = measure(variants, self.inputs.texts, options)
            latencies = {s.name: result.find(s.name, 1, "text") for s in specs}
            return Timed(p90_ms={n: m.wall.p90 for n, m in latencies.items() if m is not None and m.wall is not None})

        digests = [self.write(s).sha256 for s in specs]
        decides = [digests, self.inputs.choosing_digest, describe_machine().summary, installed_versions()]
        return self.cache.recall(Timed, decides, measure_all).p90_ms


# --- the outcome ------------------------------------------------------------------------------------------------------


def require_chosen_files(results: Sequence[FormatResult], budget: BudgetSection, option: str) -> None:
    """Check that each format has a file inside the budget.

    Args:
        results: The result of each format.
        budget: Limits on size, loss of accuracy and latency.
        option: The setting that chooses formats, as a user writes it before their names, such as ``--format ``; it is
            part of the error message.

    Raises:
        GateError: With the nearest file of each format that has none, and the limits that would take it.
    """
    outside = [" ".join(choosing.describe_failure(r, budget)) for r in results if r.chosen is None]
    if outside:
        others = [r.format.value for r in results if r.chosen is not None]
        if others:
            outside.append(f"Others have a file inside; for these only: {option}{','.join(others)}")
        outside[-1] = f"{outside[-1].rstrip('.')}. No folder was written."
        raise GateError(outside)


def search_record(
    results: Sequence[FormatResult],
    inputs: SearchInputs,
    budget: BudgetSection,
    rows: str,
    students: Sequence[ConsideredStudent] = (),
) -> BudgetSearch:
    """Return the record of a finished budget search that the artefact folder keeps.

    Args:
        results: The result of each format.
        inputs: Exported model and rows of the search.
        budget: Limits on size, loss of accuracy and latency.
        rows: Sentence on which rows chose files and which scored them.
        students: The students that were considered, if there were several.
    """
    return BudgetSearch(
        budget=budget.set_limits,
        wins=choosing.SMALLEST if budget.smallest_wins else choosing.ACCURATE,
        metric=results[0].metric,
        ranked_on=len(inputs.calibration),
        chosen_on=len(inputs.choosing.rows.examples),
        scored_on=inputs.kept_apart,
        rows=rows,
        calibration=inputs.model.recipe.quantize.calibration,
        machine=describe_machine().summary,
        students=[*students],
        candidates=[c for r in results for c in r.candidates],
    )
