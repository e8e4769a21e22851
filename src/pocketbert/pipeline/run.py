"""Run a recipe: its steps in order, in a run folder, and the report at the end.

`Run` executes the steps of `RunSteps` under the folder's lock, plans a dry run, and writes the report. `run_demo` generates the
built-in corpus with `write_corpus` and runs the shipped recipe ``demo`` on it.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import SEARCH_FILE
from pocketbert.core.artefacts.search import TriedStudents
from pocketbert.core.disk.destination import resolve_output_folder
from pocketbert.core.disk.files import file_digests, write_atomic, write_json
from pocketbert.core.disk.ownership import MARKER, read_marker, remove, write_marker
from pocketbert.core.disk.workspace import build_folder, ignore_workspaces
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.processes import current_process, direct_processes, follow_orders
from pocketbert.core.host.progress import print_note, set_quiet
from pocketbert.core.models.folder import DEMO_TEACHER, open_model_folder
from pocketbert.core.recipe.file import dump_recipe, load_recipe
from pocketbert.core.types import Precision
from pocketbert.pipeline.doctor import missing, require_for
from pocketbert.pipeline.gates.checks import STUDENT, judge_student
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import RunData, check_files, check_head, check_threshold, has_local_rows, load_data
from pocketbert.pipeline.learn.finishing import read_training
from pocketbert.pipeline.recipes import AnyRecipe, StartingRecipe, recipe_path, recipe_settings
from pocketbert.pipeline.run_folder import Permission, RunFolder, RunResult, Step
from pocketbert.pipeline.steps import RunSteps

if TYPE_CHECKING:
    from pocketbert.benchmarks.report import ReportData

RECIPE_FILE = "recipe.resolved.yaml"
REPORT_FILE = "report.html"
_CORPUS_KIND = "demo corpus"
"""Kind of the folder that the demo generates, in its ownership mark."""

_LOG = logging.getLogger("pocketbert")


class Run(RunSteps):
    """Runs or plans the steps of one recipe in one run folder, and writes the report.

    Args:
        recipe: The recipe. One that was made for a data file is also written to the run folder.
        folder: The run folder.
        allowed: Whether results of other settings may be replaced, and those of other library versions be used.
        inputs: Models and files of the recipe, if the caller has opened them already.
        data: Rows of the recipe, if the caller has read them already.
    """

    def __init__(
        self,
        recipe: AnyRecipe,
        folder: Path,
        allowed: Permission | None = None,
        inputs: Inputs | None = None,
        data: RunData | None = None,
    ) -> None:
        self.start = recipe if isinstance(recipe, StartingRecipe) else None
        super().__init__(recipe_settings(recipe), RunFolder(folder, allowed or Permission()), inputs, data)

    def execute(self, until: str | None = None) -> None:
        """Run the recipe's steps in order.

        If a launcher started several processes, process 0 runs the steps, and the others help it to train.

        Args:
            until: Name of the last step to run; None to run all.

        Raises:
            PocketBertError: If an input is wrong, a gate failed, or the machine failed.
            SystemExit: At the end, in processes other than 0.
        """
        if not current_process().main:
            set_quiet(True)
            follow_orders(lambda order: self.folder.take_part(self.steps(), order))
        with direct_processes():
            self._execute(until)

    def _execute(self, until: str | None) -> None:
        """Check the recipe and the installed packages, plan the steps, and run them while the folder is locked."""
        require_for(self.recipe, until)
        if until is None:
            self.inputs.check_exported()
            check_threshold(self.recipe, self.__dict__.get("data"))  # rows are read by the step that needs them
        steps = self._steps_until(until)  # before the lock: a model that is not there leaves no folder behind
        with self.folder.locked():
            self.folder.hash(steps)
            self.folder.recover(steps)
            plan = self.folder.plan(steps)
            self._check_precision(steps, {**plan.anew, **plan.retried})
            if self.start is not None:
                self.start.keep(self.path, self.folder.allowed.overwrite)
            if plan.anew:
                remove(self.path / REPORT_FILE)
            with logged(self.path / "run.log"):
                self.folder.carry_out(plan, steps)
                write_atomic(self.path / RECIPE_FILE, dump_recipe(self.recipe))
                if self.inputs.search is not None:
                    write_json(self.path / SEARCH_FILE, self.inputs.search.model_dump(mode="json"))
                else:
                    remove(self.path / SEARCH_FILE)  # of a recipe that had a budget
                for number, step in enumerate(steps, 1):
                    self.folder.run(step, number, len(steps))
                    if step.name == STUDENT and until != STUDENT:
                        self._check_student()

    def _steps_until(self, last: str | None) -> list[Step]:
        """Return the steps up to and including the one named `last`, or all steps if `last` is None."""
        steps = self.steps()
        return steps if last is None else steps[: [s.name for s in steps].index(last) + 1]

    def _check_precision(self, steps: Sequence[Step], again: Collection[str]) -> None:
        """Check that this machine computes in bf16 if trainings that are still to be made ask for it.

        Args:
            steps: The steps of the run.
            again: Names of the steps that are made again, although there is a result.

        Raises:
            InputError: Naming the recipe keys of these trainings, if it does not.
        """
        due = [step for step in steps if step.name in again or self.folder.state(step) != "finished"]
        settings = {
            key: value for step in due if step.trains for key, value in self.folder.now[step.name].settings.items()
        }
        if keys := [key for key, value in settings.items() if key.endswith(".precision") and value == Precision.BF16]:
            from pocketbert.distill.training.machine import check_bf16

            check_bf16(keys)

    def _check_student(self) -> None:
        """Check the trained student's score, so that a student that has learnt too little is not exported.

        Raises:
            GateError: If the score is too low, with advice. If the packages for reports are installed, an HTML report
                with scores and losses was then written to the run folder.
        """
        student, teacher = read_training(self.path / STUDENT), read_training(self.path / "teacher")
        failures = judge_student(self.recipe, lambda: len(self.data.splits["train"].examples), student, teacher)
        if not failures:
            return
        self.write_early_report()
        raise GateError([*failures, f"The student stays in {self.path / STUDENT}; nothing was exported."])

    def write_early_report(self, tried: TriedStudents | None = None) -> None:
        """Write the HTML report of a run that ends before a file is exported, if the packages for reports are installed.

        Args:
            tried: The students that the run compared, if it ends because none kept enough of the teacher's score.
        """
        from pocketbert.benchmarks.report import write_report
        from pocketbert.pipeline.phone.report_facts import early_report_data

        if not missing("report"):
            write_report(early_report_data(self.recipe, self.path, _command_line(), tried), self.path / REPORT_FILE)
            print_note(f"  report: {self.path / REPORT_FILE}")

    def plan(self, until: str | None = None) -> list[tuple[str, str, str, str]]:
        """Return the state of each step without running anything.

        Args:
            until: Name of the last step to list; None for all.

        Returns:
            For each step its name, its output, its state (``finished``, ``unfinished`` or ``to do``) and the reason why
            it is run again, empty if it is not.

        Raises:
            InputError: If the folder holds results of other settings, or the model or the rows would stop the run
                before training. Rows of data sets on the Hub are not read for this.
        """
        check_files(self.recipe.data)
        self.inputs.check_exported()
        check_threshold(self.recipe, None)
        check_head(self.recipe, self.model)
        steps = self._steps_until(until)
        self.folder.refuse_foreign()
        plan = self.folder.plan(steps)
        again = {**plan.anew, **plan.retried}
        self._check_precision(steps, again)
        if has_local_rows(self.recipe.data) and (steps[0].name in again or self.folder.state(steps[0]) != "finished"):
            load_data(self.recipe, self.model)  # raises what is wrong with the rows
        return [
            (s.name, s.output, "to do" if s.name in again else self.folder.state(s), again.get(s.name, ""))
            for s in steps
        ]

    def report(self, destination: Path) -> ReportData:
        """Write the HTML report of a finished run to a file and return its content."""
        from pocketbert.benchmarks.report import write_report
        from pocketbert.pipeline.phone.report_facts import report_data

        content = report_data(self.recipe, self.path, _command_line(), self.confusions)
        write_report(content, destination)
        return content

    def finish(self) -> RunResult:
        """Write the report of a finished run; return the run's folders and a table of sizes, scores and latencies."""
        from pocketbert.benchmarks.report import collect_model_figures, make_summary_table

        page = self.path / REPORT_FILE
        content = self.report(page)
        header, table = make_summary_table(content)
        figures = collect_model_figures(content)
        return RunResult(self.path, self.path / "phone", page, header, table, figures, content.tried)


