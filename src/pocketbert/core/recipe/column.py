"""Recipes whose teacher is a column of answers: what such a recipe leaves out, and what contradicts it.

`fill_column_recipe` completes the values of a recipe whose training rows name a column of answers: the model to start from, and
stages that learn outputs only. `list_column_problems` lists the settings that a column cannot serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pocketbert.core.data.source import DataSource
from pocketbert.core.recipe.sections import Stage
from pocketbert.core.recipe.stages import TaskStage
from pocketbert.core.tasks import TaskName

_START = "minilm-l6"
"""Model that a student is cut from where the recipe names none."""
_METHODS = ("task", "qat")
"""Methods on task rows that need no teacher that runs."""
_KEY = "data.train.teacher"


def fill_column_recipe(values: Any) -> Any:
    """Return a recipe's values with `teacher` and `signals` filled in, if its training rows have a teacher's answers.

    If the recipe names no `teacher`, it gets the model that the student starts from: `student.model`, or the packaged one.
    Stages of method `task` get the weight 0 for hidden states and attention, unless the recipe sets these weights;
    `list_column_problems` refuses weights above 0.

    Args:
        values: The recipe as plain values; what is no dictionary is returned unchanged.
    """
    data = values.get("data") if isinstance(values, dict) else None
    train = data.get("train") if isinstance(data, dict) else getattr(data, "train", None)
    column = train.get("teacher") if isinstance(train, dict) else getattr(train, "teacher", None)
    if column is None:
        return values
    values = dict(values)
    if values.get("teacher") is None:
        student = values.get("student")
        named = {k: student[k] for k in ("model", "revision") if isinstance(student, dict) and student.get(k)}
        values["teacher"] = named if "model" in named else {"model": _START}
    if isinstance(values.get("distill"), list):
        values["distill"] = [_fill_signals(stage) for stage in values["distill"]]
    return values


def _fill_signals(stage: Any) -> Any:
    """Return a stage of method `task` with the weights of hidden states and attention 0 if they are not given."""
    if not isinstance(stage, dict) or stage.get("method") != "task" or not isinstance(stage.get("signals", {}), dict):
        return stage
    return {**stage, "signals": {"hidden": 0.0, "attention": 0.0, **stage.get("signals", {})}}


def list_column_problems(
    train: DataSource | None, task: TaskName, stages: Sequence[Stage], finetunes: bool, has_student: bool
) -> list[str]:
    """Return what contradicts a column with a teacher's answers: sentences, empty if nothing does or there is no column.

    Args:
        train: The source of the training rows, which names the column.
        task: The recipe's task.
        stages: The stages of `distill`. Those that are not general must learn from such answers alone.
        finetunes: Whether a teacher is fine-tuned.
        has_student: Whether the recipe has a student.
    """
    if train is None or train.teacher is None:
        return []
    problems = []
    if task is TaskName.FILL_MASK:
        problems.append(f"{_KEY}: {task} learns hidden words, of which a column has no answers")
    if not has_student:
        problems.append(
            f"{_KEY}: a column teaches a student: add student: {{layers: 3}} and distill: [{{method: task, epochs: 4}}]"
        )
    if finetunes:
        problems.append(
            "teacher.finetune: the teacher is a column of answers (data.train.teacher): leave one of them out"
        )
    for number, stage in enumerate(stages):
        key = f"distill.{number}"
        if stage.general:
            continue
        if stage.method not in _METHODS:
            problems.append(
                f"{key}: method {stage.method} compares layers of a model; a column has outputs only: take method task"
            )
            continue
        if not stage.by_text and stage.method == "task":
            problems.append(
                f"{key}.signals: hidden states and attention are in no column: set hidden: 0 and attention: 0"
            )
        if isinstance(stage, TaskStage) and (terms := {"margins", "negatives"} & {*stage.signals.from_pairs}):
            problems.append(
                f"{key}.signals.{terms.pop()}: groups rows otherwise than the column's answers: set it to 0"
            )
        if stage.on_augmented:
            problems.append(f"{key}.augmented: copies of rows have no answers in the column: set augmented: false")
        if getattr(stage, "cache_teacher", None) is not None:
            problems.append(f"{key}.cache_teacher: the answers of a column are stored already: leave it out")
    return problems
