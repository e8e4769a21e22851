"""A budget over several students: each smaller one is an ordinary run in a folder of the run, searched like the own one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME, ConsideredStudent
from pocketbert.core.disk.files import copy_path, sha256_file
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.families import all_families, check_pruned
from pocketbert.core.host.progress import say
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.score import Score
from pocketbert.core.recipe.smaller import OWN, RecipeBudget, SmallerStudent, width_problem
from pocketbert.core.types import Scheme
from pocketbert.pipeline.direct.exported import run_material
from pocketbert.pipeline.direct.plain_recipe import smaller_recipe
from pocketbert.pipeline.direct.search import (
    Considered,
    Finding,
    Material,
    best_student,
    cannot_win,
    exported_error,
    one_choice,
    refuse_all,
    search,
)
from pocketbert.pipeline.gates.student import STUDENT, student_gates
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.learn.labelled import SELECTION
from pocketbert.pipeline.learn.vocabulary import check_vocabulary
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Places, RunFolder, Step

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
