"""Training, scoring and measuring one student of a run that chooses among several (`student: auto`).

`StudentTrials.train` does so as a step of the run folder, in ``tried/NAME``, so that a finished student is not trained again. The
decisions are in `pocketbert.pipeline.direct.auto_student`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from pocketbert.core.compare.answers import RowAnswer
from pocketbert.core.compare.differences import compare_scores
from pocketbert.core.disk.files import path_bytes, read_json, write_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import MEAN_COSINE, METRICS, MRR_10
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.recipe.ladder import Rung, list_rungs, rung_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.base import (
    ModelFile,
    RunModel,
    choose_default_file,
    exported_source,
    format_place,
    open_run_model,
)
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn import training
from pocketbert.pipeline.learn.finishing import TrainedModel, answer_validation, read_training, save_trained
from pocketbert.pipeline.make import model_files
from pocketbert.pipeline.make.measuring import measure
from pocketbert.pipeline.reference import load_reference_model, project_text_batches
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import StepPaths
from pocketbert.pipeline.student_steps import list_student_steps

TRIED_FOLDER = "tried"
"""Folder of the students in a run folder: their figures, and the weights of those that were trained fully."""
TRAINED_STUDENT = "student"
"""Folder of the weights in the folder of a student."""
CONFIDENCE = 0.8
"""Share of the resamples in an interval. A tenth lies below its lower end, which has to reach what must be kept."""
TIMED_TEXTS = 100
_FIGURES_FILE = "figures.json"
_PRUNED_FOLDER = "pruned"
_MOST_ROWS = 3000
"""Most validation rows on which students are compared."""


def list_exportable_rungs(recipe: Recipe, model: ModelFolder, pairs: bool) -> tuple[list[Rung], list[Problem]]:
    """List the students that a recipe with `student: auto` can train and export, and why the others cannot be exported.

    Args:
        recipe: The recipe.
        model: The teacher's folder.
        pairs: Whether the rows are pairs of texts.

    Returns:
        The students, the one with the least work first, and the problems of the others, each once.
    """
    allowed, problems = list[Rung](), dict[Problem, None]()
    for rung in list_rungs(model.config, model.family, recipe.task, pairs):
        try:
            Inputs(rung_recipe(recipe, rung), model=model).check_exported()
            allowed.append(rung)
        except InputError as error:
            problems |= dict.fromkeys(error.problems)
    return allowed, list(problems)


class StudentFigures(BaseModel):
    """The figures of a student: its score and its teacher's on the same validation rows, and size and latency of its file.

    Attributes:
        metric: The recipe's `training.metric`, or else the deciding metric of the task; of vectors without scores the cosine
            with the teacher's, and never one of rankings.
        score: The student's score.
        teacher: The teacher's score.
        low: Lower end of the interval of the student's score, by a paired bootstrap against the teacher.
        high: Upper end of that interval.
        rows: Number of rows.
        parameters: Number of the student's weights.
        bytes: Size of its file; None if it was not measured in this training.
        p50_ms: Median latency of the file; None likewise, and if it could not be timed.
    """

    metric: str
    score: float
    teacher: float
    low: float
    high: float
    rows: int
    parameters: int
    bytes: int | None = None
    p50_ms: float | None = None


@dataclass
class StudentTrials:
    """Trains, scores and measures single students of a run, each as a step of its folder.

    Attributes:
        run: The run.
        first: The first figures, whose metric, teacher's score and number of rows hold for all.
    """

    run: Run
    first: StudentFigures | None = None

    def train(
        self, recipe: Recipe, name: str, *, fully: bool, measures: bool, place: tuple[int, int]
    ) -> tuple[StudentFigures, float]:
        """Train and score the student of a plain recipe; return its figures and the CPU seconds that they took.

        If the run folder has these figures already, they are read from there and nothing is trained.

        Args:
            recipe: The recipe, whose stage may be shortened for a brief training.
            name: Name of the student.
            fully: Whether the weights are kept, as the run may go on with them.
            measures: Whether its file is written too, and its size and latency measured. Both depend on the shape only, not on the training.
            place: Number of the student, and how many there are.
        """
        sibling = Run(recipe, self.run.path, self.run.folder.allowed, Inputs(recipe, model=self.run.model))
        [plain, *_] = list_student_steps(sibling.inputs, [recipe.seed], lambda *_: (), lambda _: ())
        own = name if fully else f"{name}-briefly"
        settings = {**plain.settings, "rows that compare students": _MOST_ROWS, "confidence": CONFIDENCE}
        if measures:
            exported = Inputs(_as_onnx(recipe), model=self.run.model).export_settings(Format.ONNX)
            settings |= {"measured file": {"scheme": self.file_title, **exported}}
        step = replace(
            plain,
            name=f"{TRIED_FOLDER}.{own}",
            title=f"student {name}, trained {'fully' if fully else 'briefly'}",
            output=f"{TRIED_FOLDER}/{own}",
            settings=settings,
            make=partial(self._make, sibling, fully, measures),
            libraries=(*plain.libraries, *FORMATS[Format.ONNX].libraries),
        )
        folder = self.run.folder
        folder.hash([step])
        folder.recover([step])
        folder.carry_out(folder.plan([step]), [step])
        folder.run(step, *place)
        mark = folder.marks.read(step.name)
        figures = StudentFigures.model_validate(read_json(self.run.path / step.output / _FIGURES_FILE))
        self.first = self.first or figures
        return figures, mark.cpu_s if mark is not None else 0.0

    def _make(self, sibling: Run, fully: bool, measures: bool, at: StepPaths) -> Sequence[str]:
        """Train a student, and write its figures to the step's output, with its weights if it is trained fully."""
        sibling.data = self.run.data
        learning = sibling.learning(sibling.recipe.seed)
        folder = (at.output if fully else at.work) / TRAINED_STUDENT
        remove(folder)
        folder.mkdir()
        training.make_stage(learning, 0, None, replace(at, output=folder))
        trained = training.open_trained(learning, folder)
        teacher, student = self._teacher_answers, answer_validation(trained, _MOST_ROWS)
        metric = METRICS.get(sibling.recipe.training.metric or "", learning.task.metric)
        metric = (
            learning.task.metric if metric is MRR_10 else metric
        )  # of all rows, not a sum or a correlation of single ones
        if student[0].vector is not None:
            teacher, student, metric = *_as_cosines(teacher, student), MEAN_COSINE
        change = compare_scores(teacher, student, metric, sibling.recipe.seed, confidence=CONFIDENCE)
        size, p50 = None, None
        if measures:
            if sibling.recipe.prunes_vocabulary:  # which its stage has not done
                folder = at.work / _PRUNED_FOLDER
                remove(folder)
                folder.mkdir()
                save_trained(trained, folder)
            size, p50 = self._measure_file(sibling.recipe, folder, at.work)
        figures = StudentFigures(
            metric=change.metric,
            score=change.new,
            teacher=change.old,
            low=change.old - change.high,
            high=change.old - change.low,
            rows=len(student),
            parameters=sum(p.numel() for p in trained.model.parameters()),
            bytes=size,
            p50_ms=p50,
        )
        write_json(at.output / _FIGURES_FILE, figures.model_dump(mode="json"))
        return ()

    @cached_property
    def _teacher_answers(self) -> list[RowAnswer]:
        """The teacher's answers to the first `_MOST_ROWS` validation rows by hash."""
        learning = self.run.learning(self.run.recipe.seed)
        trained = TrainedModel(
            learning.task_teacher, learning.recipe, learning.source, learning.data, learning.length, learning.pooling
        )
        return answer_validation(trained, _MOST_ROWS, read_training(self.run.path / "teacher").thresholds)

    @property
    def file_title(self) -> str:
        """Format and scheme of the measured files, in words."""
        return self._choose_file(self.run.recipe, self.run.path / "teacher").title

    def _choose_file(self, recipe: Recipe, weights: Path) -> ModelFile:
        """Return the ONNX file by which a student is measured: the recipe's first quantized one, or the exported one if it has none."""
        return choose_default_file(open_run_model(_as_onnx(recipe), self.run.path, weights, self.run.length).files)

    def _measure_file(self, recipe: Recipe, weights: Path, work: Path) -> tuple[int, float | None]:
        """Write the ONNX file of a student in a work folder, time it, and return its size and median latency in ms.

        The latency is None if the file could not be timed.
        """
        from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant

        model = replace(open_run_model(_as_onnx(recipe), self.run.path, weights, self.run.length), run=work)
        reference, file = load_reference_model(model.folder, model.task), choose_default_file(model.files)

        def calibrate() -> list[dict[str, NDArray[np.int64]]]:
            """Return the calibration rows as model inputs of one unpadded row each."""
            return [model.tokenizer.pad([row]) for row in self.run.data.calibration(model.tokenizer)]

        pair = (exported_source(file, model.files), file)
        path = _write_file(model, reference, pair, calibrate)
        variant = Variant.of(file.title, path, weights, self.run.length, file.scheme, file.format)
        options = BenchmarkOptions(runs=TIMED_TEXTS, repeats=2, budget_s=20.0, profile=False, label="latency")
        timed = measure([variant], self.run.texts(TIMED_TEXTS), options).find(variant.name, 1, "text")
        return path_bytes(path), timed.wall.p50 if timed is not None and timed.wall is not None else None


