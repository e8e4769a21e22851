"""The table of tasks (`TASKS`): the deciding metric of each, the outputs of its graph, its head, its labels.

`several_task` makes the row of a model with several heads on one encoder, which is no row of the table: what it is made of differs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from pocketbert.core import metrics
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.metrics import Metric

SENTENCE_EMBEDDING = "sentence_embedding"
"""Name of the output with the vector of a whole text."""


class TaskName(StrEnum):
    """Task names as on the Hugging Face Hub."""

    TEXT_CLASSIFICATION = "text-classification"
    MULTI_LABEL = "multi-label"
    REGRESSION = "regression"
    TOKEN_CLASSIFICATION = "token-classification"  # noqa: S105 - a task, not a secret
    QUESTION_ANSWERING = "question-answering"
    MULTIPLE_CHOICE = "multiple-choice"
    FILL_MASK = "fill-mask"
    FEATURE_EXTRACTION = "feature-extraction"
    SEVERAL = "several"
    """Several heads on one encoder, each with a task of its own; see `several_task`."""


class ScoreFunction(StrEnum):
    """The function that turns logits into the scores that a user sees."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    CHOICES = "softmax-over-choices"
    """The softmax over the numbers of all choices of one question; a file's row of outputs is the number of one choice."""
    NONE = "none"
    BY_HEAD = "by-head"
    """Each of several heads has the function of its own task."""


class Level(StrEnum):
    """What a row of an output stands for: a text or a token."""

    TEXT = "text"
    """One row per text."""
    TOKEN = "token"  # noqa: S105 - no secret
    """One row per token."""


class LabelKind(StrEnum):
    """What kind of label a row of data has."""

    NAME = "name"
    """A label's name or number."""
    NAMES = "names"
    """A list of them, possibly empty."""
    SCORE = "score"
    """A number."""
    SPANS = "spans"
    """Tags, one per word, or a list of {start, end, label}."""
    ANSWERS = "answers"
    """Texts of the answers, with their places."""
    CHOICE = "choice"
    """Which of the row's choices is right: a number, a letter, a key or the text of the choice."""
    NONE = "none"
    """The text is all there is."""
    SCORE_OR_NONE = "score or none"
    """A number where there is one."""
    SEVERAL = "several"
    """A label for each of several heads, or none."""


LearnsFrom = Literal["model", "own model", "column", "labels"]


@dataclass(frozen=True)
class NamedTask:
    """One of several heads on an encoder: its name, its task, and its columns among the logits of all heads.

    Attributes:
        name: Name of the head, such as ``intent``.
        task: The head's own task.
        start: First column of the head's logits.
        stop: Column after the last one.
        weight: Weight of the head's losses in training.
        learns_from: Where a student gets the outputs that this head learns: from the teacher's model, from a model of the head's own,
            from a column of answers, or nowhere (``labels``): such a head learns its gold labels alone.
    """

    name: str
    task: Task
    start: int = 0
    stop: int = 0
    weight: float = 1.0
    learns_from: LearnsFrom = "model"

    @property
    def output(self) -> str:
        """Name of the output with the head's logits in model files."""
        return f"{self.name}_logits"

    @property
    def columns(self) -> slice:
        """The head's columns among the logits of all heads."""
        return slice(self.start, self.stop)

    @property
    def label_prefix(self) -> str:
        """What the names of the head's labels begin with in the list of all heads' labels."""
        return f"{self.name}: "


