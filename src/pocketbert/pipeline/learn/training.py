"""Train the teacher and the student: the steps `teacher`, ``distill.N`` and `student` of a run.

`make_teacher` fine-tunes or copies the teacher. `make_stage` trains the student in one stage of `distill`, from the folder that the
stage before wrote to a folder for the stage after (`learn.stage_folder`). `make_student` scores the student of the last stage and writes its folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import copy_learned_ranges
from pocketbert.core.heads.multiple_choice import even_choices
from pocketbert.core.heads.several import take_rows_of_head
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import SENTENCE_EMBEDDING, Level, Task, TaskName
from pocketbert.pipeline.formats.base import LICENCE_FILE
from pocketbert.pipeline.learn.answers import column_outputs, fit_vectors
from pocketbert.pipeline.learn.augmenting import augmented_set
from pocketbert.pipeline.learn.corpora import (
    copy_general_weights,
    general_head_task,
    general_rows,
    general_teacher,
)
from pocketbert.pipeline.learn.data import AGREEMENT, RunData
from pocketbert.pipeline.learn.finishing import (
    Curve,
    SeedScore,
    TrainedModel,
    choose_seed,
    column_settings,
    make_curve,
    map_teacher_vectors,
    pooling_for,
    read_head_column_settings,
    score_and_save,
    score_seed,
)
from pocketbert.pipeline.learn.heads import answer_heads, order_head_labels
from pocketbert.pipeline.learn.quantized import make_export_functions, write_carried
from pocketbert.pipeline.learn.stage_folder import StudentState, read_general_parts, read_state, write_state
from pocketbert.pipeline.learn.transfer import arrange_pairs, mix_rows, note_transfer
from pocketbert.pipeline.learn.validation import make_validation
from pocketbert.pipeline.learn.vocabulary import has_own_tokens, open_start, resplit_rows, with_vocabulary
from pocketbert.pipeline.run_folder import StepPaths

if TYPE_CHECKING:
    from pocketbert.core.recipe.stages import QatStage, TaskStage
    from pocketbert.distill.methods.method import CarriedParts, TeacherStudent
    from pocketbert.distill.teacher.column import ColumnTeacher
    from pocketbert.distill.training.data import TrainData, TrainSet
    from pocketbert.distill.training.monitor import Monitor, Validation

CARD_FILE = "model_card.json"
"""File in the teacher's folder with the card of the model that the teacher was made from."""


# --- the teacher ---


def make_teacher(recipe: Recipe, model: ModelFolder, data: RunData, length: int, at: StepPaths) -> Sequence[str]:
    """Make a run's teacher: fine-tune or copy the model that the recipe starts from, and write its folder.

    Its labels get the order of the data's labels. The result is empty, since the step has no gates.

    Args:
        recipe: The recipe.
        model: The model to start from.
        data: The run's rows.
        length: Longest input in tokens.
        at: Paths of the step: where the teacher, its checkpoints and its losses go.
    """
    task, finetune = data.head.task, recipe.teacher.finetune
    teacher = load_model(model, task, data.labels, new_head=finetune is not None or not recipe.asks_model)
    notes, curves, pooling = list[str](), list[Curve](), pooling_for(recipe, model)
    if finetune is not None:
        read_head_answers(recipe, data)  # a column that cannot be read stops the run before a training
        from pocketbert.distill.methods.task import Finetune
        from pocketbert.distill.training.loop import train

        rows = prepare_task_rows(recipe, model, data, length, "finetune")
        settings = finetune.for_rows(len(rows.lengths))
        tokenizer = TextTokenizer(model.tokenizer_folder, length, padding_side=model.family.padding_side)
        validation = make_validation(recipe, data.head, data.splits, settings, model.family, tokenizer, pooling)
        monitor, objective = _make_monitor(recipe, at, validation), Finetune(model.family, task)
        outcome = train(teacher, objective, rows, settings, recipe.seed, "finetune", at.work, monitor)
        curves.append(make_curve("finetune", outcome))
    elif task.names_labels and recipe.asks_model:
        notes += order_head_labels(teacher, model, recipe, data.labels)
    answer_heads(recipe, data.splits, at.output)
    data = data.with_head_answers(recipe, at.output) if current_process().main else data
    trained = TrainedModel(teacher, recipe, model, data, length, pooling, tuple(curves), tuple(notes))
    score_and_save(map_teacher_vectors(trained), at.output)
    (at.output / LICENCE_FILE).write_text(model.licence + "\n", encoding="utf-8")
    model.card.write(at.output / CARD_FILE)
    if finetune is None and current_process().main:
        copy_learned_ranges(model.path, at.output)
    return ()


