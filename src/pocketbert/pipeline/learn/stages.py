"""The stages of `distill`, one at a time: from the student that the stage before left to the student after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.pooling import Pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName
from pocketbert.pipeline.learn.augmenting import augmented_set
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import Curve, pooling_for
from pocketbert.pipeline.learn.general import general_rows, general_teacher, head_wanted, with_encoder, with_guesses
from pocketbert.pipeline.learn.job import TrainingJob, curve_of
from pocketbert.pipeline.learn.quantized import QuantizedStage, exported_form
from pocketbert.pipeline.learn.vocabulary import resplit_rows
from pocketbert.pipeline.run_folder import Places

if TYPE_CHECKING:
    from pocketbert.distill.methods.method import Carried
    from pocketbert.distill.training.train_set import TrainData


@dataclass(frozen=True)
class Learning:
    """What all stages of a recipe share.

    Attributes:
        recipe: What to do.
        model: What the recipe starts from: the teacher of general stages.
        teacher_folder: Folder of the task's teacher.
        data: The run's data.
        length: Longest input in tokens.
        corpora: Where the run's corpora are.
        augmented: Where the copies of training rows are; None to make them in each stage that learns on them.
        vocabulary: Where the pieces that the student keeps are; read where the recipe prunes its vocabulary.
    """

    recipe: Recipe
    model: ModelFolder
    teacher_folder: Path
    data: RunData
    length: int
    corpora: Path
    augmented: Path | None = None
    vocabulary: Path | None = None

    @property
    def task(self) -> Task:
        """What the run's model does."""
        return self.data.head.task

    @cached_property
    def source(self) -> ModelFolder:
        """The task's teacher as a folder."""
        return open_model_folder(str(self.teacher_folder))

    @cached_property
    def general_teacher(self) -> Any:
        """The model that general stages learn from."""
        return general_teacher(self.recipe, self.model)

    @cached_property
    def task_teacher(self) -> Any:
        """The model that the other stages learn from."""
        return load_model(self.source, self.task)

    @cached_property
    def pooling(self) -> Pooling:
        """How token states become a vector."""
        return pooling_for(self.recipe, self.source)

    def copies(self, at: Places) -> TrainData:
        """Training rows with copies in which words are replaced."""
        work = at.work / "augmented"
        return augmented_set(self.recipe, self.model, self.data, self.length, work, self.augmented)


@dataclass(frozen=True)
class StudentState:
    """The student between two stages.

    Attributes:
        student: The model: of the task's class, or as general stages train it.
        general: Whether it is as general stages train it.
        carried: What methods hand to later stages.
        captured: Whether its attention is the one that is captured, which computes with other rounding.
        curves: Losses of each stage so far.
        notes: What a reader of the student's figures must know.
    """

    student: Any
    general: bool
    carried: Carried = field(default_factory=dict)
    captured: bool = False
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()


def train_stage(learning: Learning, number: int, before: StudentState | None, at: Places) -> StudentState:
    """Train one stage; its checkpoints and caches go to ``distill.N`` and ``distill.N-cache`` in the work folder.

    Args:
        learning: What all stages share.
        number: Number of the stage in `distill`.
        before: The student that the stage before left, which is changed; None for the first stage.
        at: Where checkpoints and losses go.
    """
    from pocketbert.distill.capture.record import is_captured, record_attention
    from pocketbert.distill.methods.method import StageJob, TeacherStudent
    from pocketbert.distill.methods.table import method_of
    from pocketbert.distill.training.loop import frozen

    recipe, where = learning.recipe, f"distill.{number}"
    stage, wanted = recipe.distill[number], recipe.student
    assert wanted is not None
    teacher = learning.general_teacher if stage.general else learning.task_teacher
    family = (learning.model if stage.general else learning.source).family
    student, captured = _student_for(learning, stage.general, before)
    rows = _once(partial(_rows, learning, number, at))
    if stage.epochs is not None:
        stage = stage.for_rows(len(rows().lengths))
    pair = TeacherStudent(teacher, student, family, stage, where)
    if captured:
        for model, row in ((teacher, family), (student, pair.student_family)):
            record_attention(model, row, ())
    job = StageJob(
        pair=pair,
        rows=rows,
        seed=recipe.seed,
        work=at.work / where,
        task=learning.task,
        metrics=at.metrics,
        carried=before.carried if before else {},
        pooling=learning.pooling,
        untrained=before is None and wanted.model is None,
        exported=lambda: exported_form(_quantized(learning, stage, where), at.metrics),
    )
    with frozen(teacher):
        result = method_of(stage).train(job)
    student.requires_grad_(True)
    return StudentState(
        student,
        stage.general,
        {**job.carried, **result.carried},
        is_captured(student),
        (*(before.curves if before else ()), curve_of(where, result.outcome)),
        (*(before.notes if before else ()), *result.notes),
    )