@dataclass(frozen=True)
class Task:
    """A row of the table of tasks: metric, outputs, head class and kind of labels.

    Attributes:
        name: Hub name.
        metric: The metric that the task's files are judged by.
        others: Metrics that are reported besides.
        outputs: Names of the graph's outputs, fixed by the clients (optimum, transformers.js).
        head: Suffix of the transformers class that checkpoints with this head name (``ForSequenceClassification``).
        auto_class: The transformers auto class that builds the model. For multiple choice that is the class for
            sequence classification with one output: it computes the same, with each choice as a row of its own; see
            `Family.choice_weights`.
        problem_type: Value of `problem_type` that is written into config.json; None for none.
        score: Score function of the task.
        level: Whether an output has a row per text or per token.
        labels: Kind of label that data rows have.
        compared: Groups of outputs in which a file is compared with the original model; answers are made from the first
            group, of several heads from all.
        heads: The heads of a model with several; empty for one head. The torch model computes the logits of all of them side by
            side as ``logits``; heads of whole texts are read at the first token if other heads label tokens.
    """

    name: TaskName
    metric: Metric
    others: tuple[Metric, ...]
    outputs: tuple[str, ...]
    head: str
    auto_class: str
    problem_type: str | None
    score: ScoreFunction
    level: Level
    labels: LabelKind
    compared: tuple[tuple[str, ...], ...] = (("logits",),)
    heads: tuple[NamedTask, ...] = ()

    @property
    def answer(self) -> tuple[str, ...]:
        """Names of the outputs that the answer is made from."""
        return self.outputs if self.heads else self.compared[0]

    @property
    def class_suffix(self) -> str:
        """Suffix of the transformers class that `auto_class` builds."""
        return "".join(self.auto_class.removeprefix("Auto").partition("For")[1:]) or "Model"

    @property
    def names_labels(self) -> bool:
        """Whether the task has a set of named labels."""
        return self.labels in (LabelKind.NAME, LabelKind.NAMES, LabelKind.SPANS, LabelKind.SEVERAL)

    @property
    def pairs_only(self) -> bool:
        """Whether every row of a model's input is a pair of texts: question and context, or question and choice."""
        return self.labels in (LabelKind.ANSWERS, LabelKind.CHOICE)

    @property
    def single_only(self) -> bool:
        """Whether inputs are single texts only, never pairs."""
        is_single = self.labels in (LabelKind.SPANS, LabelKind.NONE, LabelKind.SCORE_OR_NONE)
        return is_single or any(head.task.single_only for head in self.heads)

    def with_columns(self, labels: Sequence[str]) -> Task:
        """Return a copy of the task in which each head has its columns: the places of its labels in the list of all labels.

        A label belongs to the head whose name it has in front. Heads without a label have no columns.
        """
        heads = []
        for head in self.heads:
            own = [i for i, name in enumerate(labels) if name.startswith(head.label_prefix)]
            heads.append(replace(head, start=own[0] if own else 0, stop=own[-1] + 1 if own else 0))
        return replace(self, heads=tuple(heads))


TASKS: dict[TaskName, Task] = {
    task.name: task
    for task in (
        Task(
            TaskName.TEXT_CLASSIFICATION, metrics.ACCURACY, (metrics.MACRO_F1, metrics.MCC), ("logits",),
            "ForSequenceClassification", "AutoModelForSequenceClassification",
            "single_label_classification", ScoreFunction.SOFTMAX, Level.TEXT, LabelKind.NAME,
        ),
        Task(
            TaskName.MULTI_LABEL, metrics.MICRO_F1, (), ("logits",),
            "ForSequenceClassification", "AutoModelForSequenceClassification",
            "multi_label_classification", ScoreFunction.SIGMOID, Level.TEXT, LabelKind.NAMES,
        ),
        Task(
            TaskName.REGRESSION, metrics.PEARSON, (metrics.SPEARMAN,), ("logits",),
            "ForSequenceClassification", "AutoModelForSequenceClassification", "regression",
            ScoreFunction.NONE, Level.TEXT, LabelKind.SCORE,
        ),
        Task(
            TaskName.TOKEN_CLASSIFICATION, metrics.SPAN_F1, (), ("logits",),
            "ForTokenClassification", "AutoModelForTokenClassification", None,
            ScoreFunction.SOFTMAX, Level.TOKEN, LabelKind.SPANS,
        ),
        Task(
            TaskName.QUESTION_ANSWERING, metrics.SQUAD_F1, (metrics.EXACT_MATCH,),
            ("start_logits", "end_logits"), "ForQuestionAnswering", "AutoModelForQuestionAnswering", None,
            ScoreFunction.SOFTMAX, Level.TOKEN, LabelKind.ANSWERS, (("start_logits", "end_logits"),),
        ),
        Task(
            TaskName.MULTIPLE_CHOICE, metrics.ACCURACY, (), ("logits",),
            "ForMultipleChoice", "AutoModelForSequenceClassification", None,
            ScoreFunction.CHOICES, Level.TEXT, LabelKind.CHOICE,
        ),
        Task(
            TaskName.FILL_MASK, metrics.CROSS_ENTROPY, (metrics.TOP_1,), ("logits",),
            "ForMaskedLM", "AutoModelForMaskedLM", None, ScoreFunction.SOFTMAX, Level.TOKEN, LabelKind.NONE,
        ),
        Task(
            TaskName.FEATURE_EXTRACTION, metrics.SPEARMAN, (metrics.MEAN_COSINE, metrics.MRR_10),
            ("last_hidden_state", SENTENCE_EMBEDDING), "Model", "AutoModel", None, ScoreFunction.NONE,
            Level.TEXT, LabelKind.SCORE_OR_NONE, ((SENTENCE_EMBEDDING,), ("last_hidden_state",)),
        ),
    )
}  # fmt: skip


