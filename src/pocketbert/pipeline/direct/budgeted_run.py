"""Runs with a budget: `ChoosingRun` exports first, then searches for the best files, then goes on with these.

With smaller students in the budget (`quantize.budget.students`) the search goes on with each of them: it is trained
as an ordinary run in a folder of the run, and searched like the recipe's own student unless its figures show that no
file of it can be chosen. The run then continues as that of the student whose files are best, and its artefact folder
is copied to where a run has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pocketbert.core.artefacts import ARTEFACTS_FILE, SEARCH_FILE, BudgetSearch, ConsideredStudent
from pocketbert.core.disk.files import copy_path, read_json, sha256_file, write_atomic, write_json
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.families import all_families, check_prunable
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.scores import Score
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.recipe.student import OWN_STUDENT, RecipeBudget, SmallerStudent, width_problem
from pocketbert.core.types import Scheme
from pocketbert.pipeline.direct.budget_search import (
    SearchInputs,
    exported_file_error,
    require_chosen_files,
    search_files,
    search_record,
)
from pocketbert.pipeline.direct.choosing import (
    FormatResult,
    StudentResult,
    best_student,
    cannot_win,
    chosen_files,
    merge_student_results,
    no_student_error,
    recipe_lines,
)
from pocketbert.pipeline.formats.base import exported_file, format_place
from pocketbert.pipeline.gates.checks import STUDENT, check_student
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import RunData, calibration_rows
from pocketbert.pipeline.learn.finishing import EVAL, HOLDOUT, SELECTION, read_training
from pocketbert.pipeline.learn.vocabulary import check_vocabulary
from pocketbert.pipeline.recipes import AnyRecipe, smaller_recipe, student_lines
from pocketbert.pipeline.run import REPORT_FILE, Run
from pocketbert.pipeline.run_folder import Permission, RunFolder, Step, StepPaths
from pocketbert.pipeline.run_folder.folder import RunResult

STUDENTS_FOLDER = "students"
"""Folder of the smaller students' runs in a run folder."""
_SEARCH_FOLDER = "search"
"""Folder of the figures in a run folder."""
_SELECTION_SHARE = 0.5
"""Share of the eval rows that choose files inside a budget, if the recipe names none."""
_LEAST_BITS = 4
"""No scheme stores a number in fewer bits."""
_STUDENTS_KEY = "quantize.budget.students"


