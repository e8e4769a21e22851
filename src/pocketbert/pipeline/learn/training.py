"""Stages that make weights: the teacher's folder and the student's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pocketbert.core.data.labels import Labels, placeholder_names
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import copy_learned
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.sentence_settings import Pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName
from pocketbert.pipeline.formats.base import LICENCE_FILE
from pocketbert.pipeline.learn.augmenting import augmented_set
from pocketbert.pipeline.learn.corpora import general_rows, general_teacher, head_wanted, with_encoder, with_guesses
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import Curve, Finished, TrainingJob, curve_of, finish, pooling_for
from pocketbert.pipeline.learn.quantized import QuantizedStage, exported_form, write_carried
from pocketbert.pipeline.learn.vocabulary import resplit_rows, with_vocabulary
from pocketbert.pipeline.run_folder import Places

if TYPE_CHECKING:
    from pocketbert.distill.methods.method import Carried
    from pocketbert.distill.training.data import TrainData


# --- stages ---
# The stages of `distill`, one at a time: from the student that the stage before left to the student after it.


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
    from pocketbert.distill.text.tokenizer import vocabulary

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


# --- between ---
# The student between two stages as a folder: a model that transformers opens, and what stages hand on.


FILE_NAME = "stage.json"
TENSORS = "carried.safetensors"


class StageFile(BaseModel):
    """What a stage leaves next to the student's weights; ``stage.json``.

    Attributes:
        general: Whether the student is as general stages train it.
        captured: Whether its attention is the one that is captured.
        curves: Losses of each stage so far.
        notes: What a reader of the student's figures must know.
        carried: Facts that methods hand on, by name; their tensors are in ``carried.safetensors``.
    """

    general: bool
    captured: bool
    curves: list[Curve]
    notes: list[str]
    carried: dict[str, dict[str, Any]]


def write_state(learning: Learning, state: StudentState, destination: Path) -> None:
    """Write the student between two stages, in process 0.

    Args:
        learning: What all stages share.
        state: The student.
        destination: An existing folder.
    """
    from safetensors.torch import save_file

    if not here().main:
        return
    source = learning.model if state.general else learning.source
    save_model(
        state.student, source, Labels(()) if state.general else learning.data.labels, learning.length, destination
    )
    tensors = {
        f"{name}/{key}": value.detach().cpu().contiguous()
        for name, part in state.carried.items()
        for key, value in part.tensors.items()
    }
    save_file(tensors, destination / TENSORS)
    file = StageFile(
        general=state.general,
        captured=state.captured,
        curves=[*state.curves],
        notes=[*state.notes],
        carried={name: dict(part.facts) for name, part in state.carried.items()},
    )
    write_json(destination / FILE_NAME, file.model_dump(mode="json"))


def read_state(learning: Learning, folder: Path) -> StudentState:
    """Read the student that a stage left.

    Args:
        learning: What all stages share.
        folder: What `write_state` wrote.
    """
    from safetensors.torch import load_file

    from pocketbert.distill.methods.method import CarriedPart
    from pocketbert.distill.training.loop import mark_trained

    file = StageFile.model_validate(read_json(folder / FILE_NAME))
    source = open_model_folder(str(folder))
    if file.general:
        student = load_model(source, head_wanted(learning.recipe))
    else:
        student = load_model(source, learning.task, learning.data.labels)
    mark_trained(student)
    tensors = load_file(folder / TENSORS)
    carried = {
        name: CarriedPart(
            {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")},
            facts,
        )
        for name, facts in file.carried.items()
    }
    return StudentState(student.train(), file.general, carried, file.captured, tuple(file.curves), tuple(file.notes))


CARD_FILE = "model_card.json"
"""What the card of the model says that the teacher was made from."""


def make_teacher(recipe: Recipe, model: ModelFolder, data: RunData, length: int, at: Places) -> Sequence[str]:
    """Write the teacher, fine-tuned where the recipe has `finetune`, with its labels in the run's order."""
    task = data.head.task
    finetune = recipe.teacher.finetune
    teacher = load_model(model, task, data.labels, new_head=finetune is not None)
    notes, curves = [], []
    if finetune is not None:
        from pocketbert.distill.methods.task import Finetune

        job = TrainingJob(recipe, model, data, length, at.work, at.metrics)
        curves.append(job.train(teacher, Finetune(model.family, task), finetune, "finetune"))
    elif task.names_labels:
        note = permute_head(teacher, _head_labels(model, recipe, data.labels), data.labels)
        notes += [note] if note else []
    pooling = pooling_for(recipe, model)
    finish(Finished(teacher, recipe, model, data, length, pooling, tuple(curves), tuple(notes)), at.output)
    (at.output / LICENCE_FILE).write_text(model.licence + "\n", encoding="utf-8")
    model.card.write(at.output / CARD_FILE)
    if finetune is None and here().main:
        copy_learned(model.path, at.output)
    return ()


