"""The table of tasks (`TASKS`): the deciding metric of each, the outputs of its graph, its head, its labels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pocketbert.core import metrics
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.metrics import Metric


class TaskName(StrEnum):
    """Task names as on the Hugging Face Hub."""

    TEXT_CLASSIFICATION = "text-classification"
    MULTI_LABEL = "multi-label"
    REGRESSION = "regression"
    TOKEN_CLASSIFICATION = "token-classification"  # noqa: S105 - a task, not a secret
    QUESTION_ANSWERING = "question-answering"
    FILL_MASK = "fill-mask"
    FEATURE_EXTRACTION = "feature-extraction"


class ScoreFunction(StrEnum):
    """What turns logits into the scores a user sees."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    NONE = "none"


class Level(StrEnum):
    """What an output's rows are."""

    TEXT = "text"
    """One row per text."""
    TOKEN = "token"  # noqa: S105 - no secret
    """One row per token."""


class LabelKind(StrEnum):
    """What the label of a row of data is."""

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
    NONE = "none"
    """The text is all there is."""
    SCORE_OR_NONE = "score or none"
    """A number where there is one."""


@dataclass(frozen=True)
class Task:
    """A row of the table of tasks: metric, outputs, head class and kind of labels.

    Attributes:
        name: Hub name.
        metric: The metric that the task's files are judged by.
        others: Further metrics that are reported.
        outputs: Names of the graph's outputs, fixed by the clients (optimum, transformers.js).
        head: Suffix of the transformers class with this head (``ForSequenceClassification``).
        auto_class: The transformers auto class that builds it.
        problem_type: `problem_type` to write into config.json, if any.
        score: Score function of the task.
        level: Whether outputs have a row per text or per token.
        labels: Kind of label that data rows have.
        compared: Groups of outputs that are compared with the original model's; answers are made from the first group.
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

    @property
    def answer(self) -> tuple[str, ...]:
        """Names of the outputs that the answer is made from."""
        return self.compared[0]

    @property
    def names_labels(self) -> bool:
        """Whether the task has a set of named labels."""
        return self.labels in (LabelKind.NAME, LabelKind.NAMES, LabelKind.SPANS)

    @property
    def pairs_only(self) -> bool:
        """Whether every input must be a pair of texts, as in question answering (question and context)."""
        return self.labels is LabelKind.ANSWERS

    @property
    def single_only(self) -> bool:
        """Whether inputs are single texts only, never pairs."""
        return self.labels in (LabelKind.SPANS, LabelKind.NONE, LabelKind.SCORE_OR_NONE)


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
            TaskName.FILL_MASK, metrics.CROSS_ENTROPY, (metrics.TOP_1,), ("logits",),
            "ForMaskedLM", "AutoModelForMaskedLM", None, ScoreFunction.SOFTMAX, Level.TOKEN, LabelKind.NONE,
        ),
        Task(
            TaskName.FEATURE_EXTRACTION, metrics.SPEARMAN, (metrics.MEAN_COSINE,),
            ("last_hidden_state", "sentence_embedding"), "Model", "AutoModel", None, ScoreFunction.NONE,
            Level.TEXT, LabelKind.SCORE_OR_NONE, (("sentence_embedding",), ("last_hidden_state",)),
        ),
    )
}  # fmt: skip


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
        raise InputError(Problem(where, f"'{name}' is not a task; {suggest_allowed(name, known)}."))
    return TASKS[TaskName(name)]