class ChoosingRun(Run):
    """A run that chooses its files inside the budget of its recipe. Without a budget it is an ordinary run.

    With a budget, half of the eval rows choose files, unless the recipe sets `data.selection`.

    Args:
        recipe: A recipe, or the recipe made for a data file.
        folder: The run folder.
        allowed: Which existing files of the folder may be replaced.
    """

    followed: Run | None = None
    """The run of the chosen student, if it is not the recipe's own."""

    def __init__(self, recipe: AnyRecipe, folder: Path, allowed: Permission | None = None) -> None:
        super().__init__(recipe, folder, allowed)
        data = self.recipe.data
        if self.recipe.quantize.budget is not None and data.eval is not None and data.selection is None:
            # in the recipe, so that the run of the chosen files, smaller students and a later verify have the same rows
            data = data.model_copy(update={"selection": _SELECTION_SHARE})
            self.recipe = self.recipe.model_copy(update={"data": data})
            self.inputs = Inputs(self.recipe)

    def execute(self, until: str | None = None) -> None:
        """Run the steps. If the recipe has a budget, export, search for the best quantized files, and go on with these.

        Args:
            until: Name of the last step to run, without a search; None to run all.

        Raises:
            GateError: As `Run.execute`, and if a format (with smaller students: every student) has no file inside the
                budget. The exported files and the measured numbers are kept then.
            InputError: If a budget search cannot run with this recipe on this machine.
        """
        budget = self.recipe.quantize.budget
        if until is not None or budget is None:
            super().execute(until)
            return
        self.check_budget()
        exporting = _exporting_run(self)
        record = _export_and_search(exporting, budget, self.recipe.quantize.candidates)
        if record.student in (None, OWN_STUDENT):
            self._continue_with(record)
            super().execute()
        else:
            self.followed = _run_of_chosen_student(exporting, budget, record)
            self.followed.data = exporting.data
            self.followed.execute()
            _publish(self.followed, self.folder)
            write_json(self.path / SEARCH_FILE, record.model_dump(mode="json"))
        print_note("the same files from a plain recipe:")
        lines = student_lines(self.followed.recipe) if self.followed is not None else []
        for line in [*lines, recipe_lines(chosen_files(record.chosen), record.calibration)]:
            print_note(f"  {line}")

    def plan(self, until: str | None = None) -> list[tuple[str, str, str, str]]:
        """Return the state of each step as `Run.plan` does, with the files that an earlier search chose, if any."""
        path, budget = self.path / SEARCH_FILE, self.recipe.quantize.budget
        if budget is None or until is not None:
            return super().plan(until)
        self.check_budget()
        if not path.is_file():
            return super().plan()
        record = BudgetSearch.model_validate(read_json(path))
        if record.student in (None, OWN_STUDENT):
            self._continue_with(record)
            return super().plan()
        exporting = _exporting_run(self)
        first = exporting.plan(self.recipe.export.formats[-1].value)
        own = f"{STUDENTS_FOLDER}/{record.student}"
        then = _run_of_chosen_student(exporting, budget, record).plan()
        return [*first, *((f"{own}: {name}", f"{own}/{output}", state, why) for name, output, state, why in then)]

    def finish(self) -> RunResult:
        """Write the report and return the run's result; the report of a chosen smaller student is copied."""
        if self.followed is None:
            return super().finish()
        result = self.followed.finish()
        write_atomic(self.path / REPORT_FILE, (self.followed.path / REPORT_FILE).read_bytes())
        return replace(result, folder=self.path, phone=self.path / "phone", report=self.path / REPORT_FILE)

    def check_budget(self) -> None:
        """Check before training that a search for files inside the budget can run with this recipe on this machine.

        Raises:
            InputError: Listing every problem.
        """
        budget, formats = self.recipe.quantize.budget, self.recipe.export.formats
        if budget is None:
            return
        problems = _pruning_problems(self, budget.students)
        untimed = [f.value for f in formats if not FORMATS[f].timed]
        if budget.max_p90_ms is not None and untimed:
            what = f"{', '.join(untimed)} files cannot be timed on this machine."
            problems.append(Problem("quantize.budget.max_p90_ms", what, "Leave the limit or the format out."))
        if current_process().world > 1:
            what = "is searched by one process, and a launcher started several."
            fix = "Leave it out, then: pocketbert quantize -m RUN --budget ..."
            problems.append(Problem("quantize.budget", what, fix))
        if problems:
            raise InputError(problems)

    def _continue_with(self, record: BudgetSearch) -> None:
        """Replace the budget in the recipe by the files that a search chose."""
        section = self.recipe.quantize.choosing(chosen_files(record.chosen))
        self.recipe = self.recipe.model_copy(update={"quantize": section})
        self.inputs = Inputs(self.recipe, self.ready, None, record)


# --- before the search ------------------------------------------------------------------------------------------------


