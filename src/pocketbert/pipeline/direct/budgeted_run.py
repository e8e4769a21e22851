"""A budget over several students: each smaller one is an ordinary run in a folder of the run, searched like the own one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME, SEARCH_FILE, BudgetSearch, ConsideredStudent
from pocketbert.core.disk.files import copy_path, read_json, sha256_file, write_atomic, write_json
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.families import all_families, check_pruned
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.scores import Score
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import OWN, RecipeBudget, SmallerStudent, width_problem
from pocketbert.core.types import Scheme
from pocketbert.pipeline.direct.search import (
    Considered,
    Finding,
    Material,
    best_student,
    cannot_win,
    check_inside,
    chosen_files,
    exported_error,
    one_choice,
    recipe_lines,
    refuse_all,
    search,
    told_of,
)
from pocketbert.pipeline.formats.base import exported_file, place_of
from pocketbert.pipeline.gates.checks import STUDENT, student_gates
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import RunData, calibration_rows
from pocketbert.pipeline.learn.finishing import EVAL, HOLDOUT, SELECTION, read_training
from pocketbert.pipeline.learn.vocabulary import check_vocabulary
from pocketbert.pipeline.recipes import AnyRecipe, smaller_recipe, student_lines
from pocketbert.pipeline.run import REPORT_FILE, Run
from pocketbert.pipeline.run_folder import Permission, Places, RunFolder, Step
from pocketbert.pipeline.run_folder.folder import RunResult

# --- exported ---
# What a search reads of a run whose files are exported: the files, the rows that rank, and the rows that choose.


def run_material(run: Run) -> Material:
    """What the search reads of a run with exported files; no row that ranks or chooses is one that is scored.

    Args:
        run: The run; its recipe divides the eval rows (`data.selection`).

    Raises:
        InputError: If no row that chooses has a label, or a part of the eval rows is empty.
    """
    choosing = run.labelled.named(SELECTION, run.weights)
    if choosing is None:
        raise InputError(Problem("data.eval", "has no scored rows; what a candidate loses cannot be measured on it."))
    recipe = run.recipe
    bases = {f: exported_file(f, place_of(f).exported_scheme(recipe)) for f in recipe.export.formats}
    return Material(
        run.exported,
        {f: run.path / file.source for f, file in bases.items()},
        calibration_rows(recipe, run.data, run.exported.tokenizer),
        replace(choosing, name="rows that choose"),
        run.data,
        sum(map(run.labelled.count, (EVAL, HOLDOUT))),
    )


def rows_in_words(run: Run, material: Material) -> str:
    """Tell which rows chose and which are scored.

    Args:
        run: The run.
        material: What the search read of it.
    """
    counts = {name: run.labelled.count(name) for name in (EVAL, HOLDOUT)}
    scored = " and ".join(f"{count:,} rows of {name}" for name, count in counts.items() if count)
    chose = len(material.choosing.rows.examples)
    return (
        f"{chose:,} rows of eval chose files and are in no score; {scored} chose nothing, and all scores are of these."
    )


FOLDER = "students"
"""Folder of the smaller students' runs in a run folder."""
_KEY = "quantize.budget.students"
_LEAST_BITS = 4
"""No scheme stores a number in fewer bits."""


