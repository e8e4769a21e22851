"""The untouched model that files are compared with, and texts of the kind that its task takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.pooling import DEFAULT_POOLING, pooling_of
from pocketbert.core.predict.readout import Matrix
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.predict.torch_predictor import TorchPredictor
from pocketbert.core.tasks import LabelKind, Task, TaskName

if TYPE_CHECKING:
    import torch


def reference_model(folder: ModelFolder, task: Task, model: torch.nn.Module | None = None) -> TorchPredictor:
    """The torch model of a folder behind the predictor protocol; `model` where it is loaded already."""
    loaded = load_model(folder, task) if model is None else model
    return TorchPredictor(loaded, task, folder.family.inputs, pooling_of(folder.path) or DEFAULT_POOLING)


def takes_both(task: Task) -> bool:
    """Whether a model of the task may be given single texts and pairs alike."""
    return task.name in (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.REGRESSION)


def own_texts(task: Task, tokenizer: TextTokenizer) -> list[Text]:
    """The project's sentences as a task takes them."""
    if task.name is TaskName.QUESTION_ANSWERING:
        return [*sample_pairs()]
    return [task_text(task, text, tokenizer) for text in SENTENCES]


def task_text(task: Task, text: Text, tokenizer: TextTokenizer) -> Text:
    """A text of the data as a model of the task is asked: of fill-mask its middle word is masked."""
    if task.name is TaskName.FEATURE_EXTRACTION and not isinstance(text, str):
        return text[0]
    if task.name is not TaskName.FILL_MASK or not isinstance(text, str) or tokenizer.mask_token is None:
        return text
    words = text.split()
    return " ".join([*words[: len(words) // 2], tokenizer.mask_token, *words[len(words) // 2 + 1 :]])


def decided(matrix: Matrix, task: Task, labels: Sequence[str]) -> str:
    """What an answer is called: its label, or those of its rows; empty for tasks without labels."""
    if not labels or not task.names_labels or not np.isfinite(matrix).all():
        return ""
    if task.labels is LabelKind.NAMES:
        return ", ".join(labels[int(i)] for i in np.flatnonzero(matrix[0] > 0))
    return ", ".join(labels[int(i)] for i in matrix.argmax(-1))