def _pruning_problems(run: Run, students: Sequence[SmallerStudent]) -> list[Problem]:
    """Return what is wrong with the smaller students, which are made by pruning the recipe's student; empty if nothing is."""
    own, problems = run.recipe.student, list[Problem]()
    if own is None or not students:
        return []
    source = run.inputs.start or run.model
    name = own.size.family if own.size is not None else own.family
    family = next((f for f in all_families() if f.name == name), source.family)
    width = family.read_size(source.config, "intermediate_size")
    for number, student in enumerate(students):
        if student.intermediate is not None:
            where = f"{_STUDENTS_KEY}.{number}.intermediate"
            if own.intermediate is None and own.size is None and width is not None:
                what = width_problem(student.intermediate, width)
                problems += [Problem(where, f"{what}.")] if what else []
            try:
                check_prunable(family, {}, student.intermediate, where)
            except InputError as error:
                problems += [Problem(where, p.what, "Leave intermediate out.") for p in error.problems]
        if student.vocabulary is not None:
            try:
                check_vocabulary(run.model)
            except InputError as error:
                problems += [Problem(f"{_STUDENTS_KEY}.{number}.vocabulary", p.what, p.fix) for p in error.problems]
    return problems


def _exporting_run(run: Run) -> Run:
    """Return a copy of the run whose recipe only exports files, without quantizing any."""
    exporting = Run(run.start or run.recipe, run.path, run.folder.allowed)
    section = QuantizeSection(scheme=Scheme.FP32, calibration=run.recipe.quantize.calibration)
    exporting.recipe = run.recipe.model_copy(update={"quantize": section})
    exporting.inputs, exporting.trained = Inputs(exporting.recipe, run.ready), run.trained
    return exporting


# --- the search -------------------------------------------------------------------------------------------------------


def _export_and_search(run: Run, budget: RecipeBudget, schemes: Sequence[Scheme]) -> BudgetSearch:
    """Run the steps up to the exported files, then search for the best files inside the budget.

    Smaller students of the budget are trained and searched too.

    Args:
        run: The run that only exports.
        budget: Limits on size, loss and latency, and the smaller students to train.
        schemes: Schemes of the quantized files to consider; empty for all.

    Returns:
        The record of the search, with the chosen files.

    Raises:
        GateError: If a format has no file inside the budget; with smaller students, if no student has one in every format.
    """
    run.execute(until=run.recipe.export.formats[-1].value)
    folder, students = run.path / _SEARCH_FOLDER, list[ConsideredStudent]()
    with run.folder.locked():
        inputs = _search_inputs(run)
        inputs = replace(inputs, student=OWN_STUDENT) if budget.students else inputs
        folder.mkdir(exist_ok=True)
        results = search_files(inputs, budget, schemes, folder)
        if budget.students:
            results, students = _StudentSearch(run, inputs, budget, schemes, folder).run(results)
        else:
            require_chosen_files(results, budget, "export.formats=")
    counts = {"of eval": run.labelled.count(EVAL), "held out of training": run.labelled.count(HOLDOUT)}
    scored = " and ".join(f"{count:,} rows {which}" for which, count in counts.items() if count)
    chose = len(inputs.choosing.rows.examples)
    rows = (
        f"{chose:,} rows of eval chose files and are in no score; {scored} chose nothing, and all scores are of these."
    )
    return search_record(results, inputs, budget, rows, students)


def _search_inputs(run: Run) -> SearchInputs:
    """Return the exported model and rows of a run as inputs of a budget search.

    Raises:
        InputError: If no row for choosing files has a label, or a part of the evaluation rows is empty.
    """
    choosing = run.labelled.named(SELECTION, run.weights)
    if choosing is None:
        raise InputError(Problem("data.eval", "has no scored rows; what a candidate loses cannot be measured on it."))
    recipe = run.recipe
    bases = {f: exported_file(f, format_place(f).exported_scheme(recipe)) for f in recipe.export.formats}
    return SearchInputs(
        run.exported,
        {f: run.path / file.source for f, file in bases.items()},
        calibration_rows(recipe, run.data, run.exported.tokenizer),
        replace(choosing, name="rows that choose"),
        run.data,
        sum(map(run.labelled.count, (EVAL, HOLDOUT))),
    )


