"""Stages that make weights: the teacher's folder and the student's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pocketbert.core.checkpoints import load_model, save_model
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.evaluate import Score, evaluate
from pocketbert.core.files import write_json
from pocketbert.core.labels import Labels, placeholder_names
from pocketbert.core.model_folder import ModelFolder, open_model_folder
from pocketbert.core.progress import say
from pocketbert.core.recipe import Optimisation, Recipe
from pocketbert.core.tasks import Task, ready_task
from pocketbert.core.tokenization import TextTokenizer
from pocketbert.core.torch_predictor import TorchPredictor
from pocketbert.pipeline.data import RunData, Split

FILE_NAME = "training.json"


class Curve(BaseModel):
    """Losses of one training stage.

    Attributes:
        stage: ``finetune``, ``distill.0``, ...
        steps: Steps done at each record.
        loss: Mean weighted loss since the record before.
        terms: Mean of each unweighted term.
        dtype: Number type of the matrix products.
        threads: Threads used.
    """

    stage: str
    steps: list[int]
    loss: list[float]
    terms: dict[str, list[float]]
    dtype: str
    threads: int


class Training(BaseModel):
    """How a folder of weights came to be; ``training.json`` beside them.

    Attributes:
        parameters: Number of weights.
        curves: Losses per stage.
        score: Score of the torch model on eval, batch by length.
        notes: What was done to labels.
    """

    parameters: int
    curves: list[Curve] = []
    score: Score | None = None
    notes: list[str] = []


def make_teacher(
    recipe: Recipe, model: ModelFolder, data: RunData, length: int, target: Path, work: Path
) -> Sequence[str]:
    """Write the teacher: fine-tuned where the recipe says so, its labels in the run's order."""
    task = ready_task(recipe.task)
    finetune = recipe.teacher.finetune
    teacher = load_model(model, task, data.labels, new_head=finetune is not None)
    notes, curves = [], []
    if finetune is not None:
        from pocketbert.distill.finetune import Finetune

        objective = Finetune(model.family)
        curves.append(
            _train(
                teacher,
                objective,
                data.splits["train"],
                finetune,
                recipe,
                model,
                "finetune",
                work,
                length,
                target,
            )
        )
    else:
        note = permute_head(teacher, _head_labels(model, recipe, data.labels), data.labels)
        notes += [note] if note else []
    _finish(teacher, task, model, data, length, target, curves, notes)
    (target / "LICENCE.txt").write_text(model.licence + "\n", encoding="utf-8")
    return ()


def _head_labels(model: ModelFolder, recipe: Recipe, ours: Labels) -> Labels:
    """Labels of a trained head. LABEL_0, LABEL_1, ... say nothing: names that the user declares are theirs, in order."""
    names = tuple(model.labels or ours.names)
    if recipe.data.labels and placeholder_names(names) and len(names) == len(ours):
        return ours
    return Labels(names)


def make_student(
    recipe: Recipe, teacher_folder: Path, data: RunData, length: int, target: Path, work: Path
) -> Sequence[str]:
    """Distil the student through the recipe's stages."""
    from pocketbert.distill.loop import frozen
    from pocketbert.distill.students import build_student
    from pocketbert.distill.task import TaskDistillation

    assert recipe.student is not None
    task = ready_task(recipe.task)
    source = open_model_folder(str(teacher_folder))
    teacher = load_model(source, task)
    student = build_student(teacher, source.family, recipe.student, recipe.seed)
    curves = []
    with frozen(teacher):
        for number, stage in enumerate(recipe.distill):
            where = f"distill.{number}"
            objective = TaskDistillation(teacher, student, source.family, stage, where)
            folder = work / where
            curves.append(
                _train(
                    student,
                    objective,
                    data.splits["train"],
                    stage,
                    recipe,
                    source,
                    where,
                    folder,
                    length,
                    target,
                )
            )
    student.set_attn_implementation("sdpa")
    _finish(student, task, source, data, length, target, curves, [])
    return ()


def _train(
    model: Any, objective: Any, split: Split, settings: Optimisation, recipe: Recipe, source: ModelFolder,
    purpose: str, work: Path, length: int, target: Path,
) -> Curve:  # fmt: skip
    from pocketbert.distill.loop import train
    from pocketbert.distill.train_set import TrainSet

    rows = TrainSet(split.encoded, split.gold, TextTokenizer(source.path, length), source.family.padding_side)
    metrics = target.parent / "metrics.jsonl"
    outcome = train(model, objective, rows, settings, recipe.seed, purpose, work, metrics)
    history = outcome.history
    return Curve(
        stage=purpose, steps=[r.step for r in history], loss=[r.loss for r in history],
        terms={k: [r.terms[k] for r in history] for k in (history[0].terms if history else {})},
        dtype=outcome.dtype, threads=outcome.threads,
    )  # fmt: skip


def _finish(
    model: Any, task: Task, source: ModelFolder, data: RunData, length: int, target: Path,
    curves: list[Curve], notes: list[str],
) -> None:  # fmt: skip
    score = None
    if "eval" in data.splits:
        tokenizer = TextTokenizer(source.path, length)
        predictor = TorchPredictor(model, task, source.family.inputs)
        rows = data.splits["eval"].eval_set(len(data.labels))
        score, _ = evaluate(predictor, tokenizer, rows, task, batch=64)
        say(f"  {task.metric.name} on eval (torch): {task.metric.format(score.value)}")
    save_model(model, source, data.labels, length, target)
    count = sum(p.numel() for p in model.parameters())
    training = Training(parameters=count, curves=curves, score=score, notes=notes)
    write_json(target / FILE_NAME, json.loads(training.model_dump_json()))


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
    last = [m for n, m in model.named_modules()
            if isinstance(m, torch.nn.Linear) and m.out_features == rows and not n.startswith(model.base_model_prefix)]  # fmt: skip
    if not last:
        raise InputError(Problem("teacher", "its classifier has no last linear layer to reorder.",
                                 f"Set data.labels to the teacher's own order: {list(have.names)}."))  # fmt: skip
    with torch.no_grad():
        last[-1].weight.copy_(last[-1].weight[order])
        if last[-1].bias is not None:
            last[-1].bias.copy_(last[-1].bias[order])
    note = f"labels permuted: the model's order {list(have.names)} became the data's order {list(want.names)}"
    say(f"  {note}")
    return note


def read_training(folder: Path) -> Training:
    """Read ``training.json``; empty facts where a folder has none."""
    path = folder / FILE_NAME
    if not path.is_file():
        return Training(parameters=0)
    return Training.model_validate_json(path.read_text(encoding="utf-8"))
