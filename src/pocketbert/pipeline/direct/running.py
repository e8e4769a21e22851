"""`run` of a recipe with a budget: the exported files first, then the search, then the rest with the chosen files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pocketbert.core.artefacts import SEARCH_FILE, BudgetSearch
from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.smaller import OWN, RecipeBudget
from pocketbert.core.types import Scheme
from pocketbert.pipeline.direct.exported import rows_in_words, run_material
from pocketbert.pipeline.direct.plain_recipe import student_lines
from pocketbert.pipeline.direct.search import check_inside, chosen_files, recipe_lines, search, told_of
from pocketbert.pipeline.direct.students import FOLDER as STUDENTS
from pocketbert.pipeline.direct.students import Contest, pruning_problems, publish, small_run
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.starting import AnyRecipe
from pocketbert.pipeline.run import REPORT_FILE, Run
from pocketbert.pipeline.run_folder import Permission
from pocketbert.pipeline.run_folder.result import RunResult

FOLDER = "search"
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
        own = f"{STUDENTS}/{told.student}"
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
    folder, schemes = run.path / FOLDER, whole.recipe.quantize.candidates
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