@dataclass(frozen=True)
class _StudentSearch:
    """The search among the files of smaller students, which follows the search among those of the recipe's own student.

    Attributes:
        run_of_own: The run of the own student, which only exports.
        inputs: Exported files of the own student, and the rows.
        budget: Limits on size, loss and latency, and the smaller students to train.
        schemes: Schemes of the quantized files to consider; empty for all.
        figures: Workspace folder that keeps measured numbers.
    """

    run_of_own: Run
    inputs: SearchInputs
    budget: RecipeBudget
    schemes: Sequence[Scheme]
    figures: Path

    def run(self, own: list[FormatResult]) -> tuple[list[FormatResult], list[ConsideredStudent]]:
        """Train and search the smaller students, and choose the student whose files are kept.

        Args:
            own: The results for the files of the recipe's own student.

        Returns:
            All results, with the files of one student as the chosen ones, and the records of all students.

        Raises:
            GateError: If no student has a file inside the budget in every format.
        """
        parameters = read_training(self.run_of_own.weights).parameters
        students = [StudentResult(ConsideredStudent(name=OWN_STUDENT, parameters=parameters, lost=0.0), own)]
        for smaller in self.budget.students:
            print_note(f"student {smaller.name}: {self.budget.student_steps:,} steps, then its files", style="bold")
            students.append(self._train_and_search(smaller, students))
            if note := students[-1].record.note:
                print_note(f"  student {smaller.name}: {note}")
        best = best_student(students, self.budget)
        if best is None:
            raise no_student_error(students, self.budget)
        print_note(f"student {best.record.name}: chosen", style="green")
        records = [s.record.model_copy(update={"chosen": s is best}) for s in students]
        return merge_student_results(students, best), records

    def _train_and_search(self, smaller: SmallerStudent, before: Sequence[StudentResult]) -> StudentResult:
        """Train a smaller student, and search its best quantized file of each format inside the budget.

        Only a record with a note on the reason is returned if the student cannot be trained, or if none of its files could be
        inside the budget and better than those of `before`, the results of the students so far (the recipe's own first).
        """
        run = _run_of_student(self.run_of_own, smaller, self.budget.student_steps, self.run_of_own.data)
        record = ConsideredStudent(name=smaller.name)
        try:
            run.execute(until=STUDENT)
        except GateError as error:  # such as a vocabulary that does not cover the held-out rows
            return StudentResult(_with_note(record, f"not trained: {error.failures[0]}"))
        except InputError as error:
            if any(p.where != "student.vocabulary" for p in error.problems):
                raise
            return StudentResult(_with_note(record, f"not trained: {error.problems[0].what}"))  # no piece would go
        record = self._score(run, record)
        if record.note:
            return StudentResult(record)
        formats = run.recipe.export.formats
        run.execute(until=formats[0].value)
        inputs = replace(_search_inputs(run), student=smaller.name, against=self.inputs)
        rel, best = exported_file_error(inputs, self.figures), best_student(before, self.budget)
        if best is not None and cannot_win(rel, best, self.budget):
            why = f"the files of {best.record.name} are inside and closer to the exported file of the own student"
            note = f"not searched: before any scheme its answers differ by {rel:.3g} of the spread, and {why}"
            return StudentResult(_with_note(record, note))
        run.execute(until=formats[-1].value)
        errors = {c.name: c.rel for f in before[0].findings for c in f.candidates if c.rel is not None}
        return StudentResult(record, search_files(inputs, self.budget, self.schemes, self.figures, errors))

    def _score(self, run: Run, record: ConsideredStudent) -> ConsideredStudent:
        """Score a trained student on the rows that choose files; return its record with its size and its loss against the own student.

        If it keeps too little of the teacher's score, or none of its files can be inside the budget, the record has a note
        that says why.
        """
        parameters = read_training(run.weights).parameters
        record = record.model_copy(update={"parameters": parameters})
        score = run.labelled.torch_score(SELECTION, run.weights)
        gates = check_student(score, self._teacher_score, run.recipe.verify.min_kept, "the rows that choose")
        failed = [g.failure for g in gates if not g.passed]
        if failed:
            return _with_note(record, f"not exported: {failed[0]}")
        own_score = self._own_score
        assert score is not None and own_score is not None, "a budget has rows that choose"
        metric, limit = METRICS[score.metric], self.budget.max_drop
        lost = metric.drop(own_score.value, score.value)
        record = record.model_copy(update={"lost": lost})
        comparison = f"{metric.lost(lost)} than the own student before any scheme"
        print_note(f"  {parameters / 1e6:.2f} M parameters; {comparison}")
        if limit is not None and not lost <= limit:
            return _with_note(record, f"not exported: {comparison}")
        least, largest = parameters * _LEAST_BITS / 8e6, self.budget.max_size_mb
        if largest is not None and least > largest:
            return _with_note(record, f"not exported: at least {least:.1f} MB, with {_LEAST_BITS} bits for each number")
        return record

    @cached_property
    def _teacher_score(self) -> Score | None:
        """Score of the teacher on the rows that choose files; None if it was not scored."""
        return self.run_of_own.labelled.torch_score(SELECTION, self.run_of_own.path / "teacher")

    @cached_property
    def _own_score(self) -> Score | None:
        """Score of the recipe's own student on the rows that choose files; None if it was not scored."""
        return self.run_of_own.labelled.torch_score(SELECTION, self.run_of_own.weights)


