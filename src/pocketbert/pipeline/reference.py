"""The torch model that files are compared with, and the texts that it is run on.

`open_teacher` opens the model that a recipe starts from. `load_reference_model` loads the torch model of a folder; `check_spread` refuses
one whose answers do not depend on the text, and `label_by_model` labels texts with its answers. `project_texts`, `task_text`, `draw_inputs` and `draw_reference_texts` return texts and inputs
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
from pocketbert.core.data.labels import Labels, are_placeholder_names
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.heads import make_head
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.answers import Answer, Excerpt, Labelling, Prediction, Spans, Value
from pocketbert.core.predict.examples import Example, GoldAnswer, Label
from pocketbert.core.predict.inputs import Encoded, Text
from pocketbert.core.predict.predictor import Batching, Matrix, TorchPredictor, join_texts, run_rows
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, read_pooling
from pocketbert.core.predict.spans import Span
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import LabelKind, Level, Task, TaskName
from pocketbert.core.types import Attention

if TYPE_CHECKING:
    import torch

_LEAST_SPREAD = 1e-5
"""Smallest spread of the answers, as a share of the largest logit: below it parity cannot tell a file from a constant."""
_SPREAD_TEXTS = 24
_BATCH = 8
_SHOWN_LABELS = 20


def open_teacher(recipe: Recipe, attention: Attention | None = None) -> ModelFolder:
    """Open the model that a recipe's `teacher` section names, with the recipe's family and task.

    Args:
        recipe: The recipe.
        attention: Attention pattern of the exported files; None for that of the model's config.json.

    Raises:
        InputError: If there is no such model, or its architecture is not that of the family.
        MissingBackendError: If the demo teacher or the library that loads models from the Hub is not installed.
    """
    teacher = recipe.teacher
    folder = open_model_folder(
        teacher.model, teacher.revision, "teacher.model", teacher.family, attention, teacher.adapters
    )
    # whatever form its files have: training reads text only, and the run writes its own files
    family = folder.family.in_form(TEXT_ONLY, folder.config)
    licence = teacher.licence or folder.licence
    return replace(folder, family=family, licence=licence, used_for=TaskName(recipe.task))


def model_title(recipe: Recipe) -> str:
    """Return the noun for a recipe's `teacher` model in messages.

    It is "the student's start" if columns of the data hold all answers of teachers, "teacher" if the recipe trains the
    model or a student, else "model".
    """
    if not recipe.asks_model:
        return "the student's start"
    return "teacher" if recipe.student is not None or recipe.teacher.finetune is not None else "model"


def print_family_choice(folder: ModelFolder) -> None:
    """Print which model family was chosen for a model, and why, if several families have the same graph."""
    if folder.row_reason:
        print_note(
            f"{folder.title}: taken as {folder.family.title}, because {folder.row_reason}; "
            "--family (in a recipe teacher.family) decides"
        )


def load_reference_model(
    folder: ModelFolder, task: Task, model: torch.nn.Module | None = None, remember: bool = True
) -> TorchPredictor:
    """Return a folder's torch model as a predictor for a task.

    Args:
        folder: The model folder.
        task: The task, which decides the head that is loaded.
        model: The loaded torch model; None to load it from the folder.
        remember: Whether outputs are kept, so that the same rows are not computed twice. The weights must not change
            then.
    """
    loaded = load_model(folder, task) if model is None else model
    pooling = read_pooling(folder.path) or DEFAULT_POOLING
    return TorchPredictor(loaded, task, folder.family.inputs, pooling, remember)


def word_table(reference: TorchPredictor) -> torch.nn.Embedding:
    """Return the word embedding layer of a torch model."""
    layer: torch.nn.Embedding = cast("Any", reference.model).get_input_embeddings()
    return layer


def check_spread(reference: TorchPredictor, tokenizer: TextTokenizer, texts: Sequence[Text], model: str) -> None:
    """Check that a model's outputs depend on the text, since any file would otherwise seem equal to the model.

    Args:
        reference: The torch model.
        tokenizer: The model's tokenizer.
        texts: The texts; the model is run on up to 24 of them.
        model: Name of the model's folder for the error.

    Raises:
        InputError: If all texts become the same tokens, or if their outputs are nearly the same.
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


