"""The whole chain as steps: recipe in, artefact folder and report out."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pocketbert import demo_corpus
from pocketbert.core.artefacts import SEARCH_FILE
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.disk.destination import folder_destination
from pocketbert.core.disk.files import digests, sha256_path, write_atomic, write_json
from pocketbert.core.disk.ownership import MARKER, read_marker, remove, write_marker
from pocketbert.core.disk.workspace import beside_workspaces, building
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.processes import assist, directing, here
from pocketbert.core.host.progress import say, set_quiet
from pocketbert.core.models.folder import DEMO_TEACHER, ModelFolder, open_model_folder
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.recipe.file import dump_recipe, load_recipe
from pocketbert.core.tasks import LabelKind, Task, task_of
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.doctor import missing, require_for
from pocketbert.pipeline.formats.base import (
    ModelFile,
    RunModel,
    base_of,
    default_file,
    open_run_model,
    open_weights,
    quantized_step,
)
from pocketbert.pipeline.gates.checks import STUDENT, confusions_of, judged
from pocketbert.pipeline.gates.confidence import settled_by
from pocketbert.pipeline.gates.verify import recorded_evidence, report_gates, run_subjects, verify_files
from pocketbert.pipeline.learn import training, vocabulary
from pocketbert.pipeline.learn.augmenting import write_copies
from pocketbert.pipeline.learn.corpora import write_corpora
from pocketbert.pipeline.learn.data import (
    RunData,
    calibration_rows,
    check_files,
    check_head,
    check_threshold,
    is_local,
    load_data,
)
from pocketbert.pipeline.learn.finishing import EVAL, HOLDOUT, LabelledRows, head_with, read_training
from pocketbert.pipeline.learn.training import Learning
from pocketbert.pipeline.make import golden, library, measuring
from pocketbert.pipeline.make import model_files as exporting
from pocketbert.pipeline.make import model_files as quantizing
from pocketbert.pipeline.make import model_files as simulating
from pocketbert.pipeline.phone import pack
from pocketbert.pipeline.phone.pack import Origin
from pocketbert.pipeline.recipes import AnyRecipe, StartingRecipe, recipe_path, resolved
from pocketbert.pipeline.reference import reference_model
from pocketbert.pipeline.results import Verification
from pocketbert.pipeline.run_folder import Permission, Places, RunFolder, Step
from pocketbert.pipeline.run_folder.folder import RunResult
from pocketbert.pipeline.steps import AUGMENTED, CORPUS, VOCABULARY, Inputs, Makers, stage_folder, steps_of

if TYPE_CHECKING:
    from pocketbert.benchmarks.report import ReportData


# --- run_log ---
# run.log: what happened in a run folder, and why it stopped.


log = logging.getLogger("pocketbert")


class _RunLog(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Say nothing: on a full disk the error that stopped the run is the one to read."""


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append to a file what is logged in the block, and the error that ends it."""
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False  # libraries configure the root logger; run.log is the place for this
    log.addHandler(handler)
    try:
        yield
    except KeyboardInterrupt:
        log.info("stopped by a signal")
        raise
    except BaseException as error:
        # a gate says all there is to say
        log.error("stopped: %s: %s", type(error).__name__, error, exc_info=not isinstance(error, GateError))
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def command_line() -> str:
    """The command line of this process, where it is PocketBERT's; empty elsewhere."""
    return "pocketbert " + shlex.join(sys.argv[1:]) if sys.argv and "pocketbert" in sys.argv[0] else ""


RECIPE_FILE = "recipe.resolved.yaml"
REPORT_FILE = "report.html"


