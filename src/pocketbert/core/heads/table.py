"""The head of each task: `make_head` makes it from the task, the labels and the settings of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pocketbert.core.data.labels import Labels
from pocketbert.core.heads.head import Head
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.tasks import Task, TaskName

if TYPE_CHECKING:
    from pocketbert.core.heads.settings import AnswerSettings


def make_head(task: Task, labels: Labels, settings: AnswerSettings | None = None) -> Head:
    """Build the head (labels, scoring, answers) of a task.

    Args:
        task: The task's row in the table of tasks.
        labels: Label names in order of their ids; empty for tasks without names of labels. Those of several heads have the head's name in
            front.
        settings: Settings that turn outputs into answers; None for the defaults.
    """
    # a process that answers needs the head of one task: each is imported where it is made
    if settings is None:
        from pocketbert.core.heads.settings import AnswerSettings

        settings = AnswerSettings()
    match task.name:
        case TaskName.TEXT_CLASSIFICATION:
            from pocketbert.core.heads.sequence_classification import ClassificationHead

            return ClassificationHead(task, labels)
        case TaskName.MULTI_LABEL:
            from pocketbert.core.heads.sequence_classification import MultiLabelHead

            return MultiLabelHead(task, labels, label_thresholds(settings, len(labels)))
        case TaskName.REGRESSION:
            from pocketbert.core.heads.sequence_classification import RegressionHead

            return RegressionHead(task)
        case TaskName.TOKEN_CLASSIFICATION:
            from pocketbert.core.heads.token_classification import TokenClassificationHead

            return TokenClassificationHead(task, labels)
        case TaskName.QUESTION_ANSWERING:
            from pocketbert.core.heads.question_answering import QuestionAnsweringHead

            return QuestionAnsweringHead(task, settings)
        case TaskName.MULTIPLE_CHOICE:
            from pocketbert.core.heads.multiple_choice import MultipleChoiceHead

            return MultipleChoiceHead(task)
        case TaskName.FILL_MASK:
            from pocketbert.core.heads.fill_mask import FillMaskHead

            return FillMaskHead(task)
        case TaskName.FEATURE_EXTRACTION:
            from pocketbert.core.heads.feature_extraction import FeatureExtractionHead

            return FeatureExtractionHead(task, settings.similarity or Similarity.COSINE, settings.dimensions or ())
        case TaskName.SEVERAL:
            from pocketbert.core.heads.several import SeveralHeads

            task = task.with_columns(labels.names)
            pairs = zip(task.heads, labels.split(task), strict=True)
            return SeveralHeads(task, {head.name: make_head(head.task, own, settings) for head, own in pairs})


def label_thresholds(settings: AnswerSettings, labels: int) -> Sequence[float]:
    """Return a threshold per label of a multi-label task: the settings' list, or one number for all (default 0.5).

    Args:
        settings: The settings of the model's answers.
        labels: Number of labels.
    """
    thresholds = settings.thresholds
    return thresholds if isinstance(thresholds, list) else [0.5 if thresholds is None else thresholds] * labels