_MOST_ANSWERED = 2000
"""Most texts that a teacher labels for scores: more make a score no surer than its other errors, and take minutes."""


def label_by_model(
    recipe: Recipe, model: ModelFolder, task: Task, examples: Sequence[Example], length: int
) -> list[Example]:
    """Label texts with a model's answers, and return up to 2,000 labelled rows: those with the smallest hashes.

    Scores on them are the agreement with the model.

    Args:
        recipe: The recipe, with names for labels that the model has only numbers for.
        model: A model with a trained head.
        task: The task.
        examples: The texts.
        length: Longest input in tokens.
    """
    names = tuple(model.labels or recipe.data.labels or ())
    if recipe.data.labels and are_placeholder_names(names) and len(names) == len(recipe.data.labels):
        names = tuple(recipe.data.labels)
    head = make_head(task, Labels(names if task.names_labels else ()), recipe.answer)
    chosen = sorted(examples, key=lambda row: row.digest)[:_MOST_ANSWERED]
    tokenizer = TextTokenizer(model.tokenizer_folder, length, padding_side=model.family.padding_side)
    rows = head.prepare(chosen, tokenizer, "texts without labels", labelled=False)
    predictor = load_reference_model(model, task)
    outputs = run_rows(predictor, tokenizer, rows.encoded, task, Batching(32, 0.1), "label held-out texts")
    return [replace(row, label=_to_label(a)) for row, a in zip(chosen, head.answers(outputs, rows), strict=True)]


def _to_label(answer: Answer) -> Label | None:
    """Convert an answer to the label that a data file would have for it; None for vectors."""
    match answer:
        case Prediction():
            return answer.label
        case Labelling():
            return answer.labels
        case Value():
            return answer.value
        case Spans():
            return tuple(Span(s.start, s.end, s.label) for s in answer.spans)
        case Excerpt():
            return (GoldAnswer(answer.start, answer.text),) if answer.text else ()
    return None


# --- texts ---


def project_texts(task: Task, tokenizer: TextTokenizer) -> list[Text]:
    """Return the project's sample sentences as inputs of a task: pairs for tasks on pairs, masked for fill-mask."""
    if task.pairs_only:
        return [*sample_pairs()]
    return [task_text(task, text, tokenizer) for text in SENTENCES]