HEAD_TASKS = (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.REGRESSION, TaskName.TOKEN_CLASSIFICATION)
"""Tasks that one of several heads can have."""
HEADS_KEY = "pocketbert_heads"
"""Entry of config.json with the heads of a model with several: the task of each by name, in order of their columns."""
FEWEST_HEADS, MOST_HEADS = 2, 16
"""How many heads a model with several can have."""
HEAD_NAME = r"^[a-z][a-z0-9_]{0,31}$"
_OTHER_KEYS = ("text", "truncated", "row", "teacher")
"""Keys that stand beside those of the heads in answers and rows."""
REGRESSION_COLUMN = "number"
"""Name of the single column of a regression head, in the list of all heads' labels."""


def check_head_name(name: str) -> str:
    """Raise ValueError for a name that no head can have; return the name."""
    if re.fullmatch(HEAD_NAME, name) is None or name.endswith("\n"):
        raise ValueError(f"{name!r:.40} is no name of a head: up to 32 of a-z, 0-9 and _, a letter first")
    if name in _OTHER_KEYS:
        raise ValueError(
            f"a head cannot be called {name}, a key beside the heads in answers and rows: give it another name, and its column as label"
        )
    return name


def several_task(
    heads: Mapping[str, str], labels: Sequence[str] = (), weights: Mapping[str, float] | None = None
) -> Task:
    """Build the `Task` of a model with several heads on one encoder.

    The torch model is a plain transformers class whose last layer computes the logits of all heads side by side: that for token
    classification if a head labels tokens, else that for sequence classification. Model files have an output for each head.

    Args:
        heads: The task of each head by its name, in order of their columns.
        labels: Labels of all heads in order of their columns, each with the name of its head in front, which decide the order of the
            heads; empty if they are not known yet.
        weights: Weight of each head's losses by its name; None for 1 each.
    """
    named = [
        NamedTask(name, TASKS[TaskName(own)], weight=(weights or {}).get(name, 1.0)) for name, own in heads.items()
    ]
    first_columns = dict[str, int]()
    for column, label in enumerate(labels):
        first_columns.setdefault(label.partition(": ")[0], column)
    named.sort(key=lambda head: first_columns.get(head.name, len(labels)))  # config.json sorts the names
    per_token = any(head.task.level is Level.TOKEN for head in named)
    kind = TASKS[TaskName.TOKEN_CLASSIFICATION if per_token else TaskName.TEXT_CLASSIFICATION]
    outputs = tuple(head.output for head in named)
    row = Task(
        name=TaskName.SEVERAL,
        metric=metrics.MEAN_OF_HEADS,
        others=(),
        outputs=outputs,
        head=kind.head,
        auto_class=kind.auto_class,
        problem_type=None,
        score=ScoreFunction.BY_HEAD,
        level=kind.level,
        labels=LabelKind.SEVERAL,
        compared=tuple((name,) for name in outputs),
        heads=tuple(named),
    )
    return row.with_columns(labels)


def read_heads(config: Mapping[str, Any], labels: Sequence[str], where: str) -> dict[str, str] | None:
    """Return the task of each head of a model with several, by the head's name and in order of their columns.

    The result is None if config.json lists no heads.

    Args:
        config: Content of config.json.
        labels: Labels of the model, each with its head's name in front.
        where: Name of the file in the error.

    Raises:
        InputError: If a head has no allowed name or task, there are fewer or more heads than a model can have, or the labels
            of the heads are not those of the model.
    """
    heads, columns, placed = config.get(HEADS_KEY), list[int](), tuple[NamedTask, ...]()
    if heads is None:
        return None
    what = f"{HEADS_KEY} is {heads!r:.120}, which does not fit the labels."
    counted = isinstance(heads, dict) and FEWEST_HEADS <= len(heads) <= MOST_HEADS
    if counted and all(task in HEAD_TASKS for task in heads.values()):
        try:
            placed = several_task({check_head_name(name): task for name, task in heads.items()}, labels).heads
        except ValueError as error:
            what = f"{HEADS_KEY}: {error}."
        columns = [column for head in placed for column in range(head.start, head.stop)]
    if not labels or columns != [*range(len(labels))]:
        raise InputError(Problem(where, what, "Copy the folder again."))
    return {head.name: head.task.name.value for head in placed}


def task_of(name: str, where: str = "task") -> Task:
    """Look up a task of the table by its Hub name; raise InputError if there is none.

    Args:
        name: Hub task name.
        where: Name of the setting in the error message.

    Raises:
        InputError: If the name is unknown.
    """
    known = [t.value for t in TASKS]
    if name not in known:
        fix = " Describe its heads under tasks in a recipe." if name == TaskName.SEVERAL else ""
        raise InputError(Problem(where, f"'{name}' is not a task; {suggest_allowed(name, known)}.{fix}"))
    return TASKS[TaskName(name)]