class Run:
    """One recipe in one run folder.

    Args:
        recipe: What to do; one that was made for a data file is kept in the folder.
        folder: Where.
        allowed: Whether results of other settings may be replaced, and those of other library versions be used.
        inputs: Models and files of the recipe, where the caller opened them already.
        data: Its data, where the caller read them already.
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
        self.recipe, self.folder = resolved(recipe), RunFolder(folder, allowed or Permission())
        self.path, self.inputs = folder, inputs or Inputs(self.recipe)
        self.ready = self.inputs.ready
        if data is not None:
            self.data = data

    @property
    def model(self) -> ModelFolder:
        """The model the recipe starts from."""
        return self.inputs.model

    @cached_property
    def data(self) -> RunData:
        """Its data; read once, and only by steps that are not finished."""
        return load_data(self.recipe, self.model)

    @property
    def length(self) -> int:
        """Longest input in tokens."""
        return self.inputs.length

    @property
    def task(self) -> Task:
        """What the model does."""
        return task_of(self.recipe.task)

    def texts(self, rows: int = golden.ROWS) -> list[Text]:
        """Some texts of the data, as the task takes them."""
        return self.data.texts(rows, TextTokenizer(self.model.tokenizer_folder, self.length))

    @property
    def origin(self) -> Origin:
        """What decides the artefact folder."""
        steps = self.steps()
        self.folder.hash(steps)
        return Origin(self.model.sha256, self.folder.exact["pack"], tuple(self.folder.accepted_versions(steps)))

    @property
    def weights(self) -> Path:
        """Folder of the model that is exported."""
        return self.path / ("student" if self.recipe.student else "teacher")

    def steps(self) -> list[Step]:
        """All steps of the recipe, in order."""
        makers = Makers(
            data=self._make_data,
            vocabulary=self._make_vocabulary,
            corpus=self._make_corpus,
            teacher=self._make_teacher,
            copies=self._make_copies,
            stage=self._make_stage,
            student=self._make_student,
            export=self._make_export,
            quantized=self._make_quantized,
            golden=self._make_golden,
            verify=self._make_verify,
            teacher_file=self._make_teacher_file,
            benchmark=self._make_benchmark,
            pack=self._make_pack,
        )
        return steps_of(self.inputs, makers)

    def execute(self, until: str | None = None) -> None:
        """Run the steps, up to and including `until`.

        Where a launcher started several processes, process 0 does so, and the others help it to train.

        Raises:
            PocketBertError: If an input is wrong, a gate closed, or the machine failed.
            SystemExit: At the end, in processes other than 0.
        """
        if not here().main:
            set_quiet(True)
            assist(lambda order: self.folder.take_part(self.steps(), order))
        with directing():
            self._execute(until)

    def _execute(self, until: str | None) -> None:
        require_for(self.recipe, until)
        if until is None:
            self.inputs.check_exported()
            check_threshold(self.recipe, self.__dict__.get("data"))  # rows are read by the step that needs them
        steps = self._steps_until(until)  # before the lock: a model that is not there leaves no folder behind
        with self.folder.locked():
            self.folder.hash(steps)
            self.folder.recover(steps)
            plan = self.folder.plan(steps)
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
                        self._judge_student()

    def _steps_until(self, last: str | None) -> list[Step]:
        steps = self.steps()
        return steps if last is None else steps[: [s.name for s in steps].index(last) + 1]

    def plan(self, until: str | None = None) -> list[tuple[str, str, str, str]]:
        """Name, output and state of every step up to `until`, and why it is made again, without running anything.

        Raises:
            InputError: If the folder holds results of other settings, or the run would find something wrong with its
                model or rows before it trains.
        """
        check_files(self.recipe.data)
        self.inputs.check_exported()
        check_threshold(self.recipe, None)
        check_head(self.recipe, self.model)
        steps = self._steps_until(until)
        self.folder.refuse_foreign()
        plan = self.folder.plan(steps)
        again = {**plan.anew, **plan.retried}
        if is_local(self.recipe.data) and (steps[0].name in again or self.folder.state(steps[0]) != "finished"):
            load_data(self.recipe, self.model)  # what is wrong with the rows
        return [
            (s.name, s.output, "to do" if s.name in again else self.folder.state(s), again.get(s.name, ""))
            for s in steps
        ]

    # One method per step: what it reads is decided here, how it works in the module it calls.

    def _make_data(self, at: Places) -> Sequence[str]:
        report = self.data.report
        for line in report.lines() if report else ():
            say(f"  {line}")
        write_json(
            at.output, json.loads(report.model_dump_json()) if report else {"labels": list(self.data.labels.names)}
        )
        return ()

    def _make_vocabulary(self, at: Places) -> Sequence[str]:
        return vocabulary.make_vocabulary(self.recipe, self.model, self.data, at)

    def _make_teacher(self, at: Places) -> Sequence[str]:
        return training.make_teacher(self.recipe, self.model, self.data, self.length, at)

    def _make_student(self, at: Places) -> Sequence[str]:
        last, learning = self.path / stage_folder(len(self.recipe.distill) - 1), self._learning()
        training.make_student(learning, last, at)
        return ()

    def _make_stage(self, number: int, at: Places) -> Sequence[str]:
        before = self.path / stage_folder(number - 1) if number else None
        return training.make_stage(self._learning(), number, before, at)

    def _learning(self) -> Learning:
        """What a stage reads; made anew for each, so that nothing of one stage stays in memory in the next."""
        return Learning(
            self.recipe,
            self.model,
            self.path / "teacher",
            self.data,
            self.length,
            self.path / CORPUS,
            self.path / AUGMENTED,
            self.path / VOCABULARY,
        )

    def _make_copies(self, at: Places) -> Sequence[str]:
        write_copies(self.recipe, self.model, self.data, at.work, at.output)
        return ()

    def _make_corpus(self, at: Places) -> Sequence[str]:
        assert self.recipe.data.corpus is not None
        write_corpora(self.recipe.data.corpus, self.model.tokenizer_folder, at.output)
        return ()

    @cached_property
    def exported(self) -> RunModel:
        """The model that is exported, opened once it is there."""
        return open_run_model(self.recipe, self.path, self.weights, self.length)

    @property
    def files(self) -> Sequence[ModelFile]:
        """Model files of the recipe; known once the model that is exported is there."""
        return self.exported.files

    def _make_export(self, format: Format, at: Places) -> Sequence[str]:
        files, texts = [f for f in self.files if f.step == format.value], self.texts()
        return exporting.make_export(self.exported, files, texts, at.output, self.ready)

    def _make_teacher_file(self, at: Places) -> Sequence[str]:
        texts, file = self.texts(), measuring.teacher_file(self.recipe)
        teacher = open_weights(self.recipe, self.path, self.path / "teacher", self.length)
        return exporting.make_export(teacher, [file], texts, at.output)

    def _make_quantized(self, format: Format, scheme: Scheme, at: Places) -> Sequence[str]:
        files = self.files
        pairs = [(base_of(f, files), f) for f in files if f.step == quantized_step(format, scheme)]
        return quantizing.make_quantized(self.exported, pairs, at.output, self._calibration)

    def _calibration(self) -> list[dict[str, NDArray[np.int64]]]:
        """Rows alone: padding has no part in a range."""
        tokenizer = TextTokenizer(self.weights, self.length)
        return [tokenizer.pad([row]) for row in calibration_rows(self.recipe, self.data, tokenizer)]

    def _make_golden(self, at: Places) -> Sequence[str]:
        model = self.exported
        reference = reference_model(model.folder, model.task)
        failures = golden.make_golden(model, reference, self.texts(golden.SEARCHED), at.output, self.files)
        if failures:
            return failures
        self._record_library(reference, at)
        texts = self.texts(simulating.TEXTS)
        return simulating.make_simulated(model, reference, texts, at.output, self.files, self._calibration)

    def _record_library(self, reference: TorchPredictor, at: Places) -> None:
        """Record what the library of the checkpoint answers; of a model that was trained here, that of its own folder."""
        recipe = self.recipe
        as_it_is = recipe.student is None and recipe.teacher.finetune is None
        chosen = recipe.data.max_length is not None or recipe.data.train is not None or recipe.data.eval is not None
        source, length = self.model if as_it_is else self.exported.folder, self.length if chosen else None
        library.make_library(self.exported, source, length, reference.model, at.output)

    def _make_verify(self, at: Places) -> Sequence[str]:
        result = self.verify()
        write_json(at.output, json.loads(result.model_dump_json()))
        report_gates(result)
        return result.failures

    def verify(self) -> Verification:
        """Put the files of the run folder through all gates."""
        evidence = replace(
            recorded_evidence(self.path / "golden", self.weights, self.length),
            sets=self.eval_sets(),
            teacher=self._torch_score(self.path / "teacher"),
            reference=self._torch_score(self.weights),
            labels=self.data.labels.names if self.task.names_labels else None,
            settled=dict.fromkeys((f.path for f in self.files), settled_by(self.recipe.answer)),
            selection=self.data.selection,
            head=self.data.head,
        )
        model = self.exported
        result = verify_files(run_subjects(model, model.files), evidence, self.recipe.verify)
        sources = pack.sources(model)
        return result.model_copy(update={"files": {name: sha256_path(path) for name, path in sources.items()}})

    def _torch_score(self, weights: Path) -> Score | None:
        """The score of a torch model on the rows that score its files."""
        divided = self.recipe.data.selection is not None
        return self.labelled.torch_score(EVAL, weights) if divided else read_training(weights).score

    @property
    def labelled(self) -> LabelledRows:
        """The labelled rows that no weight was trained on."""
        return LabelledRows(self.recipe, self.data, self.path, self.length)

    def eval_sets(self) -> list[EvalSet]:
        """Labelled rows that no step was made on and that chose no file, tokenized by the tokenizer that is packed."""
        found = (self.labelled.named(name, self.weights) for name in (EVAL, HOLDOUT))
        return [rows for rows in found if rows is not None]

    def _make_benchmark(self, at: Places) -> Sequence[str]:
        assert self.recipe.benchmark is not None
        variants = measuring.run_variants(self.recipe, self.path, self.files, self.weights, self.length)
        options = measuring.section_options(self.recipe.benchmark, self.recipe.export.lengths)
        head = head_with(self.recipe, self.data, read_training(self.weights).thresholds)
        answers = measuring.of_run(variants, head)
        result = measuring.measure(variants, self.texts(100), options, root=self.path, post_processing=answers)
        result.write(at.output)
        return ()

    def _make_pack(self, at: Places) -> Sequence[str]:
        return pack.make_pack(self.exported, self.data.pair, self.origin, at.output, self.confusions)

    @cached_property
    def confusions(self) -> list[tuple[str, str, int]]:
        """Label pairs that the packed file confuses most on eval: gold, predicted, rows."""
        rows = self.labelled.named(EVAL, self.weights) if self.task.labels is LabelKind.NAME else None
        if rows is None:
            return []
        return confusions_of(run_subjects(self.exported, [default_file(self.files)])[0], rows, self.data.labels.names)

    def report(self, destination: Path) -> ReportData:
        """Write the HTML page; return what it shows."""
        from pocketbert.benchmarks.report import write_report
        from pocketbert.pipeline.phone.pack import report_data

        facts = report_data(self.recipe, self.path, command_line(), self.confusions)
        write_report(facts, destination)
        return facts

    def _judge_student(self) -> None:
        """End the run here if no file of the student could pass.

        Raises:
            GateError: With advice; the page shows scores and losses.
        """
        student, teacher = read_training(self.path / STUDENT), read_training(self.path / "teacher")
        failures = judged(self.recipe, lambda: len(self.data.splits["train"].examples), student, teacher)
        if failures:
            self._report_early()
            raise GateError([*failures, f"The student stays in {self.path / STUDENT}; nothing was exported."])

    def _report_early(self) -> None:
        """Write the HTML page of a run whose student failed: scores and losses, without files."""
        from pocketbert.benchmarks.report import write_report
        from pocketbert.pipeline.phone.pack import early_report_data

        if not missing("report"):
            write_report(early_report_data(self.recipe, self.path, command_line()), self.path / REPORT_FILE)
            say(f"  report: {self.path / REPORT_FILE}")

    def finish(self) -> RunResult:
        """Write the report of a finished run and tell where everything is."""
        from pocketbert.benchmarks.report import model_figures, summary_table

        report = self.path / REPORT_FILE
        facts = self.report(report)
        header, table = summary_table(facts)
        return RunResult(self.path, self.path / "phone", report, header, table, model_figures(facts))


# --- demo ---
# The demo: a generated corpus, the real MiniLM teacher, the whole chain.


_KIND = "demo corpus"


def run_demo(output: Path, overwrite: bool, overrides: Sequence[str]) -> RunResult:
    """Generate the corpus next to the run folder, then run the shipped recipe ``demo``.

    Args:
        output: Run folder.
        overwrite: Whether results of other settings may be replaced.
        overrides: Further ``key.sub=value`` texts.

    Raises:
        MissingBackendError: If the demo teacher is not installed; nothing is written then.
    """
    open_model_folder(DEMO_TEACHER)
    output = folder_destination(output)
    corpus = folder_destination(output.parent / f"{output.name}-corpus")
    files = _files(corpus)
    paths = [f"data.{name}.path={files[split].resolve()}" for name, split in (("train", "train"), ("eval", "dev"))]
    recipe = load_recipe(recipe_path("demo"), [*paths, *overrides])
    write_corpus(corpus)
    run = Run(recipe, output, Permission(overwrite))
    run.execute()
    return run.finish()


def write_corpus(folder: Path) -> dict[str, Path]:
    """Generate the corpus into a folder.

    Args:
        folder: Where; must not be there, be empty, or hold a corpus.

    Returns:
        The files by split.

    Raises:
        InputError: If the folder holds anything else.
    """
    folder = folder_destination(folder)
    if folder.exists() and beside_workspaces(_changed)(folder):
        raise InputError(
            Problem(
                str(folder),
                "exists and holds more than a demo corpus; nothing was written.",
                "Choose another -o/--output.",
            )
        )
    say(f"corpus: {folder}")
    with building(folder, _changed, MARKER) as work:
        demo_corpus.write(demo_corpus.generate(), work)
        write_marker(work, _KIND, files=digests(work))
    return _files(folder)


def _changed(folder: Path) -> list[str]:
    """Files in a folder that are not as the corpus was written there."""
    written = read_marker(folder, _KIND).get("files")
    known = written if isinstance(written, dict) else {}
    return [n for n, digest in digests(folder).items() if n != MARKER and known.get(n) != digest]


def _files(folder: Path) -> dict[str, Path]:
    return {split: folder / f"{split}.jsonl.gz" for split in ("train", "dev", "test")}