def _make_monitor(recipe: Recipe, at: StepPaths, validation: Validation | None) -> Monitor:
    """Return the object that records the losses of a training step and scores its model on validation rows."""
    from pocketbert.distill.training.monitor import Monitor

    return Monitor(at.metrics, validation, recipe.training.trackers, at.metrics.parent / "trackers")


def prepare_task_rows(recipe: Recipe, source: ModelFolder, data: RunData, length: int, purpose: str) -> TrainData:
    """Return the tokenized training rows of the recipe's task; for fill-mask, tokens are masked anew at every step.

    `source` is the model whose tokenizer is used. `purpose` names the stage, and all random choices depend on it.
    """
    from pocketbert.distill.text.corpus import EncodedRows
    from pocketbert.distill.text.masking import Masking
    from pocketbert.distill.text.pairs import GeneralSet
    from pocketbert.distill.training.data import TrainSet

    rows, tokenizer = data.splits["train"], TextTokenizer(source.tokenizer_folder, length)
    if data.head.task.name is TaskName.MULTIPLE_CHOICE:
        rows = even_choices(rows)
        return TrainSet(rows, tokenizer, together=len(rows.encoded) // len(rows.examples))
    if data.head.task.name is not TaskName.FILL_MASK:
        return TrainSet(rows, tokenizer)
    assert tokenizer.mask_id is not None
    encoded = EncodedRows(rows.encoded, tokenizer.vocabulary_size)
    masking = Masking(encoded.counts, tokenizer.mask_id, tokenizer.special_ids, recipe.seed, purpose, smoothing=0.0)
    return GeneralSet(encoded, tokenizer, masking)


# --- the stages of distill ---


@dataclass(frozen=True)
class Learning:
    """The recipe, rows, teachers and folders that all training stages share. Teachers are loaded when first needed.

    Attributes:
        recipe: The recipe.
        model: The model that it starts from: the teacher of general stages.
        teacher_folder: Folder of the task's teacher.
        data: The run's rows.
        length: Longest input in tokens.
        corpora: Folder of the run's corpora.
        augmented: Folder of the augmented training rows (copies with replaced words); None to make them in each stage that
            learns from them.
        vocabulary: Folder of the word pieces that the student keeps, for recipes that prune its vocabulary.
        transfer: Folder of the texts without labels that the teacher labels; None without them.
    """

    recipe: Recipe
    model: ModelFolder
    teacher_folder: Path
    data: RunData
    length: int
    corpora: Path
    augmented: Path | None = None
    vocabulary: Path | None = None
    transfer: Path | None = None

    @property
    def task(self) -> Task:
        """The task of the run's model."""
        return self.data.head.task

    @cached_property
    def source(self) -> ModelFolder:
        """The folder of the task's teacher, opened."""
        return open_model_folder(str(self.teacher_folder))

    @cached_property
    def start(self) -> ModelFolder | None:
        """The model folder that `student.model` names; None if it names none."""
        return open_start(self.recipe)

    @cached_property
    def reader(self) -> ModelFolder:
        """The folder with the student's tokenizer: that of `student.model` if it has another vocabulary, else the teacher's."""
        return self.start if self.start and has_own_tokens(self.start, self.source) else self.source

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The student's tokenizer."""
        return TextTokenizer(self.reader.tokenizer_folder, self.length)

    @cached_property
    def student_data(self) -> RunData:
        """The run's rows as the student reads them."""
        return self.data if self.reader is self.source else self.data.read_by(self.tokenizer)

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
        """How the student's token states become a vector; without the teacher's layers if vectors have the student's width."""
        return replace(self.teacher_pooling, layers=()) if self.recipe.drops_projection else self.teacher_pooling

    @cached_property
    def teacher_pooling(self) -> Pooling:
        """How the teacher's token states become a vector."""
        return pooling_for(self.recipe, self.source)


def make_stage(learning: Learning, number: int, before: Path | None, at: StepPaths) -> Sequence[str]:
    """Train the student in one stage of `distill`: read it from the previous stage's folder, write it to `at.output`.

    Args:
        learning: Recipe, rows, teachers and folders that all stages share.
        number: Index of the stage in `distill`.
        before: Output of the stage before; None for the first stage.
        at: Where the student, its checkpoints, its caches and its losses go.
    """
    state = _train_stage(learning, number, _read_state(learning, before) if before is not None else None, at)
    source, labels = (learning.model, Labels(())) if state.general else (learning.reader, learning.data.labels)
    if current_process().main:
        write_state(state, source, labels, learning.length, at.output)
        following = learning.recipe.distill[number + 1 :]
        if state.general and following and not following[0].general:
            print_note(f"  distill/{number} in the run folder is the general student: student.model of other recipes")
    return ()


def _read_state(learning: Learning, folder: Path) -> StudentState:
    """Read the student that a stage wrote to a folder, with the head that it had."""
    general_head = general_head_task(learning.recipe) if any(s.general for s in learning.recipe.distill) else None
    return read_state(folder, general_head, learning.task, learning.data.labels)


def _train_stage(learning: Learning, number: int, before: StudentState | None, at: StepPaths) -> StudentState:
    """Train the student in one stage of `distill` and return its new state.

    Checkpoints go to ``distill.N`` in the work folder. `number` is the stage's index. `before` is the state after the
    stage before, whose student is changed in place; None builds a new student for the first stage.
    """
    from pocketbert.distill.capture.record import record_attention, records_attention
    from pocketbert.distill.methods.method import StageJob, TeacherStudent
    from pocketbert.distill.methods.table import find_method
    from pocketbert.distill.training.data import rows_per_pass
    from pocketbert.distill.training.loop import frozen
    from pocketbert.distill.training.sharding import sharded

    recipe, key = learning.recipe, f"distill.{number}"
    stage, section = recipe.distill[number], recipe.student
    assert section is not None
    teacher = learning.general_teacher if stage.general else learning.task_teacher
    family = (learning.model if stage.general else learning.source).family
    student, captured = _make_stage_student(learning, stage.general, before)
    notes = list[str]()

    @cache
    def rows() -> TrainData:
        prepared, mixed = _prepare_stage_rows(learning, number, at)
        notes.extend(mixed)
        return prepared

    if stage.epochs is not None:
        stage = stage.for_rows(rows_per_pass(rows()))
    pair = TeacherStudent(teacher, student, family, stage, key)
    for model, row in ((teacher, family), (student, pair.student_family)) if captured else ():
        record_attention(model, row, ())

    job = StageJob(
        pair=pair,
        rows=rows,
        seed=recipe.seed,
        work=at.work / key,
        task=learning.task,
        monitor=_make_stage_monitor(learning, pair, at),
        carried=before.carried if before else _read_start_parts(learning, teacher, student),
        pooling=learning.pooling,
        reduced=learning.teacher_pooling if recipe.drops_projection else None,
        untrained=before is None and section.model is None,
        exported=lambda pooling: make_export_functions(
            cast("QatStage", stage), recipe, learning.task, pooling, learning.tokenizer, key, at.metrics
        ),
        answers=_read_answers(learning, student) if stage.method == "task" else None,
    )
    with sharded(teacher, family, recipe.teacher.shard), frozen(teacher):
        result = find_method(stage).train(job)
    student.requires_grad_(True)
    return StudentState(
        student,
        stage.general,
        result.add_carried(job.carried),
        records_attention(student),
        (*(before.curves if before else ()), make_curve(key, result.outcome)),
        tuple(dict.fromkeys((*(before.notes if before else ()), *notes, *result.notes))),
    )


def _read_start_parts(learning: Learning, teacher: Any, student: Any) -> CarriedParts:
    """Return what an earlier run's general stage left beside the student in `student.model`: its projection, if it fits.

    Otherwise the result is empty.
    """
    from pocketbert.distill.methods.task import keep_projection

    if learning.start is None:
        return {}
    return keep_projection(read_general_parts(learning.start.path), teacher, student)


def read_head_answers(recipe: Recipe, data: RunData) -> dict[str, Sequence[Any]]:
    """Return the logits that heads with a column of answers learn, one array for each training row, by the name of the head's output.

    Raises:
        InputError: Naming the rows, of all columns, whose answers do not fit the head.
    """
    outputs, problems, task = dict[str, Sequence[Any]](), list[Problem](), data.head.task
    for place, settings in read_head_column_settings(recipe, data).items():
        try:
            made = column_outputs(take_rows_of_head(task, place, data.splits["train"]), settings)
        except InputError as error:
            problems += [replace(p, where=f"{p.where}: {settings.key}") for p in error.problems]
        else:
            outputs[task.heads[place].output] = made["logits"]
    if problems:
        raise InputError(problems)
    return outputs


def _read_answers(learning: Learning, student: Any) -> ColumnTeacher | None:
    """Return a source of teacher signals that reads the teacher's answers from columns of the training rows; None without columns.

    The source stands in for a teacher model that is run; with several heads, for the answers of the heads that have a column.
    Sentence vectors get the student's width: `fit_vectors`.

    Args:
        learning: The recipe, which names the column, and the training rows.
        student: The student, whose width the vectors get.

    Raises:
        InputError: Naming the rows whose answers cannot be read or do not fit the task.
    """
    from pocketbert.distill.teacher.column import ColumnTeacher

    recipe, rows, task = learning.recipe, learning.data.splits["train"], learning.task
    if recipe.column is None:
        by_token = [head.output for head in task.heads if head.task.level is Level.TOKEN]
        return ColumnTeacher(read_head_answers(recipe, learning.data), by_token) if recipe.head_columns else None
    rows = even_choices(rows) if task.name is TaskName.MULTIPLE_CHOICE else rows
    outputs = dict(column_outputs(rows, column_settings(recipe, learning.data)))
    if (vectors := outputs.get(SENTENCE_EMBEDDING)) is not None:
        fitted = fit_vectors(vectors, vectors, learning.pooling, student.config.hidden_size, recipe.seed)
        outputs[SENTENCE_EMBEDDING] = fitted
        if (own := len(vectors[0])) != len(fitted[0]):
            print_note(f"  the teacher's vectors of {own} numbers are mapped to the student's {len(fitted[0])}")
    return ColumnTeacher(outputs, [*outputs] if task.level is Level.TOKEN else ())


def _make_stage_monitor(learning: Learning, pair: TeacherStudent[Any], at: StepPaths) -> Monitor:
    """Return the object that records a stage's losses and, if the stage trains the head, student scores."""
    if not pair.stage.predicts:
        return _make_monitor(learning.recipe, at, None)
    own, family = learning.student_data, pair.student_family
    tokenizer = TextTokenizer(learning.reader.tokenizer_folder, learning.length, padding_side=family.padding_side)
    validation = make_validation(learning.recipe, own.head, own.splits, pair.stage, family, tokenizer, learning.pooling)
    return _make_monitor(learning.recipe, at, validation)


def _make_stage_student(learning: Learning, general: bool, before: StudentState | None) -> tuple[Any, bool]:
    """Return the student that a stage trains (a new one for the first), and whether it can record attention.

    `general` says whether the stage trains on plain text; `before` is the state after the stage before, if there was
    one.
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
    """Return the student before its first stage.

    It is loaded from the recipe's `student.model`; without one it is built from the teacher, or anew in the shape of `student.size`.

    Args:
        learning: The recipe, rows and folders that all stages share.
        source: Folder of the teacher.
        teacher: The loaded teacher.
        task: Task that decides the student's head.

    Raises:
        InputError: If a student without layers does not fit the pooling.
    """
    from pocketbert.distill.students.build import build_student

    section, seed = learning.recipe.student, learning.recipe.seed
    assert section is not None
    if section.size is not None:
        from pocketbert.distill.students.mobilebert import transfer_student

        return transfer_student(teacher, section.size, seed, task.class_suffix)
    if section.layers == 0:
        return _make_static_student(learning, source, teacher, task)
    if (start := learning.start) is None:
        if section.init == "pruned":
            teacher = _prune_neurons(learning, source, teacher)
        return build_student(teacher, source.family, section, seed)
    labels = learning.data.labels if task is learning.task else None
    student = load_model(start, task, labels, new_head=True)
    if section.init == "pruned":
        student = _prune_neurons(learning, start, student)
        if section.layers is not None:
            student = build_student(student, start.family, section, seed)
    return student.train()


def _make_static_student(learning: Learning, source: ModelFolder, teacher: Any, task: Task) -> Any:
    """Return an untrained student without layers; the teacher in folder `source` computes its embedding table.

    Raises:
        InputError: If vectors of feature extraction are not to be the mean of the token states.
    """
    from pocketbert.distill.students.static import build_static_student
    from pocketbert.distill.training.machine import training_dtype

    recipe, section, pooling = learning.recipe, learning.recipe.student, learning.pooling
    assert section is not None
    if task.name is TaskName.FEATURE_EXTRACTION and pooling.kinds != (PoolingKind.MEAN,):
        what = f"a student without layers has no other vector of a text than the mean; this is {pooling.kind}."
        raise InputError(Problem("answer.pooling", what, "Set pooling: mean, or give the student layers."))
    tokenizer = TextTokenizer(source.tokenizer_folder, learning.length)
    pairs = any(e.pair is not None for split in learning.data.splits.values() for e in split.examples)
    sizes = section.dimensions, pairs, recipe.seed, training_dtype(teacher)
    return build_static_student(teacher, source.family, tokenizer, task, *sizes)


def _prune_neurons(learning: Learning, source: ModelFolder, model: Any) -> Any:
    """Return a copy of a model that keeps only the feed-forward neurons of each layer that are most important on training rows.

    The recipe's `student.intermediate` says how many are kept; see `pruned`.
    """
    import torch

    from pocketbert.distill.students.pruning import pruned

    section = learning.recipe.student
    assert section is not None
    assert section.intermediate is not None
    tokenizer = TextTokenizer(source.tokenizer_folder, learning.length)
    rows = learning.student_data.calibration(tokenizer)
    inputs = ({name: torch.from_numpy(value) for name, value in tokenizer.pad([row]).items()} for row in rows)
    result = pruned(model, source.family, section.intermediate, inputs)
    print_note(f"  {result.sentence} (chosen on {len(rows)} training rows)")
    return result.model


def _make_task_student(learning: Learning, state: StudentState) -> Any:
    """Return the student with the task's head; after stages on plain text it is a new one with the trained encoder."""
    if not state.general:
        return state.student
    student = _make_start_student(learning, learning.source, learning.task_teacher, learning.task)
    has_head = hasattr(state.student, state.student.base_model_prefix)
    copy_general_weights(student, state.student, learning.task.name is TaskName.FILL_MASK and has_head)
    return student


def _prepare_stage_rows(learning: Learning, number: int, at: StepPaths) -> tuple[TrainData, list[str]]:
    """Return the rows that a stage trains on and, for mixed rows and for pairs of texts, notes on what they are made of.

    For a general stage they are masked plain text. For other stages they are the training rows, also as a teacher of another vocabulary
    reads them.
    """
    from pocketbert.distill.teacher.signals import TwoTokenizerSet

    recipe, source = learning.recipe, learning.source
    if recipe.distill[number].general:
        return general_rows(recipe, learning.model, number, learning.corpora, learning.general_teacher), []
    rows, notes, printed = _prepare_task_rows(learning, number, at, learning.reader, learning.student_data)
    for line in printed:
        print_note(f"  {line}")
    if learning.reader is not source:
        taught, *_ = _prepare_task_rows(learning, number, at, source, learning.data)
        rows = TwoTokenizerSet(rows, taught, source.family.inputs)
    return rows, notes


def _prepare_task_rows(
    learning: Learning, number: int, at: StepPaths, source: ModelFolder, data: RunData
) -> tuple[TrainData, list[str], list[str]]:
    """Return the training rows of a stage on the task's text, the notes on them, and lines to print.

    The rows may be split into other word pieces, mixed with augmented rows and texts without labels, or arranged in pairs.

    Args:
        learning: Recipe and folders.
        number: Index of the stage.
        at: Where the stage's files go.
        source: Folder of the model that reads the rows.
        data: The run's rows, tokenized for that model.
    """
    recipe, key, length = learning.recipe, f"distill.{number}", learning.length
    stage, section = recipe.distill[number], recipe.student
    resplits = section is not None and section.reads_otherwise
    has_more = not resplits and (learning.transfer is not None or bool(data.unlabelled))
    is_taught = stage.is_taught(recipe.task) and has_more
    is_mixed = is_taught or (stage.on_augmented and recipe.data.mix is not None)
    if recipe.task is TaskName.FEATURE_EXTRACTION and stage.needs_labels(recipe.task):
        pairs = cast("TrainSet", prepare_task_rows(recipe, source, data, length, key))
        is_mixed = is_mixed or resplits or stage.on_augmented
        arranged, notes = arrange_pairs(pairs, cast("TaskStage", stage), key, is_mixed, learning.pooling.normalize)
        return arranged, notes, notes
    copies, printed = None, list[str]()
    if stage.on_augmented:
        places, tokenizer = (at.work / "augmented", learning.augmented), TextTokenizer(source.tokenizer_folder, length)
        copies, line = augmented_set(recipe, learning.model, data, tokenizer, *places, copies_only=is_mixed)
        printed.append(line)
        if not is_mixed:
            return copies, [], printed
    rows = prepare_task_rows(recipe, source, data, length, key)
    if is_mixed:
        texts = learning.transfer if is_taught else None
        mixed, note = mix_rows(recipe, data, cast("TrainSet", rows), copies, texts, is_taught)
        note = f"{key}: {note}"
        return mixed, [*note_transfer(texts), note], [*printed, note]
    if resplits:
        assert learning.vocabulary is not None
        return resplit_rows(rows, recipe, source, length, learning.vocabulary, at.work, key), [], []
    return rows, [], []


# --- the finished student ---


def compare_seeds(trained: Mapping[int, tuple[Learning, Path]]) -> list[SeedScore]:
    """Score the students of several seeds on validation rows and on eval, and mark the best on validation rows.

    Args:
        trained: For each seed the `Learning` that its stages share, and the folder of its last stage.
    """
    models = ((seed, open_trained(own, last)) for seed, (own, last) in trained.items())
    return choose_seed([score_seed(model, seed) for seed, model in models], next(iter(trained.values()))[0].recipe)


def open_trained(learning: Learning, last: Path) -> TrainedModel:
    """Return the student that a stage wrote to folder `last`, as it is scored and shipped."""
    return _open_student(learning, _read_state(learning, last))


def make_student(learning: Learning, last: Path, at: StepPaths, seeds: Sequence[SeedScore] = ()) -> Sequence[str]:
    """Read the last stage's student from a folder, give it the task's head, score it, and write the student's folder.

    `last` is the folder of the last stage. `seeds` are the scores of the students of all seeds, which are recorded with it.
    """
    _finish_student(learning, _read_state(learning, last), at, seeds)
    return ()


def _finish_student(learning: Learning, state: StudentState, at: StepPaths, seeds: Sequence[SeedScore] = ()) -> None:
    """Score the trained student on eval, and write its folder."""
    score_and_save(replace(_open_student(learning, state), seeds=tuple(seeds)), at.output, learning.teacher_folder)
    if current_process().main:
        write_carried(state.carried, at.output)


def _open_student(learning: Learning, state: StudentState) -> TrainedModel:
    """Return the trained student with the task's head, without the pieces of the vocabulary that the recipe drops."""
    from pocketbert.distill.methods.task import add_carried_projection

    student = _make_task_student(learning, state)
    student.set_attn_implementation("sdpa" if student._supports_sdpa else "eager")
    trained = TrainedModel(
        student,
        learning.recipe,
        learning.reader,
        learning.student_data,
        learning.length,
        add_carried_projection(learning.pooling, {} if learning.recipe.drops_projection else state.carried),
        state.curves,
        (*state.notes, *([AGREEMENT] if learning.data.scores_agreement else [])),
    )
    if learning.recipe.prunes_vocabulary and current_process().main:  # process 0 alone scores and writes
        assert learning.vocabulary is not None
        trained = with_vocabulary(trained, learning.vocabulary)
    return trained