def _write_file(
    model: RunModel,
    reference: TorchPredictor,
    files: tuple[ModelFile, ModelFile],
    calibration: Callable[[], list[dict[str, NDArray[np.int64]]]],
) -> Path:
    """Export a model and quantize the file, without comparing any answers: to learn size and latency only.

    Args:
        model: The model, whose run folder the files are written to.
        reference: The same model in torch.
        files: The exported file, and the quantized one that is made of it; twice the same for an exported file only.
        calibration: Function that returns the rows on which static schemes measure activation ranges.

    Returns:
        The path of the second file.
    """
    from pocketbert.quantize import quantize

    base, file = files
    samples = project_text_batches(model.task, model.tokenizer)
    module = model_files.prepare_module(model, reference, base.format, samples)
    for path in map(model.source, files):
        path.parent.mkdir(exist_ok=True)
    format_place(base.format).write(model, module, base, model.source(base))
    if file != base:
        plan = model_files.quantization_plan(file, calibration, model.weights, model.recipe.quantize.calibration)
        quantize(model.source(base), model.source(file), plan)
    return model.source(file)


def _as_onnx(recipe: Recipe) -> Recipe:
    """Return a copy of a recipe that exports to ONNX only, without files for single clients."""
    export = recipe.export.model_copy(update={"formats": [Format.ONNX], "clients": []})
    return recipe.model_copy(update={"export": export})


def _as_cosines(teacher: Sequence[RowAnswer], student: Sequence[RowAnswer]) -> tuple[list[RowAnswer], list[RowAnswer]]:
    """Convert vectors of teacher and student to answers whose score is the mean cosine with the teacher's vectors.

    The teacher's own cosines are 1.
    """
    one, other = (np.stack([np.asarray(row.vector, np.float64) for row in rows]) for rows in (teacher, student))
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    cosines = (one * other).sum(-1) / np.maximum(norms, 1e-12)
    return [RowAnswer("", terms=(1.0, 1.0)) for _ in cosines], [RowAnswer("", terms=(float(c), 1.0)) for c in cosines]
