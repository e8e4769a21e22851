"""`run` of a recipe with a budget: the exported files first, then the search, then the rest with the chosen files."""

from __future__ import annotations

from pocketbert.core.artefacts import SEARCH_FILE, BudgetSearch
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.processes import here
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.types import Scheme
from pocketbert.pipeline.direct.search import Material, check_inside, chosen_files, search, told_of
from pocketbert.pipeline.formats.model_files import exported_file
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.run import Run

FOLDER = "search"
"""Folder of the figures in a run folder."""


class ChoosingRun(Run):
    """A run that chooses its files first, where its recipe has a budget; another one is an ordinary run."""

    def execute(self, until: str | None = None) -> None:
        """Run the steps; see `Run.execute`.

        Raises:
            GateError: Also if a format has no file inside the budget; the exported files and the figures stay.
        """
        budget = self.recipe.quantize.budget
        if until is None and budget is not None:
            self._take(_searched(self, budget))
        super().execute(until)

    def plan(self) -> list[tuple[str, str, str, str]]:
        """See `Run.plan`; the files are those of an earlier search, if there was one: nothing is searched here."""
        path = self.path / SEARCH_FILE
        if self.recipe.quantize.budget is not None and path.is_file():
            self._take(BudgetSearch.model_validate(read_json(path)))
        return super().plan()

    def _take(self, told: BudgetSearch) -> None:
        """Go on with the recipe that names the chosen files and has no budget."""
        files = chosen_files({c.format: c.scheme for c in told.chosen})
        self.recipe = self.recipe.model_copy(update={"quantize": QuantizeSection(files=files)})
        self.inputs = Inputs(self.recipe, self.ready, None, told)


def _searched(run: Run, budget: BudgetSection) -> BudgetSearch:
    """Run the steps up to the exported files, and choose among what can be made of them."""
    _check(run, budget)
    exported = Run(run.start or run.recipe, run.path, run.folder.allowed)
    exported.recipe = run.recipe.model_copy(update={"quantize": QuantizeSection(scheme=Scheme.FP32)})
    exported.inputs = Inputs(exported.recipe, run.ready)
    exported.execute(until=run.recipe.export.formats[-1].value)
    with exported.folder.locked():
        material = _material(exported)
        (run.path / FOLDER).mkdir(exist_ok=True)
        findings = search(material, budget, run.recipe.quantize.candidates, run.path / FOLDER)
    check_inside(findings, budget, "export.formats=")
    return told_of(findings, material, budget, _rows(material))


def _check(run: Run, limits: BudgetSection) -> None:
    """Refuse what would fail only after the training.

    Raises:
        InputError: Listing every problem.
    """
    problems, formats = [], run.recipe.export.formats
    untimed = [f.value for f in formats if not FORMATS[f].timed]
    if limits.max_p90_ms is not None and untimed:
        what = f"{', '.join(untimed)} files cannot be timed on this machine."
        problems.append(Problem("quantize.budget.max_p90_ms", what, "Leave the limit or the format out."))
    if here().world > 1:
        what = "is searched by one process, and a launcher started several."
        problems.append(Problem("quantize.budget", what, "Leave it out, then: pocketbert quantize -m RUN --budget ..."))
    if problems:
        raise InputError(problems)


def _material(run: Run) -> Material:
    """What the search reads of a run with exported files.

    Raises:
        InputError: If no evaluation row has a label.
    """
    sets = {rows.name: rows for rows in run.eval_sets()}
    if "eval" not in sets:
        raise InputError(Problem("data.eval", "has no scored rows; what a candidate loses cannot be measured on it."))
    recipe = run.recipe
    bases = {f: exported_file(f, place_of(f).exported_scheme(recipe)) for f in recipe.export.formats}
    return Material(
        run.exported,
        {f: run.path / file.source for f, file in bases.items()},
        run.data.calibration(run.exported.tokenizer),
        EvalSet("rows that choose", sets["eval"].head, sets["eval"].rows),
        run.data,
        len(sets["holdout"].rows.examples) if "holdout" in sets else 0,
    )


def _rows(material: Material) -> str:
    """Which rows chose and which scored."""
    same = f"{len(material.choosing.rows.examples):,} rows of eval chose, and the scores on eval are of the same rows"
    if material.kept_apart:
        return f"{same}; the {material.kept_apart:,} rows of holdout chose nothing."
    return f"{same}: expect new texts to lose a little more. data.holdout keeps rows apart that choose nothing."
