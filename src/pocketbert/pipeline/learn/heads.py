"""Trained heads that a run starts from, or asks.

`order_head_labels` reorders the outputs of a trained head to the order of the data's labels; `check_trained_heads` compares several heads with
those of a recipe.

One of several heads may learn from a model of its own, of any family of transformers, as `pocketbert teach` asks it; its answers teach what
a column of them would. `sample_model_row` names the model's labels before anything is trained, `answer_heads` asks the models once about all
rows, in the step `teacher`, and `add_head_answers` adds the stored answers to the rows in the steps after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.data.labels import Labels, are_placeholder_names
from pocketbert.core.errors import InputError, Problem, shorten_list
from pocketbert.core.heads import Prepared
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.models.folder import ModelFolder, locate_model
from pocketbert.core.predict.examples import Example, HeadLabels, TeacherAnswer
from pocketbert.core.predict.spans import label_of_tag
from pocketbert.core.recipe.column import column_key
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName
from pocketbert.core.types import AnswerKind
from pocketbert.pipeline.teach.answering import AnswerForm, AskedRow
from pocketbert.pipeline.teach.writing import PORTION

if TYPE_CHECKING:
    from pocketbert.pipeline.teach.models import ModelTeacher

_FORMS = {
    TaskName.TEXT_CLASSIFICATION: AnswerForm.LABEL,
    TaskName.MULTI_LABEL: AnswerForm.LABELS,
    TaskName.REGRESSION: AnswerForm.SCORE,
    TaskName.TOKEN_CLASSIFICATION: AnswerForm.TAGS,
}


# --- trained heads ---


def order_head_labels(module: Any, model: ModelFolder, recipe: Recipe, data_labels: Labels) -> list[str]:
    """Reorder the outputs of a model's head, in place, to the order of the data's labels.

    Args:
        module: The torch module with the head.
        model: The folder that it was loaded from, with the head's label names.
        recipe: The recipe, which may name the labels.
        data_labels: The labels of the data.

    Returns:
        A sentence for the user; an empty list if the order was the same.

    Raises:
        InputError: If the label sets differ, or the head's last layer cannot be found.
    """
    note = _permute_head(module, _resolve_head_labels(model, recipe, data_labels), data_labels)
    return [note] if note else []


def _resolve_head_labels(model: ModelFolder, recipe: Recipe, data_labels: Labels) -> Labels:
    """Return the labels of a trained head in the order of its outputs.

    The head may have the placeholder names LABEL_0, LABEL_1, ... Its labels are then those of the data, in their order,
    if the recipe names the labels or the labels in the data are numbers (see `resolve_labels`).
    """
    names = tuple(model.labels or data_labels.names)
    named = recipe.data.labels or data_labels.numbers
    if named and are_placeholder_names(names) and len(names) == len(data_labels):
        return data_labels
    return Labels(names)


def _permute_head(model: Any, head_labels: Labels, data_labels: Labels) -> str | None:
    """Reorder the rows of the classifier's last linear layer so that its outputs follow the data's label order.

    Returns:
        A sentence for the user; None if the order is the same.

    Raises:
        InputError: If the label sets differ, or the head cannot be found.
    """
    import torch

    order = data_labels.permutation_from(head_labels, "teacher")
    if order is None:
        return None
    rows = len(head_labels)
    last = [
        m
        for n, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and m.out_features == rows and not n.startswith(model.base_model_prefix)
    ]
    if not last:
        what = "its classifier has no last linear layer to reorder."
        fix = f"Set data.labels to the teacher's own order: {list(head_labels.names)}."
        raise InputError(Problem("teacher", what, fix))
    with torch.no_grad():
        last[-1].weight.copy_(last[-1].weight[order])
        if last[-1].bias is not None:
            last[-1].bias.copy_(last[-1].bias[order])
    note = f"labels permuted: the model's order {list(head_labels.names)} became the data's order {list(data_labels.names)}"
    print_note(f"  {note}")
    return note


def check_trained_heads(recipe_task: Task, model: ModelFolder) -> None:
    """Check that a model, whose own heads a recipe uses, has exactly the heads that the recipe lists, in this order.

    Raises:
        InputError: If it has other heads, another order, or one head only.
    """
    wanted = {head.name: head.task.name.value for head in recipe_task.heads}
    if [*(model.heads or {}).items()] != [*wanted.items()]:
        found = ", ".join(f"{name} ({task})" for name, task in (model.heads or {}).items()) or "one head"
        what = (
            f"the model has {found}; the recipe lists {', '.join(f'{name} ({task})' for name, task in wanted.items())}."
        )
        fix = "Train these heads: teacher: {model: ..., finetune: {epochs: 4}}; or list those of the model under tasks, in its order."
        if any(head.learns_from == "column" for head in recipe_task.heads):
            fix += " If the student only starts from it, and heads without a column learn labels alone: teacher: {start_only: true}."
        raise InputError(Problem("tasks", what, fix))


# --- models that teach a head ---


def find_head_models(recipe: Recipe) -> dict[str, Path]:
    """Return the folder of each model that teaches a head of its own, by the head's name. Hub names are downloaded."""
    models = {name: head.model for name, head in recipe.head_columns.items() if head.model is not None}
    return {name: locate_model(model, None, _key(name))[0] for name, model in models.items()}


