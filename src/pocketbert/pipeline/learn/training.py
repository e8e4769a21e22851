"""Train the teacher and the student: the steps `teacher`, ``distill.N`` and `student` of a run.

`make_teacher` fine-tunes or copies the teacher. `make_stage` trains the student in one stage of `distill`, from the folder that the
stage before wrote to a folder for the stage after; between two stages the student is a model that transformers opens, with
``stage.json`` and the tensors that methods hand on. `make_student` scores the student of the last stage and writes its folder.
`Learning` holds what all stages of a recipe share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from pocketbert.core.data.labels import Labels, are_placeholder_names
from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import copy_learned_ranges
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.sentence_settings import Pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName
from pocketbert.pipeline.formats.base import LICENCE_FILE
from pocketbert.pipeline.learn.augmenting import augmented_set
from pocketbert.pipeline.learn.corpora import (
    copy_general_weights,
    general_head_task,
    general_rows,
    general_teacher,
)
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import Curve, TrainedModel, pooling_for, score_and_save
from pocketbert.pipeline.learn.quantized import exported_form, write_carried
from pocketbert.pipeline.learn.vocabulary import resplit_rows, with_vocabulary
from pocketbert.pipeline.run_folder import StepPaths

if TYPE_CHECKING:
    from pocketbert.core.recipe.stages import QatStage
    from pocketbert.distill.methods.method import CarriedParts, ExportFunctions
    from pocketbert.distill.training.data import TrainData
    from pocketbert.distill.training.loop import Outcome

CARD_FILE = "model_card.json"
"""File in the teacher's folder with the card of the model that the teacher was made from."""
_STAGE_FILE = "stage.json"
_CARRIED_FILE = "carried.safetensors"


# --- the teacher ---


def make_teacher(recipe: Recipe, model: ModelFolder, data: RunData, length: int, at: StepPaths) -> Sequence[str]:
    """Fine-tune or copy the model that a recipe starts from, in the data's label order; write the teacher's folder.

    `model` is the model that the recipe starts from, `length` the longest input in tokens.
    """
    task, finetune = data.head.task, recipe.teacher.finetune
    teacher = load_model(model, task, data.labels, new_head=finetune is not None)
    notes, curves = list[str](), list[Curve]()
    if finetune is not None:
        from pocketbert.distill.methods.task import Finetune
        from pocketbert.distill.training.loop import train

        objective = Finetune(model.family, task)
        rows = _prepare_task_rows(recipe, model, data, length, "finetune")
        settings = finetune.for_rows(len(rows.lengths))
        outcome = train(teacher, objective, rows, settings, recipe.seed, "finetune", at.work, at.metrics)
        curves.append(_make_curve("finetune", outcome))
    elif task.names_labels:
        note = _permute_head(teacher, _resolve_head_labels(model, recipe, data.labels), data.labels)
        notes += [note] if note else []
    pooling = pooling_for(recipe, model)
    score_and_save(TrainedModel(teacher, recipe, model, data, length, pooling, tuple(curves), tuple(notes)), at.output)
    (at.output / LICENCE_FILE).write_text(model.licence + "\n", encoding="utf-8")
    model.card.write(at.output / CARD_FILE)
    if finetune is None and current_process().main:
        copy_learned_ranges(model.path, at.output)
    return ()


def _prepare_task_rows(recipe: Recipe, source: ModelFolder, data: RunData, length: int, purpose: str) -> TrainData:
    """Return the tokenized training rows of the task; for fill-mask, words are masked anew at every step.

    `purpose` names the stage; it is part of the key of each random choice.
    """
    from pocketbert.distill.text.corpus import EncodedRows
    from pocketbert.distill.text.masking import Masking
    from pocketbert.distill.text.pairs import GeneralSet
    from pocketbert.distill.training.data import TrainSet

    rows = data.splits["train"]
    tokenizer = TextTokenizer(source.tokenizer_folder, length)
    if data.head.task.name is not TaskName.FILL_MASK:
        return TrainSet(rows, tokenizer)
    assert tokenizer.mask_id is not None
    encoded = EncodedRows(rows.encoded, tokenizer.vocabulary_size)
    masking = Masking(encoded.counts, tokenizer.mask_id, tokenizer.special_ids, recipe.seed, purpose, smoothing=0.0)
    return GeneralSet(encoded, tokenizer, masking)


def _resolve_head_labels(model: ModelFolder, recipe: Recipe, data_labels: Labels) -> Labels:
    """Return the labels of a trained head in the order of its outputs.

    LABEL_0, LABEL_1, ... are no names: names that the user declares belong to them in order, and so do those that the data's
    numbers gave to them, see `resolve_labels`.
    """
    names = tuple(model.labels or data_labels.names)
    named = recipe.data.labels or data_labels.numbers
    if named and are_placeholder_names(names) and len(names) == len(data_labels):
        return data_labels
    return Labels(names)


