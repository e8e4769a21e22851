"""Matching every tensor of a checkpoint with the model that is built.

`match_weights` names the tensors as the model does, and reports missing, unused, misshapen and broken ones. torch and
transformers are imported inside the functions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketbert.core.disk.weight_files import shorten_names
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.models.folder import NEXT_SENTENCE_HEAD, ModelFolder
from pocketbert.core.tasks import Task, TaskName

if TYPE_CHECKING:
    import torch

_State = dict[str, "torch.Tensor"]

GENERATED_WEIGHTS = re.compile(r"(position_ids|token_type_ids)$|\.num_batches_tracked$")
"""Names of counters and constants that classes generate themselves."""
_LOSS_WEIGHTS = re.compile(r"(.*\.)?(loss\w*|criterion)\.\w+$")
"""Names of the weights of labels in a loss, which decide nothing but training."""
_MAX_VALUE = 1e18
"""The product of two numbers of this size is not finite in fp32."""
_OTHER_HEADS = (
    "AutoModelForPreTraining",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
)
_MAX_LISTED = 5
_NOISE_FIX = "Use the checkpoint for another task, or one whose masked-LM head was saved by the class that reads it."


def rename_head(state: _State, folder: ModelFolder, task: Task, new_head: bool) -> _State:
    """Rename the weights of another model class's head to the names that `AutoModelForSequenceClassification` uses.

    For multiple choice, the head of `AutoModelForMultipleChoice` is renamed. For text classification, the head of
    `AutoModelForNextSentencePrediction` is renamed, unless a new head is going to be trained.

    Returns:
        All weights, the others under their old names.
    """
    paths: Mapping[str, str] = {}
    if task.name is TaskName.MULTIPLE_CHOICE:
        paths = folder.family.choice_weights
    elif task.name is TaskName.TEXT_CLASSIFICATION and folder.has_head(NEXT_SENTENCE_HEAD) and not new_head:
        paths = {"cls.seq_relationship": "classifier"}
    return rename_paths(state, paths)


def rename_paths(state: _State, paths: Mapping[str, str]) -> _State:
    """Return the weights with the modules in `paths` renamed, old path to new path, if the new name is not taken."""
    renamed: _State = {}
    for name, value in state.items():
        path, _, last = name.rpartition(".")
        new_name = f"{paths.get(path, path)}.{last}" if path else name
        renamed[name if new_name in state else new_name] = value
    return renamed


def match_weights(model: Any, state: _State, folder: ModelFolder, task: Task, new_head: bool) -> _State:
    """Rename a checkpoint's tensors to the model's parameter names, and check that all that the model needs are there.

    Args:
        model: The model with the task's head; it may be on the meta device.
        state: All tensors of the checkpoint by name.
        folder: The checkpoint's folder, for messages and for the family.
        task: The task, which determines the head.
        new_head: Whether a head that the checkpoint lacks may start with random weights. A head of another shape is
            then left out, and a pooler may be missing.

    Returns:
        The tensors that the model loads, by its own parameter names.

    Raises:
        InputError: If a tensor is missing, has another shape or number type, is not finite or too large, or is used by
            no class of the family, or if the checkpoint's head for the task is not trained.
    """
    own = model.state_dict(keep_vars=True)
    prefix = f"{model.base_model_prefix}."
    bare = not any(k.startswith(prefix) for k in own)
    if bare:
        # the model is an encoder without a head: classes with a head give its keys a prefix
        own = {prefix + k: v for k, v in own.items()}
    if not any(k.startswith(prefix) for k in state):
        # saved from the bare encoder: its keys lack that prefix
        state = {k if k in own else prefix + k: v for k, v in state.items()}
    unread = _unread_weights(model, own, state, folder, new_head or bare)
    noise = None
    if task.name is TaskName.FILL_MASK and not new_head:
        noise = _masked_lm_noise(own, state, folder.family)
    state = {k: v for k, v in state.items() if k in own}
    head = [k for k in own if not k.startswith(prefix)]
    wrong_shape = [k for k in state if state[k].shape != own[k].shape]
    if wrong_shape and new_head:
        # a head for another label set: train a new one
        state = {k: v for k, v in state.items() if k not in head}
        wrong_shape = [k for k in wrong_shape if k not in head]
    # the pooler is no part of an encoder's answer and a new head trains its own, but an existing one is used
    optional = (f"{prefix}pooler.",) if new_head or bare else ()
    missing = [k for k in missing_weights(own, state) if not k.startswith(optional)]
    where, problems = folder.title, []
    for k in wrong_shape[:_MAX_LISTED]:
        shapes = f"{tuple(state[k].shape)} instead of {tuple(own[k].shape)}"
        problems.append(Problem(where, f"weight has another shape than config.json says: {k} {shapes}."))
    if encoder := [k for k in missing if k not in head]:
        problems.append(Problem(where, f"{len(encoder)} weights are missing, e.g. {shorten_names(encoder)}."))
    missing_head = [k for k in missing if k in head]
    if noise is not None:
        problems.append(Problem(where, f"has no head for {task.name} that can be used: {noise}.", _NOISE_FIX))
    elif missing_head and not new_head:
        what = f"has no trained head for {task.name} ({', '.join(missing_head)} missing)."
        fix = "Fine-tune it first: pocketbert finetune RECIPE, or teacher.finetune in the recipe."
        problems.append(Problem(where, what, fix))
    if unread:
        what = f"{len(unread)} weights are read by no class of {folder.family.title}: {shorten_names(unread)}."
        problems.append(Problem(where, what, "Remove them, or use the model_type that they belong to."))
    if problems := problems or [Problem(where, what) for what in _invalid_numbers(own, state)]:
        raise InputError(problems)
    return {k.removeprefix(prefix): v for k, v in state.items()} if bare else state


def _masked_lm_noise(own: Mapping[str, Any], state: _State, family: Family) -> str | None:
    """Return why a checkpoint's masked-LM head counts as untrained, judging by weights that the class does not read."""
    unread = tuple(k for k in state if k not in own)
    return next((why for start, why in family.noise.items() if any(k.startswith(start) for k in unread)), None)


