"""Which module serves which task."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.data.labels import Labels
from pocketbert.core.heads.feature_extraction import FeatureExtractionHead
from pocketbert.core.heads.fill_mask import FillMaskHead
from pocketbert.core.heads.head import AnswerSettings, Head
from pocketbert.core.heads.question_answering import QuestionAnsweringHead
from pocketbert.core.heads.sequence_classification import ClassificationHead, MultiLabelHead, RegressionHead
from pocketbert.core.heads.token_classification import TokenClassificationHead
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.tasks import Task, TaskName

THRESHOLD = 0.5


def head_of(task: Task, labels: Labels, settings: AnswerSettings | None = None) -> Head:
    """The module of a task.

    Args:
        task: Its row of the table.
        labels: Label names in order of their ids; of tasks without labels, none.
        settings: What the user decided; default the defaults.
    """
    own = settings or AnswerSettings()
    match task.name:
        case TaskName.TEXT_CLASSIFICATION:
            return ClassificationHead(task, labels)
        case TaskName.MULTI_LABEL:
            return MultiLabelHead(task, labels, thresholds_of(own, len(labels)))
        case TaskName.REGRESSION:
            return RegressionHead(task)
        case TaskName.TOKEN_CLASSIFICATION:
            return TokenClassificationHead(task, labels)
        case TaskName.QUESTION_ANSWERING:
            return QuestionAnsweringHead(task, own)
        case TaskName.FILL_MASK:
            return FillMaskHead(task)
        case TaskName.FEATURE_EXTRACTION:
            return FeatureExtractionHead(task, own.similarity or Similarity.COSINE)


def thresholds_of(settings: AnswerSettings, labels: int) -> Sequence[float]:
    """One threshold per label."""
    given = settings.thresholds
    return given if isinstance(given, list) else [THRESHOLD if given is None else given] * labels