def _permute_head(model: Any, head_labels: Labels, data_labels: Labels) -> str | None:
    """Reorder the rows of the classifier's last linear layer so that its outputs follow the data's label order.

    Returns:
        A sentence for the user; None if the order is the same.

    Raises:
        InputError: If the label sets differ, or the head cannot be found.
    """
    import torch

    order = data_labels.permutation_from(head_labels, "teacher")
    if order is None:
        return None
    rows = len(head_labels)
    last = [
        m
        for n, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and m.out_features == rows and not n.startswith(model.base_model_prefix)
    ]
    if not last:
        what = "its classifier has no last linear layer to reorder."
        fix = f"Set data.labels to the teacher's own order: {list(head_labels.names)}."
        raise InputError(Problem("teacher", what, fix))
    with torch.no_grad():
        last[-1].weight.copy_(last[-1].weight[order])
        if last[-1].bias is not None:
            last[-1].bias.copy_(last[-1].bias[order])
    note = f"labels permuted: the model's order {list(head_labels.names)} became the data's order {list(data_labels.names)}"
    print_note(f"  {note}")
    return note


# --- the stages of distill ---


@dataclass(frozen=True)
class Learning:
    """The recipe, rows, teachers and folders that all training stages share; teachers are loaded when first needed.

    Attributes:
        recipe: The recipe.
        model: The model that it starts from: the teacher of general stages.
        teacher_folder: Folder of the task's teacher.
        data: The run's rows.
        length: Longest input in tokens.
        corpora: Folder of the run's corpora.
        augmented: Folder of the copies of training rows; None to make them in each stage that learns from them.
        vocabulary: Folder of the pieces that the student keeps, for recipes that prune its vocabulary.
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
        """The task of the run's model."""
        return self.data.head.task

    @cached_property
    def source(self) -> ModelFolder:
        """The folder of the task's teacher, opened."""
        return open_model_folder(str(self.teacher_folder))

    @cached_property
    def general_teacher(self) -> Any:
        """The pre-trained torch model that general stages (those on plain text) learn from."""
        return general_teacher(self.recipe, self.model)

    @cached_property
    def task_teacher(self) -> Any:
        """The torch model of the task, fine-tuned or copied, that the stages on task rows learn from."""
        return load_model(self.source, self.task)

    @cached_property
    def pooling(self) -> Pooling:
        """How token states become a vector."""
        return pooling_for(self.recipe, self.source)


@dataclass(frozen=True)
class _StudentState:
    """The student between two stages, with its losses, notes and the tensors that methods pass on.

    Attributes:
        student: The model: of the task's class, or as general stages train it.
        general: Whether it is as general stages train it.
        carried: Tensors and facts that methods hand to later stages.
        captured: Whether its attention is the implementation that records attention, which rounds in another way.
        curves: Losses of each stage so far.
        notes: Remarks for readers of the student's scores.
    """

    student: Any
    general: bool
    carried: CarriedParts = field(default_factory=dict)
    captured: bool = False
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()


def make_stage(learning: Learning, number: int, before: Path | None, at: StepPaths) -> Sequence[str]:
    """Train the student in one stage of `distill`: read it from the previous stage's folder, write it to `at.output`.

    Args:
        learning: What all stages share.
        number: Number of the stage in `distill`.
        before: Output of the stage before; None for the first stage.
        at: Where the student, its checkpoints, its caches and its losses go.
    """
    state = _read_state(learning, before) if before is not None else None
    _write_state(learning, _train_stage(learning, number, state, at), at.output)
    return ()