def task_text(task: Task, text: Text, tokenizer: TextTokenizer) -> Text:
    """Return a text as an input of a task.

    For fill-mask the middle word of a single text is replaced by the mask token. For embeddings only the first text of
    a pair is returned. For other tasks the text is returned as it is.
    """
    if task.name is TaskName.FEATURE_EXTRACTION and not isinstance(text, str):
        return text[0]
    if task.name is not TaskName.FILL_MASK or not isinstance(text, str) or tokenizer.mask_token is None:
        return text
    words = text.split()
    return " ".join([*words[: len(words) // 2], tokenizer.mask_token, *words[len(words) // 2 + 1 :]])


def takes_texts_and_pairs(task: Task) -> bool:
    """Return whether models of a task accept both single texts and text pairs; with several heads, if all heads do."""
    of_texts = (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.REGRESSION)
    return task.name in of_texts or (bool(task.heads) and not task.single_only)


def tokenize_batches(tokenizer: TextTokenizer, texts: Sequence[Text]) -> list[dict[str, NDArray[np.int64]]]:
    """Tokenize texts and pad them in batches of 8; return for each batch the input arrays [B, L] by input name."""
    rows = tokenizer.encode(list(texts))
    return [tokenizer.pad(rows[i : i + _BATCH]) for i in range(0, len(rows), _BATCH)]


def project_text_batches(task: Task, tokenizer: TextTokenizer) -> list[dict[str, NDArray[np.int64]]]:
    """Tokenize the project's sample sentences, on which outlier channels are found, into padded batches.

    The batches are the same whenever a model is prepared: to export it, to simulate a scheme, or to compare a file with
    it on another machine, which does not have the data of the run.
    """
    return tokenize_batches(tokenizer, project_texts(task, tokenizer))


def draw_inputs(
    reference: TorchPredictor, tokenizer: TextTokenizer, segments: bool, task: Task, length: int
) -> list[Encoded]:
    """Draw random token ids from the whole vocabulary and return them as tokenized inputs of `length` tokens.

    No token is drawn twice before all were drawn.

    Args:
        reference: The torch model, whose word embeddings have one row per token.
        tokenizer: The model's tokenizer.
        segments: Whether the model has an input for segments. If it has, every second input is a pair.
        task: The task. For tasks on pairs all inputs are pairs, and for fill-mask they hold a mask.
        length: Number of tokens of each input.
    """
    pairs = _choose_drawn_pairs(task, length, segments)
    return draw_rows(
        tokenizer, len(word_table(reference).weight), length, pairs, masked=task.name is TaskName.FILL_MASK
    )


def draw_reference_texts(
    reference: TorchPredictor, tokenizer: TextTokenizer, segments: bool, task: Task, length: int
) -> list[Text]:
    """Draw random tokens from the whole vocabulary and return texts, or text pairs, of up to about `length` tokens.

    Args:
        reference: The torch model, whose word embeddings have one row per token.
        tokenizer: The model's tokenizer.
        segments: Whether the model has an input for segments. If it has and the task takes pairs, every second text is
            one.
        task: The task. For tasks on pairs all texts are pairs, and for fill-mask they hold a mask.
        length: Number of tokens of each text.
    """
    pairs = _choose_drawn_pairs(task, length, segments and takes_texts_and_pairs(task))
    mask = tokenizer.mask_token if task.name is TaskName.FILL_MASK else None
    return draw_texts(tokenizer, len(word_table(reference).weight), length, pairs, mask)


def _choose_drawn_pairs(task: Task, length: int, some: bool) -> list[bool]:
    """Return for each of the inputs to draw at a length whether it is a pair.

    All are pairs for tasks on pairs, every second one if `some` is set, else none.
    """
    return [task.pairs_only or (some and i % 2 == 1) for i in range(count_drawn_rows(length))]


# --- labels of answers ---


def answered_labels(matrix: Matrix, task: Task) -> list[int]:
    """Return the indices of the labels that logits predict.

    Multi-label tasks predict each label whose logit in the first row is above 0. Other tasks predict the largest logit of
    each row. With several heads each head with labels predicts its own, heads of whole texts from the first row only.

    Args:
        matrix: Logits [rows, labels].
        task: The task.
    """
    if task.heads:
        parts = [(head, matrix[:, head.columns]) for head in task.heads if head.task.names_labels]
        rows = [(h, own if h.task.level is Level.TOKEN else own[:1]) for h, own in parts]
        return [head.start + i for head, own in rows for i in answered_labels(own, head.task)]
    if task.labels is LabelKind.NAMES:
        return [int(i) for i in np.flatnonzero(matrix[0] > 0)]
    return [int(i) for i in matrix.argmax(-1)]


def answer_label_names(matrix: Matrix, task: Task, labels: Sequence[str]) -> str:
    """Return the names of the labels that logits predict, joined by commas.

    The result is empty if the task has no labels or a logit is not finite.
    """
    if not labels or not task.names_labels or not np.isfinite(matrix).all():
        return ""
    return ", ".join(labels[i] for i in answered_labels(matrix, task))


def unreached_labels(rows: Sequence[GoldenRow], task: Task, labels: Sequence[str]) -> list[str]:
    """Return the labels that the torch model predicts for no golden row; empty for tasks without labels.

    Golden rows are texts with recorded outputs. Rows that record only some of the outputs' columns count with these.
    """
    if not task.names_labels:
        return []
    reached = set[str]()
    for row in rows:
        matrix, names = row.shaped(row.reference), row.names(labels)
        if matrix.size and matrix.shape[-1] == len(names):
            reached |= {names[i] for i in answered_labels(matrix, task)}
    return [name for name in labels if name not in reached]


def quote_labels(names: Sequence[str]) -> str:
    """Return up to 20 label names in quotes, joined by commas, and the number of the others."""
    more = f" and {len(names) - _SHOWN_LABELS} more" if len(names) > _SHOWN_LABELS else ""
    return ", ".join(f"'{remove_unprintable(name)}'" for name in names[:_SHOWN_LABELS]) + more