def sample_model_row(recipe: Recipe, name: str) -> Example:
    """Return a row with an answer that names all labels of the model that teaches head `name`; its weights are not read.

    Raises:
        InputError: If the model cannot be opened, answers another task, or has other labels than the recipe lists for the head.
    """
    assert recipe.tasks is not None
    names, head = _open_model(recipe, name, with_weights=False).names, recipe.tasks[name]
    own = {label_of_tag(tag) or tag for tag in names} if head.task is TaskName.TOKEN_CLASSIFICATION else {*names}
    if head.labels and (unknown := sorted(own - {*head.labels, "O"})):
        what = f"the model also answers with {shorten_list(unknown)}, which tasks.{name}.labels does not list."
        raise InputError(Problem(_key(name), what, "List all labels of the model, or leave the list out."))
    return Example("", None, None, 1, answer=_make_answer(names, np.full((1, max(1, len(names))), 0.5), None))


def answer_heads(recipe: Recipe, splits: Mapping[str, Prepared], folder: Path) -> None:
    """Ask the models of a recipe's heads about the rows of all splits, and store their answers in a folder; in process 0 only."""
    for name in find_head_models(recipe) if current_process().main else ():
        model, rows = _open_model(recipe, name), [_asked(e) for rows in splits.values() for e in rows.examples]
        parts = list[NDArray[np.float32]]()
        with Meter(f"answers for {name}", len(rows)) as meter:
            for start in range(0, len(rows), PORTION):
                answers = model.answer(rows[start : start + PORTION])
                parts += [np.atleast_2d(answer).astype(np.float32) for answer in answers]
                meter.advance(len(answers))
        np.savez(_stored(folder, name), values=np.concatenate(parts), names=np.array(model.names, str))


def add_head_answers(recipe: Recipe, splits: Mapping[str, Prepared], folder: Path) -> dict[str, Prepared]:
    """Return rows with the answers that `answer_heads` stored in a folder: for the heads that a model of their own teaches."""
    heads, result = recipe.tasks or {}, dict(splits)
    for place, (name, head) in enumerate(heads.items()):
        if head.teacher is None or head.teacher.model is None:
            continue
        with np.load(_stored(folder, name), allow_pickle=False) as stored:
            values, labels = stored["values"], tuple(stored["names"].tolist())
        start, by_word = 0, head.task is TaskName.TOKEN_CLASSIFICATION
        for split, rows in result.items():
            examples = []
            for example in rows.examples:
                places = np.array(_asked(example).units(), np.int64).reshape(-1, 2) if by_word else None
                stop = start + (1 if places is None else len(places))
                own = values[start:stop].astype(np.float64)
                answer = _make_answer(labels, own, places) if stop > start else None  # a text without words has none
                examples.append(_add_answer(example, place, len(heads), answer))
                start = stop
            result[split] = replace(rows, examples=examples)
        if start != len(values):
            raise RuntimeError(f"{len(values)} stored answers for {start} texts or words: these are other rows")
    return result


def _make_answer(labels: tuple[str, ...], values: NDArray[Any], places: NDArray[np.int64] | None) -> TeacherAnswer:
    """Return probabilities of labels, or a number without labels, as the answer of a teacher."""
    kinds = frozenset([AnswerKind.PROBABILITIES if labels else AnswerKind.LOGITS])
    return TeacherAnswer(labels, values, kinds, places)


def _add_answer(example: Example, place: int, heads: int, answer: TeacherAnswer | None) -> Example:
    """Return a row with an answer for the head at `place` of `heads`."""
    assert isinstance(example.label, HeadLabels)
    answers = list(example.label.answers or [None] * heads)
    answers[place] = answer
    return replace(example, label=replace(example.label, answers=tuple(answers)))


def _open_model(recipe: Recipe, name: str, with_weights: bool = True) -> ModelTeacher:
    """Open the model that teaches a head.

    Raises:
        InputError: Naming the recipe key, if it cannot be opened or does not answer the head's task.
    """
    from pocketbert.pipeline.teach.models import open_teacher_model

    assert recipe.tasks is not None
    task, model = recipe.tasks[name].task, recipe.head_columns[name].model
    assert model is not None
    try:
        opened = open_teacher_model(model, task, with_weights=with_weights)
    except InputError as error:
        raise InputError([replace(p, where=f"{_key(name)}: {p.where}") for p in error.problems]) from error
    if opened.form is not _FORMS[task]:
        what = f"'{model}' answers with {opened.form}, and {task} learns {_FORMS[task]}."
        raise InputError(Problem(_key(name), what, "Name a model that was fine-tuned for the head's task."))
    return opened


def _key(name: str) -> str:
    """Return the recipe key of the model that teaches a head."""
    return f"{column_key(name)}.model"


def _stored(folder: Path, name: str) -> Path:
    """Return the file of a model's answers for a head in a teacher's folder."""
    return folder / f"answers-{name}.npz"


def _asked(example: Example) -> AskedRow:
    """Return a row as models are asked about it."""
    return AskedRow(example.text, example.pair)
