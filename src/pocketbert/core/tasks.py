"""What each task is: the metric that decides, the outputs of its graph, the head that computes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pocketbert.core import metrics
from pocketbert.core.errors import InputError, Problem, nearest
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


@dataclass(frozen=True)
class Task:
    """One task of the table.

    Attributes:
        name: Hub name.
        metric: The metric that decides.
        others: Metrics reported beside it.
        outputs: Names of the graph's outputs, fixed by the clients (optimum, transformers.js).
        head: Suffix of the transformers class with this head (``ForSequenceClassification``).
        auto_class: The transformers auto class that builds it.
        problem_type: `problem_type` to write into config.json, if any.
        score: Score function of the task.
        ready: Whether the whole chain works for it in this version.
    """

    name: TaskName
    metric: Metric
    others: tuple[Metric, ...]
    outputs: tuple[str, ...]
    head: str
    auto_class: str
    problem_type: str | None
    score: ScoreFunction
    ready: bool = False


TASKS: dict[TaskName, Task] = {
    task.name: task
    for task in (
        Task(
            TaskName.TEXT_CLASSIFICATION, metrics.ACCURACY, (metrics.MACRO_F1, metrics.MCC), ("logits",),
            "ForSequenceClassification", "AutoModelForSequenceClassification",
            "single_label_classification", ScoreFunction.SOFTMAX, ready=True,
        ),
        Task(
            TaskName.MULTI_LABEL, metrics.MICRO_F1, (), ("logits",),
            "ForSequenceClassification", "AutoModelForSequenceClassification",
            "multi_label_classification", ScoreFunction.SIGMOID,
        ),
        Task(
            TaskName.REGRESSION, metrics.PEARSON, (metrics.SPEARMAN,), ("logits",),
            "ForSequenceClassification", "AutoModelForSequenceClassification", "regression",
            ScoreFunction.NONE,
        ),
        Task(
            TaskName.TOKEN_CLASSIFICATION, metrics.SPAN_F1, (), ("logits",),
            "ForTokenClassification", "AutoModelForTokenClassification", None, ScoreFunction.SOFTMAX,
        ),
        Task(
            TaskName.QUESTION_ANSWERING, metrics.SQUAD_F1, (metrics.EXACT_MATCH,),
            ("start_logits", "end_logits"), "ForQuestionAnswering", "AutoModelForQuestionAnswering", None,
            ScoreFunction.SOFTMAX,
        ),
        Task(
            TaskName.FILL_MASK, metrics.CROSS_ENTROPY, (metrics.TOP_1,), ("logits",),
            "ForMaskedLM", "AutoModelForMaskedLM", None, ScoreFunction.SOFTMAX,
        ),
        Task(
            TaskName.FEATURE_EXTRACTION, metrics.SPEARMAN, (metrics.MEAN_COSINE,),
            ("last_hidden_state", "sentence_embedding"), "Model", "AutoModel", None, ScoreFunction.NONE,
        ),
    )
}  # fmt: skip


def ready_task(name: str, where: str = "task") -> Task:
    """The task of that name, if the chain works for it.

    Args:
        name: Hub task name.
        where: What to blame in the error.

    Returns:
        The row of the table.

    Raises:
        InputError: If the name is unknown, or known but not yet served by this version.
    """
    ready = [t.name.value for t in TASKS.values() if t.ready]
    if name not in {t.value for t in TASKS}:
        raise InputError(Problem(where, f"'{name}' is no task; {nearest(name, ready)}."))
    task = TASKS[TaskName(name)]
    if not task.ready:
        raise InputError(
            Problem(
                where, f"'{name}' is not served by this version of PocketBERT; served: {', '.join(ready)}."
            )
        )
    return task
