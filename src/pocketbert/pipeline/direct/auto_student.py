"""Runs that choose their student by themselves (`student: auto`): the smallest one that keeps enough of the teacher.

`AutoStudentRun` makes the teacher, then trains students from the smallest on, scores each on validation rows, and measures size and
latency of its file (after a brief training only if the recipe limits them). A static student is trained fully at once. Encoders are trained briefly, until one keeps enough already; then the
promising ones are trained fully, the smallest first. The run goes on as that of a plain recipe with the student that won, whose
weights it takes over. Every training is a step of the run folder (in ``tried``), so that a killed run continues with what is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from pocketbert.core.artefacts.search import TRIED_FILE, TriedStudent, TriedStudents
from pocketbert.core.data.source import EvalSource
from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.core.metrics import METRICS
from pocketbert.core.recipe.file import dump_recipe
from pocketbert.core.recipe.ladder import Rung, rung_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format
from pocketbert.pipeline.direct.budgeted_run import ChoosingRun
from pocketbert.pipeline.direct.student_trials import (
    CONFIDENCE,
    TIMED_TEXTS,
    TRAINED_STUDENT,
    TRIED_FOLDER,
    StudentTrials,
    list_exportable_rungs,
)
from pocketbert.pipeline.doctor import require
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.validation import VALIDATION
from pocketbert.pipeline.recipes import AnyRecipe, student_lines
from pocketbert.pipeline.run import RECIPE_FILE, Run, logged
from pocketbert.pipeline.run_folder import Permission

_VALIDATION = EvalSource(fraction=0.1, at_most=1000)
"""The training rows that compare students, if the recipe names no validation rows."""
_LEAST_ROWS = 50
"""Fewest validation rows on which students are compared."""
_BRIEF = 0.12
"""Share of the steps of a brief training."""
_PROMISING = 2.0
"""A brief training is promising if the student loses at most this many times what it may lose after a full one."""
_MOST_COST = 2.2
"""Estimated time of all trainings, as a multiple of that of a student of three layers, within which students are tried."""


class AutoStudentRun(ChoosingRun):
    """A run that chooses its student if the recipe says `student: auto`; with another recipe it behaves as `ChoosingRun`.

    If the recipe names no validation rows, a tenth of the training rows compare the students, at most a thousand.

    Args:
        recipe: A recipe, or its file.
        folder: The run folder.
        allowed: Which existing files of the folder may be replaced.
    """

    def __init__(self, recipe: AnyRecipe, folder: Path, allowed: Permission | None = None) -> None:
        super().__init__(recipe, folder, allowed)
        self._choice: _StudentChoice | None = None
        self._adds_rows = False
        if self.recipe.student is None or self.recipe.student.auto is None:
            return
        data = self.recipe.data
        self._adds_rows = data.validation is None
        if self._adds_rows:  # in the recipe, so that the plain recipe of the chosen student has the same rows
            data = data.model_copy(update={"validation": _VALIDATION})
            self.recipe = self.recipe.model_copy(update={"data": data})
        self._choice = _StudentChoice(self, self.recipe)

    def execute(self, until: str | None = None) -> None:
        """Run the steps; with `student: auto` make the teacher, choose the student, and go on with its plain recipe.

        Arguments as of `Run.execute`.

        Raises:
            GateError: As `ChoosingRun.execute`, and if no student keeps enough of the teacher's score within the limits and the recipe
                does not ask for the best one then. All trained students are kept.
            InputError: If there are too few validation rows, several processes, or no student that can be made and exported.
        """
        choice = self._choice
        if choice is None:
            super().execute(until)
            return
        if current_process().world > 1:
            what = "is chosen by one process, and a launcher started several."
            raise InputError(Problem("student.auto", what, "Give the student layers, or start one process."))
        self._go_on_with(choice.rungs[0])
        names = [step.name for step in self.steps()]
        before = names[: names.index("distill.0")]
        if until in before:
            super().execute(until)
            self._write_recipe()
            return
        if until is None:
            self.check_budget()  # the chosen student's run would check it only after all trainings
        require("train", Format.ONNX.value)  # students are measured as ONNX files, whatever the recipe exports
        if not (self.path / TRIED_FILE).is_file():
            choice.check_rows()
        Run.execute(self, before[-1])
        self._write_recipe()
        tried = choice.make()
        chosen = choice.find_chosen(tried)
        if chosen is None:
            self.recipe = choice.recipe  # for the report, whose recipe names no single student
            self.write_early_report(tried)
            raise choice.failure(tried)
        seconds = sum(student.cpu_s for student in tried.students)
        best = f"it keeps most, and none is certain to keep {100 * tried.keep:g} % of the teacher's score"
        why = f"the smallest with {tried.limits}" if choice.keeps(choice.students[chosen.name]) else best
        print_note(f"student {chosen.name}: chosen, {why} ({seconds:,.0f} CPU-s for all)", style="green")
        self._go_on_with(chosen)
        self.trained = {"distill/0": self.path / TRIED_FOLDER / chosen.name / TRAINED_STUDENT}
        super().execute(until)
        print_note("the same student from a plain recipe:")
        for line in student_lines(self.recipe)[1:]:
            print_note(f"  {line}")
        if self._adds_rows:  # without them the student would learn from these rows, too
            taken = f"fraction: {_VALIDATION.fraction:g}, at_most: {_VALIDATION.at_most}"
            print_note(f"  and in the section data: validation: {{{taken}}}")

    def plan(self, until: str | None = None) -> list[tuple[str, str, str, str]]:
        """List the steps of the run, as `Run.plan` does, with the student that was chosen before.

        If none was, the steps are those of the first candidate, and a step ``students`` stands for the choice. With `until`
        the choice is left out.
        """
        choice = self._choice
        if choice is None or until is not None:
            return super().plan(until)
        path = self.path / TRIED_FILE
        chosen = choice.find_chosen(TriedStudents.model_validate(read_json(path)) if path.is_file() else None)
        self._go_on_with(chosen or choice.rungs[0])
        steps = super().plan()
        if chosen is not None:
            return steps
        first = [name for name, *_ in steps].index("distill.0")
        return [*steps[:first], ("students", TRIED_FOLDER, "to do", ""), *steps[first:]]

    def _write_recipe(self) -> None:
        """Write the recipe with `student: auto`, which names no student yet, to the run folder."""
        assert self._choice is not None
        write_atomic(self.path / RECIPE_FILE, dump_recipe(self._choice.recipe))

    def _go_on_with(self, rung: Rung) -> None:
        """Replace `student: auto` in the recipe by one student."""
        assert self._choice is not None
        self.recipe = rung_recipe(self._choice.recipe, rung)
        self.inputs = Inputs(self.recipe, self.ready, self.model)


# --- which students are trained, and which one wins --------------------------------------------------------------------


class _StudentChoice:
    """The choice among students of one teacher: which ones are trained, how long, and which one wins.

    Args:
        run: The run, whose teacher is made before `make` is called.
        recipe: Its recipe, with `student: auto`.
    """

    def __init__(self, run: Run, recipe: Recipe) -> None:
        assert recipe.student is not None
        assert recipe.student.auto is not None
        self.run, self.recipe, self.limits = run, recipe, recipe.student.auto
        self.students: dict[str, TriedStudent] = {}
        self._spent = 0.0

    @cached_property
    def rungs(self) -> list[Rung]:
        """The students that the teacher and the recipe allow, smallest first; raise InputError if there are none."""
        model, train = self.run.model, self.recipe.data.train
        pairs = train is not None and train.text_pair is not None
        allowed, problems = list_exportable_rungs(self.recipe, model, pairs)
        if not allowed:
            what = f"no student of '{model.title}' can be made and exported."
            raise InputError(problems or [Problem("student.auto", what, "Choose another teacher.")])
        return allowed

    def find_chosen(self, tried: TriedStudents | None) -> Rung | None:
        """Return the student that a record of tried students names as the chosen one; None if it names none."""
        name = tried.chosen.name if tried is not None and tried.chosen is not None else None
        return next((rung for rung in self.rungs if rung.name == name), None)

    @cached_property
    def trials(self) -> StudentTrials:
        """The trainings of single students."""
        return StudentTrials(self.run)

    def check_rows(self) -> None:
        """Raise InputError if there are too few validation rows to compare students on."""
        rows = self.run.data.splits.get(VALIDATION)
        count = len(rows.examples) if rows is not None else 0
        if count < _LEAST_ROWS:
            what = f"compares students on validation rows, and there are {count:,}; at least {_LEAST_ROWS} are needed."
            fix = "Name more rows (data.validation.path=validation.csv), or give the student layers: student: {layers: 3}."
            raise InputError(Problem("student.auto", what, fix))

    def make(self) -> TriedStudents:
        """Train and compare students in the run folder, and write and return the record of all of them."""
        self.students = {r.name: TriedStudent(name=r.name, layers=r.layers, width=r.width) for r in self.rungs}
        folder = self.run.path
        with self.run.folder.locked(), logged(folder / "run.log"):
            remove(folder / TRIED_FILE)
            print_note(f"students: the smallest with {self.limits.text}", style="bold")
            winner = self._find_winner()
            if (chosen := winner or self._find_best()) is not None:
                self._update(chosen, chosen=True)
            self._estimate_files()
            for rung in self.rungs:
                record = self.students[rung.name]
                if not record.trained and not record.note:
                    is_larger = winner is not None and rung.work > winner.work
                    self._update(rung, note="not needed: a smaller one is taken" if is_larger else "not tried")
            trials = self.trials
            assert trials.first is not None
            count = len(self.run.texts(TIMED_TEXTS))
            tried = TriedStudents(
                limits=self.limits.text,
                keep=self.limits.keep,
                metric=trials.first.metric,
                teacher=trials.first.teacher,
                rows=trials.first.rows,
                confidence=CONFIDENCE,
                file=trials.file_title,
                latency=f"median of {count or 'some'} texts {'of eval' if count else 'of the project'}, one thread, one at a time",
                machine=describe_machine().summary,
                students=list(self.students.values()),
            )
            write_json(folder / TRIED_FILE, tried.model_dump(mode="json"))
        return tried

    def failure(self, tried: TriedStudents) -> GateError:
        """Return the error for limits that no student keeps, with the fully trained one that came nearest and what to do."""
        lines = [
            f"No student has {tried.limits} (lower end of the {CONFIDENCE:.0%} interval, {tried.rows:,} validation rows)."
        ]
        fully = [s for s in tried.students if s.trained == "fully"]
        inside = [s for s in fully if not self._over_limit(s)]
        if fully:
            best = max(inside or fully, key=lambda s: s.low or 0.0)
            lines.append(f"The nearest is {best.name}: {_describe(best, tried.metric)}.")
            share = int(100 * (best.low or 0.0)) / 100
            if inside and share > 0:
                limits = {"--max-size-mb": self.limits.max_size_mb, "--max-latency-ms": self.limits.max_latency_ms}
                flags = [
                    f"--keep {share:g}",
                    *(f"{flag} {limit:g}" for flag, limit in limits.items() if limit is not None),
                ]
                lines.append(f"It would be taken with {' '.join(flags)}; what is trained is not trained again.")
        lines += [f"{s.name}: {s.note}" for s in tried.students if s.note]
        return GateError([*lines, f"All students stay in {self.run.path / TRIED_FOLDER}; nothing was exported."])

    def _find_winner(self) -> Rung | None:
        """Train students, the smaller ones first, until one keeps enough within the limits; return it, or None if none does.

        The static student is trained fully, encoders briefly at first; those that are promising are trained fully then.
        """
        for rung in (r for r in self.rungs if r.layers == 0):
            if self.keeps(self._try(rung, fully=True)):
                return rung
        rest = [r for r in self.rungs if r.layers and r.width is None]
        while rest:
            brief = self._try_briefly(rest)
            first = next((r for r in brief if self._is_promising(r)), None)
            if first is not None:  # a narrow one between the last hopeless student and the first promising one
                below = max((r.work for r in brief if r.work < first.work), default=0.0)
                between = [r for r in self.rungs if r.width is not None and below < r.work < first.work]
                brief = sorted([*brief, *self._try_briefly(between)], key=lambda r: r.work)
            if (winner := self._try_fully(brief)) is not None:
                return winner
            over = any(self._over_limit(self.students[r.name]) for r in rest)
            rest = [] if over else [r for r in rest if not self.students[r.name].trained]
        return None

    def _find_best(self) -> Rung | None:
        """Return the fully trained student inside the limits on size and latency that keeps most of the teacher's score.

        None if there is none, or if the recipe is to fail if no student keeps enough.
        """
        inside = [r for r in self.rungs if (s := self.students[r.name]).trained == "fully" and not self._over_limit(s)]
        if self.limits.if_none_keeps == "fail" or not inside:
            return None
        return max(inside, key=lambda rung: self.students[rung.name].kept or 0.0)

    def _try_fully(self, rungs: Sequence[Rung]) -> Rung | None:
        """Train briefly trained students fully, the smallest first; return the first that keeps enough, or None.

        Two kinds are left out: students that are not promising, and students whose training would leave no time for the one that is
        most likely to keep enough.
        """
        if not rungs:
            return None
        certain = next((r for r in rungs if self.keeps(self.students[r.name])), None)
        likely = certain or max(rungs, key=lambda r: self.students[r.name].kept or 0.0)
        for rung in rungs:
            reserve = likely.cost if rung.work < likely.work else 0.0
            if rung is not likely and not self._is_promising(rung):
                self._update(rung, note="not promising after a brief training")
            elif rung is not likely and rung.cost and self._spent + rung.cost + reserve > _MOST_COST:
                self._update(rung, note=f"not trained longer, to leave time for {likely.name}")
            elif self.keeps(self._try(rung, fully=True)):
                return rung
        return None

    def _try_briefly(self, rungs: Sequence[Rung]) -> list[Rung]:
        """Train students briefly, up to the first that keeps enough already or is over a limit; return those inside the limits.

        A student with all layers of the teacher is trained fully, since it needs one step only.
        """
        inside = list[Rung]()
        for rung in rungs:
            record = self._try(rung, fully=rung.is_teacher)
            if self._over_limit(record):
                break  # larger ones are over it, too
            inside.append(rung)
            if self.keeps(record):
                break
        return inside

    def _try(self, rung: Rung, fully: bool) -> TriedStudent:
        """Train a student, unless it was trained fully before, and return its record with the score.

        Size and latency are measured once, after a brief training only if the recipe limits them. A static student that training
        refuses has a note instead.

        Raises:
            GateError: If the teacher's score is not above 0, so that there is nothing to keep.
        """
        before = self.students[rung.name]
        if before.trained == "fully":
            return before
        share = 1.0 if fully else _BRIEF
        self._spent += rung.cost * share
        has_limits = self.limits.max_size_mb is not None or self.limits.max_latency_ms is not None
        number = list(self.students).index(rung.name) + 1
        try:
            recipe, place = rung_recipe(self.recipe, rung, share), (number, len(self.rungs))
            measures = before.bytes is None and (fully or has_limits)  # an export takes as long as a brief training
            figures, cpu_s = self.trials.train(recipe, rung.name, fully=fully, measures=measures, place=place)
        except InputError as error:  # what only training finds out, such as pooling that a static student does not have
            if rung.layers:
                raise
            self._update(rung, note=f"not trained: {error.problems[0].what}")
            return self.students[rung.name]
        metric = METRICS[figures.metric]
        if not figures.teacher > 0:
            what = f"The teacher has {metric.name} {metric.format(figures.teacher)} on the {figures.rows:,} validation rows: nothing to keep."
            raise GateError(
                [what, "Train the teacher longer (teacher.finetune), or give the student layers: student: {layers: 3}."]
            )
        kept, low, high = (metric.kept(figures.teacher, value) for value in (figures.score, figures.low, figures.high))
        self._update(
            rung,
            trained="fully" if fully else "briefly",
            score=figures.score,
            kept=kept,
            low=low,
            high=high,
            bytes=figures.bytes if figures.bytes is not None else before.bytes,
            p50_ms=figures.p50_ms if figures.bytes is not None else before.p50_ms,
            parameters=figures.parameters,
            cpu_s=before.cpu_s + cpu_s,
        )
        record = self.students[rung.name]
        if note := self._over_limit(record):
            self._update(rung, note=note)
        elif fully and not self.keeps(record):
            self._update(
                rung,
                note=f"keeps less than {100 * self.limits.keep:g} %"
                if kept < self.limits.keep
                else "not certain enough",
            )
        print_note(f"  {rung.name}: {_describe(record, figures.metric)}")
        return self.students[rung.name]

    def _estimate_files(self) -> None:
        """Estimate size and latency of trained encoders that were not measured, on a line through the smallest and the largest measured one."""
        measured = [(r, s) for r in self.rungs if r.layers and (s := self.students[r.name]).p50_ms is not None]
        if len(measured) < 2:
            return
        (low, first), (high, last) = measured[0], measured[-1]
        assert (
            first.bytes is not None and last.bytes is not None and first.p50_ms is not None and last.p50_ms is not None
        )
        for rung in self.rungs:
            if rung.layers and self.students[rung.name].trained and self.students[rung.name].bytes is None:
                part = (rung.work - low.work) / (high.work - low.work)
                size, p50 = (
                    first.bytes + part * (last.bytes - first.bytes),
                    first.p50_ms + part * (last.p50_ms - first.p50_ms),
                )
                self._update(rung, bytes=round(size), p50_ms=p50 if p50 > 0 else None, estimated=True)

    def _over_limit(self, record: TriedStudent) -> str:
        """Return which limit the file of a student exceeds; empty if it exceeds none, or was not measured."""
        size, latency = self.limits.max_size_mb, self.limits.max_latency_ms
        if size is not None and record.bytes is not None and record.bytes > 1e6 * size:
            return f"larger than {size:g} MB"
        if latency is not None and record.p50_ms is not None and record.p50_ms > latency:
            return f"slower than {latency:g} ms"
        return ""

    def keeps(self, record: TriedStudent) -> bool:
        """Return whether the lower end of a student's interval keeps enough of the teacher's score, inside the limits on size and latency."""
        return record.low is not None and record.low >= self.limits.keep and not self._over_limit(record)

    def _is_promising(self, rung: Rung) -> bool:
        """Return whether a student may keep enough once it is trained fully."""
        kept = self.students[rung.name].kept
        return kept is not None and 1 - kept <= _PROMISING * max(1 - self.limits.keep, 0.01)

    def _update(self, rung: Rung, **figures: object) -> None:
        """Add figures to the record of a student."""
        self.students[rung.name] = self.students[rung.name].model_copy(update=figures)


def _describe(student: TriedStudent, metric: str) -> str:
    """Return a student's score, share kept, size and latency in words."""
    assert student.score is not None
    parts = [f"{metric} {METRICS[metric].format(student.score)}"]
    parts.append(f"{student.kept:.1%} of the teacher's ({student.low:.1%} to {student.high:.1%})")
    parts += [f"{student.bytes / 1e6:.2f} MB"] if student.bytes is not None else []
    return ", ".join([*parts, *([f"{student.p50_ms:.2f} ms"] if student.p50_ms is not None else [])])
