"""The table of tasks (`TASKS`): the deciding metric of each, the outputs of its graph, its head, its labels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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


class ScoreFunction(StrEnum):
    """The function that turns logits into the scores that a user sees."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    CHOICES = "softmax-over-choices"
    """The softmax over the numbers of all choices of one question; a file's row of outputs is the number of one choice."""
    NONE = "none"


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
            group.
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
    def class_suffix(self) -> str:
        """Suffix of the transformers class that `auto_class` builds."""
        return "".join(self.auto_class.removeprefix("Auto").partition("For")[1:]) or "Model"

    @property
    def names_labels(self) -> bool:
        """Whether the task has a set of named labels."""
        return self.labels in (LabelKind.NAME, LabelKind.NAMES, LabelKind.SPANS)

    @property
    def pairs_only(self) -> bool:
        """Whether every row of a model's input is a pair of texts: question and context, or question and choice."""
        return self.labels in (LabelKind.ANSWERS, LabelKind.CHOICE)

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