def _train_stage(learning: Learning, number: int, before: _StudentState | None, at: StepPaths) -> _StudentState:
    """Train the student in one stage and return its new state; checkpoints go to ``distill.N`` in the work folder.

    The student of `before` is changed; None builds a new one for the first stage.
    """
    from pocketbert.distill.capture.record import record_attention, records_attention
    from pocketbert.distill.methods.method import StageJob, TeacherStudent
    from pocketbert.distill.methods.table import find_method
    from pocketbert.distill.training.loop import frozen

    recipe, key = learning.recipe, f"distill.{number}"
    stage, section = recipe.distill[number], recipe.student
    assert section is not None
    teacher = learning.general_teacher if stage.general else learning.task_teacher
    family = (learning.model if stage.general else learning.source).family
    student, captured = _make_stage_student(learning, stage.general, before)

    @cache
    def rows() -> TrainData:
        return _prepare_stage_rows(learning, number, at)

    if stage.epochs is not None:
        stage = stage.for_rows(len(rows().lengths))
    pair = TeacherStudent(teacher, student, family, stage, key)
    if captured:
        for model, row in ((teacher, family), (student, pair.student_family)):
            record_attention(model, row, ())

    def exported() -> ExportFunctions:
        tokenizer = TextTokenizer(learning.source.tokenizer_folder, learning.length)
        return exported_form(
            cast("QatStage", stage), recipe, learning.task, learning.pooling, tokenizer, key, at.metrics
        )

    job = StageJob(
        pair=pair,
        rows=rows,
        seed=recipe.seed,
        work=at.work / key,
        task=learning.task,
        metrics=at.metrics,
        carried=before.carried if before else {},
        pooling=learning.pooling,
        untrained=before is None and section.model is None,
        exported=exported,
    )
    with frozen(teacher):
        result = find_method(stage).train(job)
    student.requires_grad_(True)
    return _StudentState(
        student,
        stage.general,
        {**job.carried, **result.carried},
        records_attention(student),
        (*(before.curves if before else ()), _make_curve(key, result.outcome)),
        (*(before.notes if before else ()), *result.notes),
    )


def _make_stage_student(learning: Learning, general: bool, before: _StudentState | None) -> tuple[Any, bool]:
    """Return a stage's student, that of the stage before or a new one, and whether its attention already records.

    `general` tells whether the stage trains on plain text; `before` is the student of the stage before, if any.
    """
    if general:
        if before is not None:
            return before.student, before.captured
        head = general_head_task(learning.recipe)
        return _make_start_student(learning, learning.model, learning.general_teacher, head), False
    if before is None:
        return _make_start_student(learning, learning.source, learning.task_teacher, learning.task), False
    return _make_task_student(learning, before), before.captured and not before.general


def _make_start_student(learning: Learning, source: ModelFolder, teacher: Any, task: Task) -> Any:
    """Return an untrained student: built from its teacher's weights, or loaded from the model that the recipe names.

    Args:
        learning: What all stages share.
        source: Folder of the teacher.
        teacher: The teacher.
        task: Decides the head.

    Raises:
        InputError: If the student has another vocabulary than its teacher.
    """
    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.text.tokenizer import read_vocabulary

    section, seed = learning.recipe.student, learning.recipe.seed
    assert section is not None
    if section.size is not None:
        from pocketbert.distill.students.mobilebert import transfer_student

        return transfer_student(teacher, section.size, seed, task.head)
    if section.model is None:
        if section.init == "pruned":
            teacher = _prune_neurons(learning, source, teacher)
        return build_student(teacher, source.family, section, seed)
    start = open_model_folder(section.model, section.revision, "student.model")
    if read_vocabulary(start.tokenizer_folder) != read_vocabulary(source.tokenizer_folder):
        what = (
            f"'{start.title}' has another vocabulary than the teacher '{source.title}': what one says of a "
            "token is not about the other's."
        )
        fix = "Start from a student of the teacher's vocabulary."
        raise InputError(Problem("student.model", what, fix))
    labels = learning.data.labels if task is learning.task else None
    student = load_model(start, task, labels, new_head=True)
    if section.init == "pruned":
        student = _prune_neurons(learning, start, student)
        if section.layers is not None:
            student = build_student(student, start.family, section, seed)
    return student.train()


def _prune_neurons(learning: Learning, source: ModelFolder, model: Any) -> Any:
    """Return a copy of a model pruned to `student.intermediate` feed-forward neurons per layer, by training rows."""
    import torch

    from pocketbert.distill.students.pruning import pruned

    section = learning.recipe.student
    assert section is not None
    assert section.intermediate is not None
    tokenizer = TextTokenizer(source.tokenizer_folder, learning.length)
    rows = learning.data.calibration(tokenizer)
    inputs = ({name: torch.from_numpy(value) for name, value in tokenizer.pad([row]).items()} for row in rows)
    result = pruned(model, source.family, section.intermediate, inputs)
    print_note(f"  {result.sentence} (chosen on {len(rows)} training rows)")
    return result.model


def _make_task_student(learning: Learning, state: _StudentState) -> Any:
    """Return the student with the task's head: as it is, or a new one with the encoder trained by general stages."""
    if not state.general:
        return state.student
    student = _make_start_student(learning, learning.source, learning.task_teacher, learning.task)
    has_head = hasattr(state.student, state.student.base_model_prefix)
    copy_general_weights(student, state.student, learning.task.name is TaskName.FILL_MASK and has_head)
    return student


