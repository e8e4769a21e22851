"""Stages that make weights: the teacher's folder and the student's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketbert.core.data.labels import Labels, placeholder_names
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.processes import here
from pocketbert.core.host.progress import say
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.models.learned_ranges import copy_learned
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.pipeline.formats.run_model import LICENCE_FILE
from pocketbert.pipeline.learn.between import read_state, write_state
from pocketbert.pipeline.learn.data import RunData
from pocketbert.pipeline.learn.finishing import Finished, finish, pooling_for
from pocketbert.pipeline.learn.job import TrainingJob
from pocketbert.pipeline.learn.quantized import write_carried
from pocketbert.pipeline.learn.stages import Learning, StudentState, task_student, train_stage
from pocketbert.pipeline.learn.vocabulary import with_vocabulary
from pocketbert.pipeline.run_folder import Places

CARD_FILE = "model_card.json"
"""What the card of the model says that the teacher was made from."""


def make_teacher(recipe: Recipe, model: ModelFolder, data: RunData, length: int, at: Places) -> Sequence[str]:
    """Write the teacher, fine-tuned where the recipe has `finetune`, with its labels in the run's order."""
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