@dataclass(frozen=True)
class Contest:
    """The recipe's own student, exported, and what the smaller ones are judged by.

    Attributes:
        run: The run of the own student.
        material: Its exported files and the rows.
        budget: The limits and the smaller students.
        schemes: Schemes to consider; empty for all.
        figures: Folder of the figures.
    """

    run: Run
    material: Material
    budget: RecipeBudget
    schemes: Sequence[Scheme]
    figures: Path

    @cached_property
    def _teacher_score(self) -> Score | None:
        """The teacher's score on the rows that choose."""
        return self.run.labelled.torch_score(SELECTION, self.run.path / "teacher")

    @cached_property
    def _own_score(self) -> Score | None:
        """The own student's score on the rows that choose."""
        return self.run.labelled.torch_score(SELECTION, self.run.weights)

    def hold(self, own: list[Finding]) -> tuple[list[Finding], list[ConsideredStudent]]:
        """Train and search the smaller students, and choose one of all.

        Args:
            own: What was found among the files of the recipe's own student.

        Returns:
            All findings, with the files of one student as the chosen ones, and all students.

        Raises:
            GateError: If no student has a file inside in every format.
        """
        parameters = read_training(self.run.weights).parameters
        considered = [Considered(ConsideredStudent(name=OWN, parameters=parameters, lost=0.0), own)]
        for wanted in self.budget.students:
            say(f"student {wanted.name}: {self.budget.student_steps:,} steps, then its files", style="bold")
            considered.append(self._consider(wanted, considered))
            if note := considered[-1].record.note:
                say(f"  student {wanted.name}: {note}")
        best = best_student(considered, self.budget)
        if best is None:
            raise refuse_all(considered, self.budget)
        say(f"student {best.record.name}: chosen", style="green")
        told = [c.record.model_copy(update={"chosen": c is best}) for c in considered]
        return one_choice(considered, best), told

    def _consider(self, wanted: SmallerStudent, before: Sequence[Considered]) -> Considered:
        """Train one student; search its files where one of them can still be inside and the one to keep."""
        run = small_run(self.run, wanted, self.budget.student_steps, self.run.data)
        record = ConsideredStudent(name=wanted.name)
        try:
            run.execute(until=STUDENT)
        except GateError as error:  # such as a vocabulary that does not cover the held-out rows
            return Considered(_noted(record, f"not trained: {error.failures[0]}"))
        except InputError as error:
            if any(p.where != "student.vocabulary" for p in error.problems):
                raise
            return Considered(_noted(record, f"not trained: {error.problems[0].what}"))  # no piece would go
        record = self._scored(run, record)
        if record.note:
            return Considered(record)
        formats = run.recipe.export.formats
        run.execute(until=formats[0].value)
        material = replace(run_material(run), student=wanted.name, against=self.material)
        rel, best = exported_error(material, self.figures), best_student(before, self.budget)
        if best is not None and cannot_win(rel, best, self.budget):
            why = f"the files of {best.record.name} are inside and closer to the exported file of the own student"
            note = f"not searched: before any scheme its answers differ by {rel:.3g} of the spread, and {why}"
            return Considered(_noted(record, note))
        run.execute(until=formats[-1].value)
        errors = {c.name: c.rel for f in before[0].findings for c in f.candidates if c.rel is not None}
        return Considered(record, search(material, self.budget, self.schemes, self.figures, errors))

    def _scored(self, run: Run, record: ConsideredStudent) -> ConsideredStudent:
        """The figures of a trained student on the rows that choose, with a note where no file of it could be inside."""
        parameters = read_training(run.weights).parameters
        record = record.model_copy(update={"parameters": parameters})
        score = run.labelled.torch_score(SELECTION, run.weights)
        gates = student_gates(score, self._teacher_score, run.recipe.verify.min_kept, "the rows that choose")
        failed = [g.failure for g in gates if not g.passed]
        if failed:
            return _noted(record, f"not exported: {failed[0]}")
        before = self._own_score
        assert score is not None and before is not None, "a budget has rows that choose"
        metric, limit = METRICS[score.metric], self.budget.max_drop
        lost = metric.drop(before.value, score.value)
        record = record.model_copy(update={"lost": lost})
        words = f"{metric.lost(lost)} than the own student before any scheme"
        say(f"  {parameters / 1e6:.2f} M parameters; {words}")
        if limit is not None and not lost <= limit:
            return _noted(record, f"not exported: {words}")
        least, largest = parameters * _LEAST_BITS / 8e6, self.budget.max_size_mb
        if largest is not None and least > largest:
            return _noted(record, f"not exported: at least {least:.1f} MB, with {_LEAST_BITS} bits for each number")
        return record


def _noted(record: ConsideredStudent, note: str) -> ConsideredStudent:
    return record.model_copy(update={"note": note})


def small_run(run: Run, wanted: SmallerStudent, steps: int, data: RunData | None = None) -> Run:
    """The ordinary run of a smaller student, in a folder of the run of the own student.

    Args:
        run: The run of the own student, which has its weights.
        wanted: The student.
        steps: Steps that it learns.
        data: The rows, where they were read already.
    """
    recipe = smaller_recipe(run.recipe, wanted, steps, run.path.absolute(), run.model.licence)
    return Run(recipe, run.path / FOLDER / wanted.name, run.folder.allowed, data=data)


