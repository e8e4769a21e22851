"""The section `teacher`, and recipes whose teacher is a column of answers, or one for each of several heads.

`fill_column_recipe` completes the values of a recipe that names such a column: the model to start from, and stages that learn
outputs only. `list_column_problems` lists the settings that a column cannot serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from pocketbert.core.recipe.sections import Optimisation, Section, Stage
from pocketbert.core.recipe.stages import TaskStage
from pocketbert.core.tasks import Task, TaskName

_START = "minilm-l6"
"""Model that a student is cut from where the recipe names none."""
_METHODS = ("task", "qat")
"""Methods on task rows that need no teacher that runs."""
_METHODS_BESIDE = ("task", "tinybert-intermediate")
"""Methods for several heads some of which learn from a model that runs."""


class TeacherSection(Section):
    """The model to learn from or to export as it is; with a column of answers, the one that the student starts from."""

    newer_keys = ("shard", "start_only")

    model: str = Field(min_length=1, description="Folder, Hub name, or 'minilm-l6' (the demo teacher).")
    revision: str | None = Field(None, description="Hub revision.")
    adapters: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        max_length=64,
        description="Folders or Hub names of LoRA adapters of peft that are merged into the model, one after another; an "
        "adapter that names its base can be the model itself.",
    )
    family: str | None = Field(
        None,
        min_length=1,
        description="Row of the table of families, where several share a graph, such as macbert for a model that loads "
        "as bert; by default the names of the weights suggest one. It sets title, signals and objectives.",
    )
    licence: str | None = Field(
        None, min_length=1, description="Licence of its weights, such as apache-2.0; default what its folder says."
    )
    finetune: Optimisation | None = Field(None, description="Train a head (and the encoder) on the data first.")
    shard: bool = Field(
        False,
        description="Divide its weights among the processes of a launch while it answers in stages of `distill`, for a model that "
        "fits into no GPU; it is read and fine-tuned whole in each.",
    )
    start_only: bool = Field(
        False,
        description="Only start the student from it: heads without a column (tasks.NAME.teacher) learn their labels alone; filled in where "
        "such a recipe has no section teacher.",
    )


def column_key(head: str | None = None) -> str:
    """Return the recipe key that names the column of a teacher's answers: that of one of several heads, or of the only one."""
    return "data.train.teacher" if head is None else f"tasks.{head}.teacher"


def fill_column_recipe(values: Any) -> Any:
    """Return a recipe's values with `teacher` and `signals` filled in, if its training rows have a teacher's answers.

    If the recipe names no `teacher`, it gets the model that the student starts from: `student.model`, or the packaged one;
    heads without a column then learn their labels alone (``start_only: true``). If no model teaches, stages of method `task`
    get the weight 0 for hidden states and attention, unless the recipe sets these weights; `list_column_problems` refuses
    weights above 0.

    Args:
        values: The recipe as plain values; what is no dictionary is returned unchanged.
    """
    data = values.get("data") if isinstance(values, dict) else None
    train = data.get("train") if isinstance(data, dict) else getattr(data, "train", None)
    column = train.get("teacher") if isinstance(train, dict) else getattr(train, "teacher", None)
    heads = values.get("tasks") if isinstance(values, dict) else None
    given = (
        [isinstance(head, dict) and head.get("teacher") for head in heads.values()] if isinstance(heads, dict) else []
    )
    if column is None and not any(given):
        return values
    values = dict(values)
    if values.get("teacher") is None:
        student = values.get("student")
        named = {k: student[k] for k in ("model", "revision") if isinstance(student, dict) and student.get(k)}
        values["teacher"] = named if "model" in named else {"model": _START}
        if not all(given):
            values["teacher"] |= {"start_only": True}
    teacher = values["teacher"]
    is_start = column is not None or all(given) or (isinstance(teacher, dict) and bool(teacher.get("start_only")))
    if isinstance(values.get("distill"), list) and is_start:
        values["distill"] = [_fill_signals(stage) for stage in values["distill"]]
    return values


def _fill_signals(stage: Any) -> Any:
    """Return a stage of method `task` with the weights of hidden states and attention 0 if they are not given."""
    if not isinstance(stage, dict) or stage.get("method") != "task" or not isinstance(stage.get("signals", {}), dict):
        return stage
    return {**stage, "signals": {"hidden": 0.0, "attention": 0.0, **stage.get("signals", {})}}


def list_column_problems(
    keys: Sequence[str], teacher: TeacherSection, task: Task, stages: Sequence[Stage], has_student: bool
) -> list[str]:
    """Return what contradicts columns with a teacher's answers: sentences, empty if nothing does or there is no column.

    Args:
        keys: The recipe keys that name the columns.
        teacher: The section `teacher`.
        task: The recipe's task; of several heads, with what each learns from.
        stages: The stages of `distill`. Those that are not general must learn from such answers alone, unless a model teaches
            some heads.
        has_student: Whether the recipe has a student.
    """
    if not keys:
        where = "name it in data.train.teacher or tasks.NAME.teacher, or leave it out"
        return [f"teacher.start_only: no column has answers: {where}"] if teacher.start_only else []
    asks_model = any(head.learns_from == "model" for head in task.heads)
    untaught, problems = [head.name for head in task.heads if head.learns_from == "labels"], list[str]()
    if task.name is TaskName.FILL_MASK:
        problems.append(f"{keys[0]}: {task.name} learns hidden words, of which a column has no answers")
    if not has_student:
        problems.append(
            f"{keys[0]}: a column teaches a student: add student: {{layers: 3}} and distill: [{{method: task, epochs: 4}}]"
        )
    if teacher.finetune is not None and not asks_model:
        problems.append(
            f"teacher.finetune: the teacher is a column of answers ({', '.join(keys)}): leave one of them out"
        )
    for number, stage in enumerate(stages):
        key = f"distill.{number}"
        if stage.general:
            continue
        if stage.method not in (_METHODS_BESIDE if asks_model else _METHODS):
            what = "compares layers of a model; a column has outputs only"
            what = "asks a model about all heads, and one has a column" if asks_model else what
            problems.append(f"{key}: method {stage.method} {what}: take method task")
            continue
        if isinstance(stage, TaskStage) and untaught and not stage.signals.labels:
            problems.append(
                f"{key}.signals.labels: is 0, and a head has no teacher ({', '.join(untaught)}): set it to 1"
            )
        if asks_model:
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