def _prepare_stage_rows(learning: Learning, number: int, at: StepPaths) -> TrainData:
    """Return the rows that stage `number` trains on: masked plain text, augmented, re-split or plain training rows."""
    recipe, key = learning.recipe, f"distill.{number}"
    stage, section = recipe.distill[number], recipe.student
    if stage.general:
        return general_rows(recipe, learning.model, number, learning.corpora, learning.general_teacher)
    if stage.on_augmented:
        work = at.work / "augmented"
        return augmented_set(recipe, learning.model, learning.data, learning.length, work, learning.augmented)
    rows = _prepare_task_rows(recipe, learning.source, learning.data, learning.length, key)
    if section is not None and section.vocabulary is not None and section.vocabulary.reads_otherwise:
        assert learning.vocabulary is not None
        return resplit_rows(rows, recipe, learning.source, learning.length, learning.vocabulary, at.work, key)
    return rows


def _make_curve(stage: str, outcome: Outcome) -> Curve:
    """Return a stage's training history as the `Curve` stored in ``stage.json`` and ``training.json``."""
    history = outcome.history
    return Curve(
        stage=stage,
        steps=[r.step for r in history],
        loss=[r.loss for r in history],
        terms={k: [r.terms.get(k) for r in history] for k in dict.fromkeys(k for r in history for k in r.terms)},
        dtype=outcome.dtype,
        threads=outcome.threads,
    )


# --- the student between two stages, as a folder ---


class _StageFile(BaseModel):
    """Content of ``stage.json``, next to the student's weights; fields as in `_StudentState`.

    Attributes:
        general: Whether the student is as general stages train it.
        captured: Whether its attention is the implementation that records attention.
        curves: Losses of each stage so far.
        notes: Remarks for readers of the student's scores.
        carried: Facts that methods hand on, by name; their tensors are in ``carried.safetensors``.
    """

    general: bool
    captured: bool
    curves: list[Curve]
    notes: list[str]
    carried: dict[str, dict[str, Any]]


def _write_state(learning: Learning, state: _StudentState, destination: Path) -> None:
    """Write the student's model, ``stage.json`` and carried tensors to an existing folder, in process 0 only."""
    from safetensors.torch import save_file

    if not current_process().main:
        return
    source, labels = learning.source, learning.data.labels
    if state.general:
        source, labels = learning.model, Labels(())
    save_model(state.student, source, labels, learning.length, destination)
    tensors = {
        f"{name}/{key}": value.detach().cpu().contiguous()
        for name, part in state.carried.items()
        for key, value in part.tensors.items()
    }
    save_file(tensors, destination / _CARRIED_FILE)
    file = _StageFile(
        general=state.general,
        captured=state.captured,
        curves=[*state.curves],
        notes=[*state.notes],
        carried={name: dict(part.facts) for name, part in state.carried.items()},
    )
    write_json(destination / _STAGE_FILE, file.model_dump(mode="json"))


def _read_state(learning: Learning, folder: Path) -> _StudentState:
    """Read the student that a stage wrote to a folder, with its losses, notes and carried tensors."""
    from safetensors.torch import load_file

    from pocketbert.distill.methods.method import CarriedPart
    from pocketbert.distill.training.loop import mark_as_prepared

    file = _StageFile.model_validate(read_json(folder / _STAGE_FILE))
    source = open_model_folder(str(folder))
    if file.general:
        student = load_model(source, general_head_task(learning.recipe))
    else:
        student = load_model(source, learning.task, learning.data.labels)
    mark_as_prepared(student)
    tensors = load_file(folder / _CARRIED_FILE)
    carried = {
        name: CarriedPart(
            {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")},
            facts,
        )
        for name, facts in file.carried.items()
    }
    return _StudentState(student.train(), file.general, carried, file.captured, tuple(file.curves), tuple(file.notes))


# --- the finished student ---


def make_student(learning: Learning, last: Path, at: StepPaths) -> Sequence[str]:
    """Read the last stage's student from folder `last`, give it the task's head, score it, and write its folder."""
    _finish_student(learning, _read_state(learning, last), at)
    return ()


def _finish_student(learning: Learning, state: _StudentState, at: StepPaths) -> None:
    """Prune the trained student's vocabulary if the recipe says so, score it on eval, and write its folder."""
    student = _make_task_student(learning, state)
    student.set_attn_implementation("sdpa" if student._supports_sdpa else "eager")
    trained = TrainedModel(
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
    if section is not None and section.vocabulary is not None and current_process().main:
        assert learning.vocabulary is not None
        trained = with_vocabulary(trained, learning.vocabulary)
    score_and_save(trained, at.output, learning.teacher_folder)
    if current_process().main:
        write_carried(state.carried, at.output)
