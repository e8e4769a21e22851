"""General stages: a student learns a pre-trained teacher on plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import family_of
from pocketbert.core.host.progress import say
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.stages import (
    GENERAL,
    DistilBertStage,
    LayerStage,
    MiniLmStage,
    MobileBertStage,
    TinyBertGeneralStage,
)
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.pipeline.learn.corpora import open_corpora
from pocketbert.pipeline.learn.finishing import Curve
from pocketbert.pipeline.learn.job import TrainingJob

if TYPE_CHECKING:
    from pocketbert.distill.students.projection import LayerProjection
    from pocketbert.distill.teacher.state_adapter import StateAdapter
    from pocketbert.distill.text.general_set import GeneralSet
    from pocketbert.distill.training.train_set import TrainData


@dataclass(frozen=True)
class Learnt:
    """What general stages leave behind.

    Attributes:
        student: With the head that guesses hidden words where a stage taught it, else the encoder alone.
        projection: From its width to the teacher's, where a stage trained one.
        curves: Losses of each stage.
        notes: What a reader of the student's figures must know.
    """

    student: Any
    projection: LayerProjection | None
    curves: list[Curve]
    notes: list[str]


def general_student(job: TrainingJob, build: Callable[[Any, Task], Any], corpora: Path) -> Learnt:
    """Train a student through the general stages of a recipe.

    Args:
        job: Recipe, and the pre-trained teacher's folder.
        build: Makes the student for a teacher, with the head of a task.
        corpora: Where the run's corpora are.
    """
    from pocketbert.distill.text.general_set import GeneralSet
    from pocketbert.distill.text.masking.kinds import masking_of
    from pocketbert.distill.text.pairs import pairs_of
    from pocketbert.distill.training.loop import frozen

    recipe, source, curves, notes = job.recipe, job.source, list[Curve](), list[str]()
    stages = {f"distill.{n}": s for n, s in enumerate(recipe.distill) if isinstance(s, GENERAL)}
    assert recipe.data.corpus is not None
    task = _head_wanted([*stages.values()])
    teacher = _teacher(source, task, stages)
    student = build(teacher, task)
    tokenizer = TextTokenizer(source.path, min(recipe.data.corpus.length, source.positions))
    rows = open_corpora(recipe.data.corpus, source.path, corpora, recipe.seed)
    vocabulary, projection, adapter = len(rows.counts), None, None
    with frozen(teacher):
        for where, stage in stages.items():
            masking = masking_of(
                stage.masking, rows.counts, tokenizer, recipe.seed, where, stage.mask_share, stage.smoothing
            )
            pairs = pairs_of(tokenizer, vocabulary, recipe.seed, where) if stage.pairs else None
            own = GeneralSet(rows, tokenizer, masking, pairs)
            part = replace(job, work=job.work / where)
            if isinstance(stage, TinyBertGeneralStage):
                curve, projection = layer_stage(part, teacher, student, stage, where, own, projection)
            elif isinstance(stage, MobileBertStage):
                new = not curves and recipe.student is not None and recipe.student.model is None
                curve, adapter = _transfer(part, teacher, student, stage, where, own, adapter, notes, new)
            else:
                curve = part.train(student, _objective(job, teacher, student, stage, where, own), stage, where, own)
            curves.append(curve)
            student.requires_grad_(True)
    return Learnt(student, projection, curves, notes)


def _head_wanted(stages: Sequence[object]) -> Task:
    """What teacher and student are loaded as: with the heads that the stages train, or none."""
    guesses = TASKS[TaskName.FILL_MASK]
    if any(isinstance(s, MobileBertStage) and s.weights.next_sentence for s in stages):
        return replace(guesses, head="ForPreTraining", auto_class="AutoModelForPreTraining")
    if any(isinstance(s, DistilBertStage | MobileBertStage) for s in stages):
        return guesses
    return TASKS[TaskName.FEATURE_EXTRACTION]


def _teacher(source: ModelFolder, task: Task, stages: Mapping[str, object]) -> Any:
    """The teacher with as many of the wanted heads as its folder has; without any only where no stage asks for its guesses."""
    bare, guesses = TASKS[TaskName.FEATURE_EXTRACTION], TASKS[TaskName.FILL_MASK]
    transfer = {w: s for w, s in stages.items() if isinstance(s, MobileBertStage)}
    asking = [w for w, s in transfer.items() if s.truth < 1 and s.weights.guesses]
    silent = not asking and not any(isinstance(s, DistilBertStage) for s in stages.values())
    # a next-sentence head is never asked, only copied; so are others where the truth is all that is guessed
    kinds = [
        task,
        *([guesses] if task.head == "ForPreTraining" else []),
        *([bare] if silent and task is not bare else []),
    ]
    for kind in kinds[:-1]:
        with suppress(InputError):
            return load_model(source, kind)
    try:
        return load_model(source, kinds[-1])
    except InputError as error:
        advice = [
            Problem(
                f"{where}.truth",
                f"{transfer[where].truth}: the teacher's guesses are learnt, so it needs the head that makes them.",
                "Set truth: 1 to learn its layers, and the original tokens alone.",
            )
            for where in asking
        ]
        raise InputError([*error.problems, *advice]) from error


def _transfer(
    job: TrainingJob,
    teacher: Any,
    student: Any,
    stage: MobileBertStage,
    where: str,
    own: GeneralSet,
    adapter: StateAdapter | None,
    notes: list[str],
    new: bool,
) -> tuple[Curve, StateAdapter | None]:
    """A stage of bottleneck transfer.

    From a teacher without bottlenecks through an adapter, which the next stage goes on with; a student that is new then gets
    its embeddings from the teacher's.
    """
    from pocketbert.distill.methods.mobilebert import MobileBertDistillation
    from pocketbert.distill.methods.transfer_course import TransferCourse
    from pocketbert.distill.methods.transfer_phases import BATCH
    from pocketbert.distill.students.mobilebert import has_bottlenecks
    from pocketbert.distill.teacher.state_adapter import fit_adapter, reduce_embeddings

    family, ours = job.source.family, family_of(student.config.model_type)
    if adapter is None and has_bottlenecks(student.config) and not has_bottlenecks(teacher.config):
        adapter = fit_adapter(teacher, family, own, student.config.hidden_size)
        if new:
            reduce_embeddings(teacher, student, adapter)
        notes.append(
            f"{family.title} has no bottlenecks: {adapter.width} principal components of its states, {adapter.kept:.1%} of "
            "their variance, stand in for them"
        )
        say(f"  {notes[-1]}")
    objective = MobileBertDistillation(teacher, student, family, stage, where, student_family=ours, adapter=adapter)
    batch = "" if stage.batch == BATCH else f", batch {stage.batch:,} instead of {BATCH:,}"
    notes.append(f"MobileBERT transfer: {objective.phases.name}{batch}")
    say(f"  {notes[-1]}")
    course = TransferCourse(objective.phases, ours.layer_path, stage)
    return job.train(student, objective, stage, where, own, course), adapter


def _objective(
    job: TrainingJob, teacher: Any, student: Any, stage: DistilBertStage | MiniLmStage, where: str, own: GeneralSet
) -> Any:
    from pocketbert.distill.methods.distilbert import DistilBertDistillation
    from pocketbert.distill.methods.minilm import MiniLmDistillation
    from pocketbert.distill.students.build import freeze_positions
    from pocketbert.distill.teacher.sparse.teacher import sparse_teacher
    from pocketbert.distill.training.batches import BatchOrder

    family = job.source.family
    if isinstance(stage, MiniLmStage):
        ours = family_of(student.config.model_type)
        return MiniLmDistillation(teacher, student, family, stage, where, student_family=ours)
    if stage.freeze_positions:
        freeze_positions(student)
    objective = DistilBertDistillation(teacher, student, family, stage, where)
    if stage.cache is not None:
        order = BatchOrder(own.lengths, stage.batch, job.recipe.seed, where)
        objective.replay(
            sparse_teacher(
                teacher,
                own,
                order,
                stage.steps,
                stage.cache,
                stage.temperature,
                job.work / f"{where}-cache",
                where=f"{where}.cache",
            )
        )
    return objective


def layer_stage(
    job: TrainingJob,
    teacher: Any,
    student: Any,
    stage: LayerStage,
    where: str,
    rows: TrainData,
    projection: LayerProjection | None,
) -> tuple[Curve, LayerProjection | None]:
    """One of TinyBERT's stages on layers; the projection is on the student while it is trained, and no longer.

    Args:
        job: Where losses and checkpoints go.
        teacher: What to learn from, frozen.
        student: What is trained, in place.
        stage: Its settings.
        where: Recipe key.
        rows: Training rows.
        projection: What the stage before trained; None to start anew.

    Returns:
        The losses, and the projection for the next stage.
    """
    from pocketbert.distill.methods.tinybert import TinyBertDistillation
    from pocketbert.distill.students.projection import attach_projection, detach_projection

    attach_projection(student, teacher.config.hidden_size, stage.projection, job.recipe.seed, where, carried=projection)
    ours = family_of(student.config.model_type)
    objective = TinyBertDistillation(teacher, student, job.source.family, stage, where, student_family=ours)
    try:
        curve = job.train(student, objective, stage, where, rows)
    finally:
        trained = detach_projection(student)
    return curve, trained


def with_encoder(model: Any, learnt: Any) -> Any:
    """A model whose encoder is another one's; its head stays."""
    encoders = [getattr(m, m.base_model_prefix, m) for m in (model, learnt)]
    # an encoder alone has a pooler that some heads do without, and a masked-language model has none
    _fill(encoders[0], encoders[1], "pooler.")
    return model


def with_guesses(model: Any, learnt: Any) -> Any:
    """A masked-language model with encoder and head of another one, which may judge pairs too."""
    _fill(model, learnt, "cls.seq_relationship.", f"{model.base_model_prefix}.pooler.")
    return model


def _fill(model: Any, learnt: Any, *may_differ: str) -> None:
    lost = model.load_state_dict(learnt.state_dict(), strict=False)
    differ = [k for k in (*lost.missing_keys, *lost.unexpected_keys) if not k.startswith(may_differ)]
    if differ:
        raise RuntimeError(f"the models differ: {differ[:3]}")