class _RunLog(logging.FileHandler):
    """A log file handler that ignores write errors: on a full disk the error that stopped the run matters."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Ignore an error of writing a log record."""


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append the log messages of the `with` block to a file. If an error ends the block, it is logged too."""
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = False  # libraries configure the root logger; run.log is the place for this
    _LOG.addHandler(handler)
    try:
        yield
    except KeyboardInterrupt:
        _LOG.info("stopped by a signal")
        raise
    except BaseException as error:
        # the message of a failed gate is complete without a traceback
        _LOG.error("stopped: %s: %s", type(error).__name__, error, exc_info=not isinstance(error, GateError))
        raise
    finally:
        _LOG.removeHandler(handler)
        handler.close()


def _command_line() -> str:
    """Return this process's command line for the report, ``pocketbert ...``; empty if another program runs."""
    return "pocketbert " + shlex.join(sys.argv[1:]) if sys.argv and "pocketbert" in sys.argv[0] else ""


# --- the demo ---


def run_demo(output: Path, overwrite: bool, overrides: Sequence[str]) -> RunResult:
    """Generate the demo corpus next to the run folder, run the shipped recipe ``demo`` on it, and return the result.

    Args:
        output: The run folder.
        overwrite: Whether results of other settings in it may be replaced.
        overrides: Further ``key.sub=value`` settings of the recipe.

    Raises:
        MissingBackendError: If the demo teacher is not installed. Nothing is written then.
        InputError: If the folder of the corpus holds other files, or the run folder results of other settings.
    """
    open_model_folder(DEMO_TEACHER)
    output = resolve_output_folder(output)
    corpus = resolve_output_folder(output.parent / f"{output.name}-corpus")
    files = _corpus_files(corpus)
    paths = [f"data.{name}.path={files[split].resolve()}" for name, split in (("train", "train"), ("eval", "dev"))]
    recipe = load_recipe(recipe_path("demo"), [*paths, *overrides])
    write_corpus(corpus)
    run = Run(recipe, output, Permission(overwrite))
    run.execute()
    return run.finish()