def publish(made: Run, folder: RunFolder) -> None:
    """Copy the artefact folder of a smaller student's run to where a run has it.

    Args:
        made: The finished run of the student.
        folder: The folder of the run with the budget.

    Raises:
        InputError: If another artefact folder is there, and it may not be replaced.
    """
    source = made.path / "phone"
    step = Step(
        name="pack",
        title=f"the artefact folder of {made.path.name}",
        output="phone",
        settings={_KEY: made.path.name},
        gates={"its artefact folder": sha256_file(source / FILE_NAME)},
        needs=(),
        make=partial(_copy, source),
    )
    with folder.locked():
        folder.hash([step])
        folder.recover([step])
        folder.carry_out(folder.plan([step]), [step])
        folder.run(step, 1, 1)


def _copy(source: Path, at: Places) -> Sequence[str]:
    for path in source.iterdir():
        copy_path(path, at.output / path.name)
    return ()


def pruning_problems(run: Run, students: Sequence[SmallerStudent]) -> list[Problem]:
    """List students whose pieces or neurons cannot be removed, before anything is trained.

    Args:
        run: The run of the own student.
        students: The smaller ones.
    """
    own, problems = run.recipe.student, list[Problem]()
    if own is None or not students:
        return []
    source = run.inputs.start or run.model
    name = own.size.family if own.size is not None else own.family
    family = next((f for f in all_families() if f.name == name), source.family)
    width = source.config.get(family.config_names.get("intermediate_size", "intermediate_size"))
    for number, student in enumerate(students):
        if student.intermediate is not None:
            where = f"{_KEY}.{number}.intermediate"
            if own.intermediate is None and own.size is None and isinstance(width, int):
                what = width_problem(student.intermediate, width)
                problems += [Problem(where, f"{what}.")] if what else []
            try:
                check_pruned(family, {}, student.intermediate, where)
            except InputError as error:
                problems += [Problem(where, p.what, "Leave intermediate out.") for p in error.problems]
        if student.vocabulary is not None:
            try:
                check_vocabulary(run.model)
            except InputError as error:
                problems += [Problem(f"{_KEY}.{number}.vocabulary", p.what, p.fix) for p in error.problems]
    return problems


# --- running ---
# `run` of a recipe with a budget: the exported files first, then the search, then the rest with the chosen files.


RUNNING_FOLDER = "search"
"""Folder of the figures in a run folder."""
SELECTION_SHARE = 0.5
"""Share of the eval rows that choose files inside a budget, where the recipe names none."""


class ChoosingRun(Run):
    """A run that chooses its files first, where its recipe has a budget; another one is an ordinary run."""

    followed: Run | None = None
    """The run of the chosen student, where it is not the recipe's own."""

    def __init__(self, recipe: AnyRecipe, folder: Path, allowed: Permission | None = None) -> None:
        super().__init__(recipe, folder, allowed)
        data = self.recipe.data
        if self.recipe.quantize.budget is not None and data.eval is not None and data.selection is None:
            # in the recipe, so that the run of the chosen files, smaller students and a later verify have the same rows
            self.recipe = self.recipe.model_copy(
                update={"data": data.model_copy(update={"selection": SELECTION_SHARE})}
            )
            self.inputs = Inputs(self.recipe)

    def execute(self, until: str | None = None) -> None:
        """Run the steps; see `Run.execute`.

        Raises:
            GateError: Also if a format has no file inside the budget; the exported files and the figures stay.
        """
        budget = self.recipe.quantize.budget
        if until is not None or budget is None:
            super().execute(until)
            return
        _check(self, budget)
        exported = _exporting(self)
        told = _searched(exported, budget, self)
        if told.student in (None, OWN):
            self._take(told)
            super().execute()
        else:
            self.followed = _following(exported, budget, told)
            self.followed.data = exported.data
            self.followed.execute()
            publish(self.followed, self.folder)
            write_json(self.path / SEARCH_FILE, told.model_dump(mode="json"))
        _tell(self, told)

    def plan(self, until: str | None = None) -> list[tuple[str, str, str, str]]:
        """See `Run.plan`; the files are those of an earlier search, if there was one: nothing is searched here."""
        path, budget = self.path / SEARCH_FILE, self.recipe.quantize.budget
        if budget is None or until is not None:
            return super().plan(until)
        _check(self, budget)
        if not path.is_file():
            return super().plan()
        told = BudgetSearch.model_validate(read_json(path))
        if told.student in (None, OWN):
            self._take(told)
            return super().plan()
        exported = _exporting(self)
        first = exported.plan(self.recipe.export.formats[-1].value)
        own = f"{FOLDER}/{told.student}"
        then = _following(exported, budget, told).plan()
        return [*first, *((f"{own}: {name}", f"{own}/{output}", state, why) for name, output, state, why in then)]

    def finish(self) -> RunResult:
        """See `Run.finish`; the page of a smaller student's run is copied to this run's folder."""
        if self.followed is None:
            return super().finish()
        made = self.followed.finish()
        write_atomic(self.path / REPORT_FILE, (self.followed.path / REPORT_FILE).read_bytes())
        return replace(made, folder=self.path, phone=self.path / "phone", report=self.path / REPORT_FILE)

    def _take(self, told: BudgetSearch) -> None:
        """Go on with the recipe that names the chosen files and has no budget."""
        self.recipe = self.recipe.model_copy(update={"quantize": _chosen(self.recipe, told)})
        self.inputs = Inputs(self.recipe, self.ready, None, told)


