"""The untouched model that files are compared with, and texts of the kind that its task takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.compare.evaluate import spread
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.compare.parity import drawn_count, drawn_rows, drawn_texts, printable
from pocketbert.core.compare.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.host.progress import say
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.predictor import Batching, Matrix, TorchPredictor, run_rows, whole
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, pooling_of
from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Task, TaskName
from pocketbert.core.types import Attention

if TYPE_CHECKING:
    import torch


DEAD = 1e-5
"""Share of the largest logit that answers must spread by: with less, no bound of parity could tell them from a constant."""
_TEXTS = 24
_BATCH = 8
_SHOWN = 20


def reference_model(folder: ModelFolder, task: Task, model: torch.nn.Module | None = None) -> TorchPredictor:
    """The torch model of a folder behind the predictor protocol; `model` where it is loaded already."""
    loaded = load_model(folder, task) if model is None else model
    return TorchPredictor(loaded, task, folder.family.inputs, pooling_of(folder.path) or DEFAULT_POOLING)


def sample_batches(tokenizer: TextTokenizer, texts: Sequence[Text]) -> list[dict[str, NDArray[np.int64]]]:
    """Tokenize texts into small padded batches, on which adapters measure how large numbers become inside a model."""
    rows = tokenizer.encode(list(texts))
    return [tokenizer.pad(rows[i : i + _BATCH]) for i in range(0, len(rows), _BATCH)]


def sentence_batches(task: Task, tokenizer: TextTokenizer) -> list[dict[str, NDArray[np.int64]]]:
    """Tokenize the project's own sentences, on which outlier channels are found.

    They are the same for every file of a model, whoever prepares it again: to export it, to simulate a scheme, or to compare a
    file with it on another machine, where the data of the run is not known.
    """
    return sample_batches(tokenizer, own_texts(task, tokenizer))


def word_table(reference: TorchPredictor) -> torch.nn.Embedding:
    """Find the model's table of word embeddings."""
    layer: torch.nn.Embedding = cast("Any", reference.model).get_input_embeddings()
    return layer


def drawn_inputs(
    reference: TorchPredictor, tokenizer: TextTokenizer, segments: bool, task: Task, length: int
) -> list[Encoded]:
    """Draw inputs from the whole vocabulary for a model; see `drawn_rows`.

    Args:
        reference: The model.
        tokenizer: Its tokenizer.
        segments: Whether the model tells two segments apart.
        task: What the model does.
        length: Tokens of each row.
    """
    kinds = _kinds(task, length, pairs=segments)
    return drawn_rows(
        tokenizer, len(word_table(reference).weight), length, kinds, masked=task.name is TaskName.FILL_MASK
    )


def drawn_questions(
    reference: TorchPredictor, tokenizer: TextTokenizer, segments: bool, task: Task, length: int
) -> list[Text]:
    """Draw texts from the whole vocabulary, as the task takes them; see `drawn_texts`."""
    kinds = _kinds(task, length, pairs=segments and takes_both(task))
    mask = tokenizer.mask_token if task.name is TaskName.FILL_MASK else None
    return drawn_texts(tokenizer, len(word_table(reference).weight), length, kinds, mask)


def _kinds(task: Task, length: int, *, pairs: bool) -> list[bool]:
    """For each drawn row whether it is a pair: every question with its context is, else every second one or none."""
    always = task.name is TaskName.QUESTION_ANSWERING
    return [always or (pairs and i % 2 == 1) for i in range(drawn_count(length))]


def check_spread(reference: TorchPredictor, tokenizer: TextTokenizer, texts: Sequence[Text], model: str) -> None:
    """Refuse a model whose answer does not depend on the text: any file would be found equal to it.

    Args:
        reference: The model.
        tokenizer: Its tokenizer.
        texts: Different texts.
        model: Its name in the message.

    Raises:
        InputError: If all texts get the same tokens, or all tokens the same answer.
    """
    rows = tokenizer.encode(list(texts))
    if len({row.ids.tobytes() for row in rows}) == 1:
        what = f"the tokenizer gives {len(rows)} different texts the same {len(rows[0])} tokens."
        raise InputError(
            Problem(f"{model}/tokenizer.json", what, "Save the tokenizer that the model was trained with.")
        )
    answers = whole(run_rows(reference, tokenizer, rows[:_TEXTS], reference.task, Batching(8, 0.1)))
    found, largest = spread(answers), float(np.abs(answers).max(initial=0.0))
    if found <= DEAD * largest:
        what = f"answers every text alike: over {len(rows[:_TEXTS])} texts the answers spread by {found:.2g}, the largest is {largest:.2g}."
        raise InputError(Problem(model, what, "Export a model whose answers depend on the text."))


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


def answered(matrix: Matrix, task: Task) -> list[int]:
    """Numbers of the labels that an answer names: one, several, or one for each row."""
    if task.labels is LabelKind.NAMES:
        return [int(i) for i in np.flatnonzero(matrix[0] > 0)]
    return [int(i) for i in matrix.argmax(-1)]


def decided(matrix: Matrix, task: Task, labels: Sequence[str]) -> str:
    """What an answer is called: its label, or those of its rows; empty for tasks without labels."""
    if not labels or not task.names_labels or not np.isfinite(matrix).all():
        return ""
    return ", ".join(labels[i] for i in answered(matrix, task))


def unreached(rows: Sequence[GoldenRow], task: Task, labels: Sequence[str]) -> list[str]:
    """List the labels that the torch model answers to no golden row; none for tasks without labels."""
    if not task.names_labels:
        return []
    seen = set[str]()
    for row in rows:
        matrix, names = row.shaped(row.reference), row.names(labels)
        if matrix.size and matrix.shape[-1] == len(names):
            seen |= {names[i] for i in answered(matrix, task)}
    return [name for name in labels if name not in seen]


def shown_labels(names: Sequence[str]) -> str:
    """Some labels, quoted, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{printable(name)}'" for name in names[:_SHOWN]) + more


# --- teacher ---
# The model that a recipe starts from.


def open_teacher(recipe: Recipe, attention: Attention | None = None) -> ModelFolder:
    """Open the model that the section `teacher` of a recipe names, as the family that it names, for the recipe's task.

    Args:
        recipe: The recipe.
        attention: What attention in the files is over, where the recipe says so.

    Raises:
        InputError: If there is no such model, or it has not the family's graph.
        MissingBackendError: If the demo teacher or the library that loads models from the Hub is not installed.
    """
    teacher = recipe.teacher
    folder = open_model_folder(teacher.model, teacher.revision, "teacher.model", teacher.family, attention)
    # whatever form its files had: training knows text only, and the run writes its own files
    family = folder.family.in_form(TEXT_ONLY, folder.config)
    licence = teacher.licence or folder.licence
    return replace(folder, family=family, licence=licence, used_for=TaskName(recipe.task))


def say_row(folder: ModelFolder) -> None:
    """Say which row of the table of families a model is taken as, where several share its graph and one was chosen."""
    if folder.row_reason:
        say(
            f"{folder.title}: taken as {folder.family.title}, because {folder.row_reason}; "
            "--family (in a recipe teacher.family) decides"
        )