def write_corpus(folder: Path) -> dict[str, Path]:
    """Generate the demo corpus and write it to a folder, one .jsonl.gz file per split.

    Args:
        folder: A folder that does not exist, is empty, or holds an unchanged demo corpus.

    Returns:
        The file of each split: train, dev and test.

    Raises:
        InputError: If the folder holds anything else.
    """
    from pocketbert import demo_corpus

    folder = resolve_output_folder(folder)
    if folder.exists() and ignore_workspaces(_list_changed_files)(folder):
        what = "exists and holds more than a demo corpus; nothing was written."
        raise InputError(Problem(str(folder), what, "Choose another -o/--output."))
    print_note(f"corpus: {folder}")
    with build_folder(folder, _list_changed_files, MARKER) as work:
        demo_corpus.write(demo_corpus.generate(), work)
        write_marker(work, _CORPUS_KIND, files=file_digests(work))
    return _corpus_files(folder)


def _list_changed_files(folder: Path) -> list[str]:
    """Return the names of files in a folder that are not files of the demo corpus as it was written there.

    Without an ownership mark of the demo, these are all files.
    """
    written = read_marker(folder, _CORPUS_KIND).get("files")
    known = written if isinstance(written, dict) else {}
    return [n for n, digest in file_digests(folder).items() if n != MARKER and known.get(n) != digest]


def _corpus_files(folder: Path) -> dict[str, Path]:
    return {split: folder / f"{split}.jsonl.gz" for split in ("train", "dev", "test")}
