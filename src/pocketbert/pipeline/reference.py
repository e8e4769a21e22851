"""The torch model that files are compared with, and the texts that it is asked.

`open_teacher` opens the model that a recipe starts from. `load_reference_model` loads the torch model of a folder; `check_spread` refuses
one whose answers do not depend on the text. `project_texts`, `task_text`, `draw_inputs` and `draw_reference_texts` return texts and inputs
of the kind that a task takes, and `answered_labels`, `answer_label_names` and `unreached_labels` name the labels of its answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import logit_spread
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.compare.parity import count_drawn_rows, draw_rows, draw_texts, remove_unprintable
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.inputs import Encoded, Text
from pocketbert.core.predict.predictor import Batching, Matrix, TorchPredictor, join_texts, run_rows
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, read_pooling
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.core.types import Attention

if TYPE_CHECKING:
    import torch

_LEAST_SPREAD = 1e-5
"""Smallest spread of the answers, as a share of the largest logit: below it parity cannot tell a file from a constant."""
_SPREAD_TEXTS = 24
_BATCH = 8
_SHOWN_LABELS = 20


def open_teacher(recipe: Recipe, attention: Attention | None = None) -> ModelFolder:
    """Open the model folder that a recipe's `teacher` section names, for the recipe's family and task.

    `attention` is the attention pattern of the files, if the recipe sets it.

    Raises:
        InputError: If there is no such model, or its graph is not that of the family.
        MissingBackendError: If the demo teacher or the library that loads models from the Hub is not installed.
    """
    teacher = recipe.teacher
    folder = open_model_folder(teacher.model, teacher.revision, "teacher.model", teacher.family, attention)
    # whatever form its files have: training reads text only, and the run writes its own files
    family = folder.family.in_form(TEXT_ONLY, folder.config)
    licence = teacher.licence or folder.licence
    return replace(folder, family=family, licence=licence, used_for=TaskName(recipe.task))


def print_family_choice(folder: ModelFolder) -> None:
    """Print which model family was chosen for a model, and why, if several families have the same graph."""
    if folder.row_reason:
        print_note(
            f"{folder.title}: taken as {folder.family.title}, because {folder.row_reason}; "
            "--family (in a recipe teacher.family) decides"
        )


def load_reference_model(folder: ModelFolder, task: Task, model: torch.nn.Module | None = None) -> TorchPredictor:
    """Return a folder's torch model as a predictor for a task; `model` is used if it is loaded already.

    It remembers its outputs, so its weights must not change afterwards.
    """
    loaded = load_model(folder, task) if model is None else model
    pooling = read_pooling(folder.path) or DEFAULT_POOLING
    return TorchPredictor(loaded, task, folder.family.inputs, pooling, remember=True)


def word_table(reference: TorchPredictor) -> torch.nn.Embedding:
    """Return the word embedding layer of a torch model."""
    layer: torch.nn.Embedding = cast("Any", reference.model).get_input_embeddings()
    return layer


def check_spread(reference: TorchPredictor, tokenizer: TextTokenizer, texts: Sequence[Text], model: str) -> None:
    """Raise if a model gives all texts the same outputs, since any file would then seem equal to it.

    Raises:
        InputError: Naming `model`, if all texts get the same tokens, or all tokens the same answer.
    """
    rows = tokenizer.encode(list(texts))
    if len({row.ids.tobytes() for row in rows}) == 1:
        what = f"the tokenizer gives {len(rows)} different texts the same {len(rows[0])} tokens."
        fix = "Save the tokenizer that the model was trained with."
        raise InputError(Problem(f"{model}/tokenizer.json", what, fix))
    answers = join_texts(run_rows(reference, tokenizer, rows[:_SPREAD_TEXTS], reference.task, Batching(8, 0.1)))
    found, largest = logit_spread(answers), float(np.abs(answers).max(initial=0.0))
    if found <= _LEAST_SPREAD * largest:
        what = f"answers every text alike: over {len(rows[:_SPREAD_TEXTS])} texts the answers spread by {found:.2g}, the largest is {largest:.2g}."
        raise InputError(Problem(model, what, "Export a model whose answers depend on the text."))


# --- texts ---


def project_texts(task: Task, tokenizer: TextTokenizer) -> list[Text]:
    """Return the project's sample sentences as a task's inputs: pairs for question answering, masked for fill-mask."""
    if task.name is TaskName.QUESTION_ANSWERING:
        return [*sample_pairs()]
    return [task_text(task, text, tokenizer) for text in SENTENCES]


def task_text(task: Task, text: Text, tokenizer: TextTokenizer) -> Text:
    """Return a text as a task's input: middle word masked for fill-mask, first of a pair for feature extraction."""
    if task.name is TaskName.FEATURE_EXTRACTION and not isinstance(text, str):
        return text[0]
    if task.name is not TaskName.FILL_MASK or not isinstance(text, str) or tokenizer.mask_token is None:
        return text
    words = text.split()
    return " ".join([*words[: len(words) // 2], tokenizer.mask_token, *words[len(words) // 2 + 1 :]])


def takes_texts_and_pairs(task: Task) -> bool:
    """Return whether models of a task accept both single texts and text pairs."""
    return task.name in (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.REGRESSION)


def tokenize_batches(tokenizer: TextTokenizer, texts: Sequence[Text]) -> list[dict[str, NDArray[np.int64]]]:
    """Tokenize texts into padded batches of 8: input arrays [B, L] by input name."""
    rows = tokenizer.encode(list(texts))
    return [tokenizer.pad(rows[i : i + _BATCH]) for i in range(0, len(rows), _BATCH)]


def project_text_batches(task: Task, tokenizer: TextTokenizer) -> list[dict[str, NDArray[np.int64]]]:
    """Tokenize the project's sample sentences, on which outlier channels are found, into padded batches.

    They are the same whenever a model is prepared: to export it, to simulate a scheme, or to compare a file with it on another
    machine, which does not have the data of the run.
    """
    return tokenize_batches(tokenizer, project_texts(task, tokenizer))


def draw_inputs(
    reference: TorchPredictor, tokenizer: TextTokenizer, segments: bool, task: Task, length: int
) -> list[Encoded]:
    """Return tokenized inputs of `length` tokens drawn from the whole vocabulary, none twice before all were drawn.

    Every second one is a pair if the model has `segments`, all for question answering.
    """
    pairs = _choose_drawn_pairs(task, length, segments)
    return draw_rows(
        tokenizer, len(word_table(reference).weight), length, pairs, masked=task.name is TaskName.FILL_MASK
    )


def draw_reference_texts(
    reference: TorchPredictor, tokenizer: TextTokenizer, segments: bool, task: Task, length: int
) -> list[Text]:
    """Return texts or text pairs of `length` random tokens of the vocabulary, as a task's input.

    Every second one is a pair if the model has `segments` and the task takes pairs, all for question answering.
    """
    pairs = _choose_drawn_pairs(task, length, segments and takes_texts_and_pairs(task))
    mask = tokenizer.mask_token if task.name is TaskName.FILL_MASK else None
    return draw_texts(tokenizer, len(word_table(reference).weight), length, pairs, mask)


def _choose_drawn_pairs(task: Task, length: int, some: bool) -> list[bool]:
    """Return for each random row whether it is a pair: all for question answering, every second for `some`."""
    always = task.name is TaskName.QUESTION_ANSWERING
    return [always or (some and i % 2 == 1) for i in range(count_drawn_rows(length))]


# --- labels of answers ---


def answered_labels(matrix: Matrix, task: Task) -> list[int]:
    """Return the predicted label indices of logits [rows, labels]: those above 0 for multi-label, else one per row."""
    if task.labels is LabelKind.NAMES:
        return [int(i) for i in np.flatnonzero(matrix[0] > 0)]
    return [int(i) for i in matrix.argmax(-1)]


def answer_label_names(matrix: Matrix, task: Task, labels: Sequence[str]) -> str:
    """Return the names of the predicted labels of logits, joined by commas; empty for tasks without labels."""
    if not labels or not task.names_labels or not np.isfinite(matrix).all():
        return ""
    return ", ".join(labels[i] for i in answered_labels(matrix, task))


def unreached_labels(rows: Sequence[GoldenRow], task: Task, labels: Sequence[str]) -> list[str]:
    """Return the labels that the torch model predicts for no golden row; empty for tasks without labels."""
    if not task.names_labels:
        return []
    reached = set[str]()
    for row in rows:
        matrix, names = row.shaped(row.reference), row.names(labels)
        if matrix.size and matrix.shape[-1] == len(names):
            reached |= {names[i] for i in answered_labels(matrix, task)}
    return [name for name in labels if name not in reached]


def quote_labels(names: Sequence[str]) -> str:
    """Return text with up to 20 quoted label names and the number of the others."""
    more = f" and {len(names) - _SHOWN_LABELS} more" if len(names) > _SHOWN_LABELS else ""
    return ", ".join(f"'{remove_unprintable(name)}'" for name in names[:_SHOWN_LABELS]) + more