def _chosen(recipe: Recipe, told: BudgetSearch) -> QuantizeSection:
    return recipe.quantize.choosing(chosen_files(told.chosen))


def _exporting(run: Run) -> Run:
    """The same run, which only exports files."""
    exported = Run(run.start or run.recipe, run.path, run.folder.allowed)
    none = QuantizeSection(scheme=Scheme.FP32, calibration=run.recipe.quantize.calibration)
    exported.recipe = run.recipe.model_copy(update={"quantize": none})
    exported.inputs = Inputs(exported.recipe, run.ready)
    return exported


def _following(exported: Run, budget: RecipeBudget, told: BudgetSearch) -> Run:
    """The run of the student that was chosen, with its files."""
    wanted = next((s for s in budget.students if s.name == told.student), None)
    if wanted is None:
        what = f"the student that was chosen, {told.student}, is not among quantize.budget.students any more."
        raise InputError(Problem(str(exported.path), what, "Put it back, use another -o/--output, or --overwrite."))
    run = small_run(exported, wanted, budget.student_steps)
    run.recipe = run.recipe.model_copy(update={"quantize": _chosen(run.recipe, told)})
    run.inputs = Inputs(run.recipe, search=told)
    return run


def _searched(run: Run, budget: RecipeBudget, whole: Run) -> BudgetSearch:
    """Run the steps up to the exported files, and choose among what can be made of them and of smaller students."""
    run.execute(until=run.recipe.export.formats[-1].value)
    folder, schemes = run.path / RUNNING_FOLDER, whole.recipe.quantize.candidates
    with run.folder.locked():
        material = run_material(run)
        material = replace(material, student=OWN) if budget.students else material
        folder.mkdir(exist_ok=True)
        findings = search(material, budget, schemes, folder)
        if not budget.students:
            check_inside(findings, budget, "export.formats=")
            return told_of(findings, material, budget, rows_in_words(run, material))
        findings, students = Contest(run, material, budget, schemes, folder).hold(findings)
    return told_of(findings, material, budget, rows_in_words(run, material), students)


def _tell(run: ChoosingRun, told: BudgetSearch) -> None:
    """Say how a plain recipe makes the same files."""
    followed = run.followed
    lines = student_lines(followed.recipe) if followed is not None else []
    files = chosen_files(told.chosen)
    say("the same files from a plain recipe:")
    for line in [*lines, recipe_lines(files, told.calibration)]:
        say(f"  {line}")


def _check(run: Run, limits: RecipeBudget) -> None:
    """Refuse what would fail only after the training.

    Raises:
        InputError: Listing every problem.
    """
    problems, formats = pruning_problems(run, limits.students), run.recipe.export.formats
    untimed = [f.value for f in formats if not FORMATS[f].timed]
    if limits.max_p90_ms is not None and untimed:
        what = f"{', '.join(untimed)} files cannot be timed on this machine."
        problems.append(Problem("quantize.budget.max_p90_ms", what, "Leave the limit or the format out."))
    if here().world > 1:
        what = "is searched by one process, and a launcher started several."
        problems.append(Problem("quantize.budget", what, "Leave it out, then: pocketbert quantize -m RUN --budget ..."))
    if problems:
        raise InputError(problems)