def _quantized(learning: Learning, stage: Any, where: str) -> QuantizedStage:
    """What a stage that trains for a scheme must know of the files."""
    tokenizer = TextTokenizer(learning.source.tokenizer_folder, learning.length)
    return QuantizedStage(stage, learning.recipe, learning.task, learning.pooling, tokenizer, where)


def task_student(learning: Learning, state: StudentState) -> Any:
    """The student in the task's class: itself, or a new one with the encoder that general stages trained."""
    if not state.general:
        return state.student
    made = start_student(learning, learning.source, learning.task_teacher, learning.task)
    headed = hasattr(state.student, state.student.base_model_prefix)
    fill = with_guesses if learning.task.name is TaskName.FILL_MASK and headed else with_encoder
    return fill(made, state.student)


def start_student(learning: Learning, source: ModelFolder, teacher: Any, task: Task) -> Any:
    """The student before its first step: built for a teacher, or what the recipe names.

    Args:
        learning: What all stages share.
        source: Folder of the teacher.
        teacher: The model.
        task: Decides the head.

    Raises:
        InputError: If the student does not fit its teacher.
    """
    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.text.corpora.tokenizer import vocabulary

    wanted, seed = learning.recipe.student, learning.recipe.seed
    assert wanted is not None
    if wanted.size is not None:
        from pocketbert.distill.students.mobilebert import transfer_student

        return transfer_student(teacher, wanted.size, seed, task.head)
    if wanted.model is None:
        if wanted.init == "pruned":
            teacher = _pruned(learning, source, teacher)
        return build_student(teacher, source.family, wanted, seed)
    start = open_model_folder(wanted.model, wanted.revision, "student.model")
    if vocabulary(start.tokenizer_folder) != vocabulary(source.tokenizer_folder):
        raise InputError(
            Problem(
                "student.model",
                f"'{start.title}' has another vocabulary than the teacher '{source.title}': what one says of a "
                "token is not about the other's.",
                "Start from a student of the teacher's vocabulary.",
            )
        )
    labels = learning.data.labels if task is learning.task else None
    student = load_model(start, task, labels, new_head=True)
    if wanted.init == "pruned":
        student = _pruned(learning, start, student)
        if wanted.layers is not None:
            student = build_student(student, start.family, wanted, seed)
    return student.train()


def _pruned(learning: Learning, source: ModelFolder, model: Any) -> Any:
    """A copy of a model with the feed-forward neurons that `student.intermediate` leaves it, chosen on training rows."""
    import torch

    from pocketbert.distill.students.pruning import pruned

    wanted = learning.recipe.student
    assert wanted is not None
    assert wanted.intermediate is not None
    tokenizer = TextTokenizer(source.tokenizer_folder, learning.length)
    rows = learning.data.calibration(tokenizer)
    inputs = ({name: torch.from_numpy(value) for name, value in tokenizer.pad([row]).items()} for row in rows)
    result = pruned(model, source.family, wanted.intermediate, inputs)
    say(f"  {result.sentence} (chosen on {len(rows)} training rows)")
    return result.model


def _student_for(learning: Learning, general: bool, before: StudentState | None) -> tuple[Any, bool]:
    """The student that a stage trains, and whether its attention is the captured one."""
    if general:
        if before is not None:
            return before.student, before.captured
        task = head_wanted(learning.recipe)
        return start_student(learning, learning.model, learning.general_teacher, task), False
    if before is None:
        return start_student(learning, learning.source, learning.task_teacher, learning.task), False
    return task_student(learning, before), before.captured and not before.general


def _rows(learning: Learning, number: int, at: Places) -> TrainData:
    stage = learning.recipe.distill[number]
    if stage.general:
        return general_rows(learning.recipe, learning.model, number, learning.corpora, learning.general_teacher)
    if stage.on_augmented:
        return learning.copies(at)
    job = TrainingJob(learning.recipe, learning.source, learning.data, learning.length, at.work, at.metrics)
    rows, wanted = job.rows(f"distill.{number}"), learning.recipe.student
    if wanted is not None and wanted.vocabulary is not None and wanted.vocabulary.reads_otherwise:
        assert learning.vocabulary is not None
        return resplit_rows(job, rows, wanted.vocabulary, learning.vocabulary, f"distill.{number}")
    return rows


def _once(make: Callable[[], TrainData]) -> Callable[[], TrainData]:
    made: list[TrainData] = []

    def rows() -> TrainData:
        if not made:
            made.append(make())
        return made[0]

    return rows