def missing_weights(own: Mapping[str, Any], state: _State) -> list[str]:
    """List the model's parameters that the checkpoint has under none of their names (tied weights have several).

    Counters and constants that the classes generate (`GENERATED_WEIGHTS`) are left out.

    Args:
        own: The weights of the model by name.
        state: The checkpoint's weights, by names as in `own`.
    """
    names = canonical_names(own)
    present = {names.get(k, k) for k in own if k in state}
    return [k for k in own if names.get(k, k) not in present and not GENERATED_WEIGHTS.search(k)]


def canonical_names(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Map each weight's name to the first name of the same tensor: a tied MLM decoder maps to the embedding table.

    Empty tensors are left out.
    """
    first_names: dict[int, str] = {}
    # by object: weights on the meta device have no address
    return {name: first_names.setdefault(id(value), name) for name, value in state.items() if value.numel()}


def _unread_weights(model: Any, own: Mapping[str, Any], state: _State, folder: ModelFolder, pooler: bool) -> list[str]:
    """List the checkpoint's tensors that neither this model nor another task's head of the same family uses.

    Left out are generated counters, weights of losses, and what the family's row lists as unread.

    Args:
        model: The class with the task's head.
        own: The weights of the model by name. The names of encoder weights begin with the encoder's prefix.
        state: The checkpoint's weights, by names as in `own`.
        folder: The model folder of the checkpoint.
        pooler: Whether weights of a pooler are left out of the list although the class has none.
    """
    prefix = f"{model.base_model_prefix}."
    # a class without a pooler takes the encoder's states themselves; if its pooler computes nothing it was trained
    # without
    pooler = pooler or not any(n.endswith("pooler") and m is not None for n, m in model.named_modules())
    rest = [
        k
        for k in state
        if k not in own
        and not GENERATED_WEIGHTS.search(k)
        and not _LOSS_WEIGHTS.match(k)
        and not k.removeprefix(prefix).startswith(folder.family.unread)
        and not (pooler and k.startswith(f"{prefix}pooler."))
    ]
    heads = _other_heads(model, folder.family.by_layer) if rest else set()
    return [k for k in rest if k not in heads and k.removeprefix(prefix) not in heads]


def _other_heads(model: Any, by_layer: Sequence[str]) -> set[str]:
    """Collect the names of the head weights of this model's transformers classes for the tasks in `_OTHER_HEADS`.

    `by_layer` are the configuration's entries with one value per layer: models of one layer are built to list the names.
    """
    import torch
    import transformers

    config = copy.deepcopy(model.config)
    config.num_hidden_layers, config.num_labels = 1, 2  # classes for question-answering take no other number
    for name in by_layer:
        setattr(config, name, getattr(config, name)[:1])
    prefix = f"{model.base_model_prefix}."
    names: set[str] = set()
    for auto_name in _OTHER_HEADS:
        auto = getattr(transformers, auto_name)
        if type(config) in auto._model_mapping:
            with torch.device("meta"):
                other = auto.from_config(config)
            names |= {k for k in other.state_dict() if not k.startswith(prefix)}
    return names


def _invalid_numbers(own: Mapping[str, Any], state: _State) -> list[str]:
    """Return a sentence about weights that are no usable numbers (another type, not finite, immense); empty if all are fine."""
    types = [f"{k} ({str(v.dtype).removeprefix('torch.')})" for k, v in state.items() if not _fits_type(own[k], v)]
    if types:
        return [f"{len(types)} weights are not floating-point numbers: {shorten_names(types)}."]
    floats = {k: v for k, v in state.items() if v.is_floating_point() and v.numel()}
    # a NaN is not smaller than anything
    ends = {k: (v.amin().item(), v.amax().item()) for k, v in floats.items()}  # without a copy of the weight
    broken = [k for k, (low, high) in ends.items() if not (low > -_MAX_VALUE and high < _MAX_VALUE)]
    if not broken:
        return []
    return [
        f"NaN, infinite or immense numbers (from {_MAX_VALUE:g}) in {shorten_names(broken)} ({len(broken)} in all)."
    ]


def _fits_type(own: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether a checkpoint's tensor can be converted to the model's number type; floats need 16 bits or more."""
    if not own.is_floating_point():
        return not value.is_complex()
    return value.is_floating_point() and value.element_size() >= 2