def _head_labels(model: ModelFolder, recipe: Recipe, ours: Labels) -> Labels:
    """Labels of a trained head. LABEL_0, LABEL_1, ... say nothing: names that the user declares are theirs, in order.

    So are those that the data's numbers gave to them, see `resolve_labels`.
    """
    names = tuple(model.labels or ours.names)
    if (recipe.data.labels or ours.numbers) and placeholder_names(names) and len(names) == len(ours):
        return ours
    return Labels(names)


def make_stage(learning: Learning, number: int, before: Path | None, at: Places) -> Sequence[str]:
    """Train one stage of `distill`, from the folder that the stage before wrote to a folder for the stage after.

    Args:
        learning: What all stages share.
        number: Number of the stage in `distill`.
        before: Output of the stage before; None for the first stage.
        at: Where the student, its checkpoints, its caches and its losses go.
    """
    state = read_state(learning, before) if before is not None else None
    write_state(learning, train_stage(learning, number, state, at), at.output)
    return ()


def make_student(learning: Learning, last: Path, at: Places) -> Sequence[str]:
    """Write the finished student: in the task's class, scored, with the story of its training.

    Args:
        learning: What all stages share.
        last: Output of the last stage.
        at: Where the student goes.
    """
    finish_student(learning, read_state(learning, last), at)
    return ()


def finish_student(learning: Learning, state: StudentState, at: Places) -> None:
    """Score the student that the last stage left, and write its folder.

    Args:
        learning: What all stages share.
        state: The student after the last stage.
        at: Where the student goes.
    """
    student = task_student(learning, state)
    student.set_attn_implementation("sdpa" if student._supports_sdpa else "eager")
    made = Finished(
        student,
        learning.recipe,
        learning.source,
        learning.data,
        learning.length,
        learning.pooling,
        state.curves,
        state.notes,
    )
    section = learning.recipe.student
    if section is not None and section.vocabulary is not None and here().main:
        assert learning.vocabulary is not None
        made = with_vocabulary(made, learning.vocabulary)
    finish(made, at.output, learning.teacher_folder)
    if here().main:
        write_carried(state.carried, at.output)


def permute_head(model: Any, have: Labels, want: Labels) -> str | None:
    """Reorder the classifier's rows so that its outputs follow another order of the same labels.

    Args:
        model: A model with a classification head.
        have: Its label order.
        want: The wanted order.

    Returns:
        A sentence for the user, or None when the order is the same.

    Raises:
        InputError: If the label sets differ, or the head cannot be found.
    """
    import torch

    order = want.permutation_from(have, "teacher")
    if order is None:
        return None
    rows = len(have)
    last = [
        m
        for n, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and m.out_features == rows and not n.startswith(model.base_model_prefix)
    ]
    if not last:
        raise InputError(
            Problem(
                "teacher",
                "its classifier has no last linear layer to reorder.",
                f"Set data.labels to the teacher's own order: {list(have.names)}.",
            )
        )
    with torch.no_grad():
        last[-1].weight.copy_(last[-1].weight[order])
        if last[-1].bias is not None:
            last[-1].bias.copy_(last[-1].bias[order])
    note = f"labels permuted: the model's order {list(have.names)} became the data's order {list(want.names)}"
    say(f"  {note}")
    return note