def _with_note(record: ConsideredStudent, note: str) -> ConsideredStudent:
    """Return a student's record with a note on why it is not considered further."""
    return record.model_copy(update={"note": note})


# --- runs of smaller students -----------------------------------------------------------------------------------------


def _run_of_student(run: Run, student: SmallerStudent, steps: int, data: RunData | None = None) -> Run:
    """Return the ordinary run of a smaller student, in a subfolder of the run of the recipe's own student.

    Args:
        run: The run of the own student, which has its weights.
        student: The smaller student.
        steps: Number of steps that the smaller student is trained for.
        data: The rows, if they were read already.
    """
    recipe = smaller_recipe(run.recipe, student, steps, run.path.absolute(), run.model.licence)
    return Run(recipe, run.path / STUDENTS_FOLDER / student.name, run.folder.allowed, data=data)


def _run_of_chosen_student(exporting: Run, budget: RecipeBudget, record: BudgetSearch) -> Run:
    """Return the run of the smaller student that a search chose, with the chosen quantized files in its recipe.

    Raises:
        InputError: If the recipe does not name that student any more.
    """
    student = next((s for s in budget.students if s.name == record.student), None)
    if student is None:
        what = f"the student that was chosen, {record.student}, is not among quantize.budget.students any more."
        raise InputError(Problem(str(exporting.path), what, "Put it back, use another -o/--output, or --overwrite."))
    run = _run_of_student(exporting, student, budget.student_steps)
    section = run.recipe.quantize.choosing(chosen_files(record.chosen))
    run.recipe = run.recipe.model_copy(update={"quantize": section})
    run.inputs = Inputs(run.recipe, search=record)
    return run


def _publish(finished: Run, folder: RunFolder) -> None:
    """Copy the artefact folder of a smaller student's finished run into the folder of the run with the budget.

    Raises:
        InputError: If another artefact folder is there and may not be replaced.
    """
    source = finished.path / "phone"

    def copy_files(places: StepPaths) -> Sequence[str]:
        """Copy every file of the student's artefact folder to the output of the step."""
        for path in source.iterdir():
            copy_path(path, places.output / path.name)
        return ()

    step = Step(
        name="pack",
        title=f"the artefact folder of {finished.path.name}",
        output="phone",
        settings={_STUDENTS_KEY: finished.path.name},
        gates={"its artefact folder": sha256_file(source / ARTEFACTS_FILE)},
        needs=(),
        make=copy_files,
    )
    with folder.locked():
        folder.hash([step])
        folder.recover([step])
        folder.carry_out(folder.plan([step]), [step])
        folder.run(step, 1, 1)
