"""Compare a trained head with the data and the recipe, before anything is learnt or exported.

`order_head_labels` reorders its outputs to the order of the data's labels; `check_trained_heads` compares several heads with those of a recipe.
"""

from __future__ import annotations

from typing import Any

from pocketbert.core.data.labels import Labels, are_placeholder_names
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.progress import print_note
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task


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
