"""Stages that make weights: the teacher's folder and the student's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from pocketbert.core.data.labels import Labels, placeholder_names
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.pooling import Pooling
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.stages import (
    GENERAL,
    TaskStage,
    TinyBertIntermediateStage,
    TinyBertPredictionStage,
)
from pocketbert.core.tasks import Task, TaskName
from pocketbert.pipeline.learn.augmenting import augmented_set
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import Curve, Finished, finish, pooling_for
from pocketbert.pipeline.learn.general import general_student, layer_stage, with_encoder, with_guesses
from pocketbert.pipeline.learn.job import TrainingJob
from pocketbert.pipeline.run_folder import Places


def make_teacher(recipe: Recipe, model: ModelFolder, data: RunData, length: int, at: Places) -> Sequence[str]:
    """Write the teacher: fine-tuned where the recipe says so, its labels in the run's order."""
    task = data.head.task
    finetune = recipe.teacher.finetune
    teacher = load_model(model, task, data.labels, new_head=finetune is not None)
    notes, curves = [], []
    if finetune is not None:
        from pocketbert.distill.methods.finetune import Finetune

        job = TrainingJob(recipe, model, data, length, at.work, at.metrics)
        curves.append(job.train(teacher, Finetune(model.family, task), finetune, "finetune"))
    elif task.names_labels:
        note = permute_head(teacher, _head_labels(model, recipe, data.labels), data.labels)
        notes += [note] if note else []
    pooling = pooling_for(recipe, model)
    finish(Finished(teacher, recipe, model, data, length, pooling, tuple(curves), tuple(notes)), at.output)
    (at.output / "LICENCE.txt").write_text(model.licence + "\n", encoding="utf-8")
    return ()


def _head_labels(model: ModelFolder, recipe: Recipe, ours: Labels) -> Labels:
    """Labels of a trained head. LABEL_0, LABEL_1, ... say nothing: names that the user declares are theirs, in order."""
    names = tuple(model.labels or ours.names)
    if recipe.data.labels and placeholder_names(names) and len(names) == len(ours):
        return ours
    return Labels(names)


def make_student(
    recipe: Recipe, teacher_folder: Path, model: ModelFolder, data: RunData, length: int, at: Places, corpora: Path
) -> Sequence[str]:
    """Distil the student through the recipe's stages.

    Args:
        recipe: What to do.
        teacher_folder: Folder of the task's teacher.
        model: What the recipe starts from: the teacher of general stages.
        data: The run's data.
        length: Longest input in tokens.
        at: Where the student, its checkpoints and its losses go.
        corpora: Where the run's corpora are.
    """
    from pocketbert.distill.training.loop import frozen

    assert recipe.student is not None
    task = data.head.task
    source = open_model_folder(str(teacher_folder))
    teacher, pooling = load_model(source, task), pooling_for(recipe, source)
    copies = cache(partial(augmented_set, recipe, model, data, length, at.work / "augmented"))
    job = TrainingJob(recipe, source, data, length, at.work, at.metrics, copies)
    student, curves, projection = _start(job, teacher, task), list[Curve](), None
    notes = list[str]()
    if any(isinstance(s, GENERAL) for s in recipe.distill):
        general = replace(job, source=model)
        learnt = general_student(general, partial(_start, general), corpora)
        headed = hasattr(learnt.student, learnt.student.base_model_prefix)
        fill = with_guesses if task.name is TaskName.FILL_MASK and headed else with_encoder
        student = fill(student, learnt.student)
        curves, projection, notes = learnt.curves, learnt.projection, learnt.notes
    with frozen(teacher):
        for number, stage in enumerate(recipe.distill):
            where = f"distill.{number}"
            own = replace(job, work=at.work / where)
            if isinstance(stage, TinyBertIntermediateStage):
                rows = own.rows(where, stage.augmented)
                curve, projection = layer_stage(own, teacher, student, stage, where, rows, projection)
                curves.append(curve)
            elif isinstance(stage, TaskStage | TinyBertPredictionStage):
                curves.append(_task_stage(own, teacher, student, stage, where, pooling))
    student.set_attn_implementation("sdpa")
    made = Finished(student, recipe, source, data, length, pooling, tuple(curves), tuple(notes))
    finish(made, at.output, teacher_folder)
    return ()


def _start(job: TrainingJob, teacher: Any, task: Task) -> Any:
    """The student before its first step, with the head of a task: built for a teacher, or what the recipe names."""
    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.text.corpora.tokenizer import vocabulary

    wanted, source = job.recipe.student, job.source
    assert wanted is not None
    if wanted.size is not None:
        from pocketbert.distill.students.mobilebert import transfer_student

        return transfer_student(teacher, wanted.size, job.recipe.seed, task.head)
    if wanted.model is None:
        return build_student(teacher, source.family, wanted, job.recipe.seed)
    start = open_model_folder(wanted.model, wanted.revision, "student.model")
    if vocabulary(start.path) != vocabulary(source.path):
        raise InputError(
            Problem(
                "student.model",
                f"'{start.title}' has another vocabulary than the teacher '{source.title}': what one says of a "
                "token is not about the other's.",
                "Start from a student of the teacher's vocabulary.",
            )
        )
    labels = job.data.labels if task is job.data.head.task else None
    return load_model(start, task, labels, new_head=True).train()


def _task_stage(
    job: TrainingJob,
    teacher: Any,
    student: Any,
    stage: TaskStage | TinyBertPredictionStage,
    where: str,
    pooling: Pooling,
) -> Curve:
    from pocketbert.core.families import family_of
    from pocketbert.distill.methods.task import TaskDistillation
    from pocketbert.distill.methods.tinybert import prediction_stage
    from pocketbert.distill.teacher.cache.build import cached_teacher

    task, source = job.data.head.task, job.source
    settings = stage if isinstance(stage, TaskStage) else prediction_stage(stage, task)
    objective = TaskDistillation(
        teacher,
        student,
        source.family,
        task,
        settings,
        where,
        student_family=family_of(student.config.model_type),
        pooling=pooling,
    )
    rows = job.rows(where, stage.augmented)
    if settings.cache_teacher:
        objective.signals = cached_teacher(
            teacher,
            source.family,
            rows,
            objective.signals.wanted,
            job.work.parent / f"{where}-cache",
            half=settings.cache_teacher == "fp16",
            where=f"{where}.cache_teacher",
        )
    return job.train(student, objective, settings, where, rows)


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
