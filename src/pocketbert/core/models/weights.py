"""Reads the weights of a model folder within bounds, and accounts for every tensor. The only module that opens ``.bin`` files.

Imports torch and transformers inside its functions: core itself stays light.
"""

from __future__ import annotations

import copy
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.tasks import Task, TaskName

if TYPE_CHECKING:
    import torch

State = dict[str, "torch.Tensor"]

MAX_BIN_BYTES = 8 << 30
LARGEST = 1e18
"""No product of two numbers as large as this one is finite in fp32."""
HARMLESS = re.compile(r"(position_ids|token_type_ids)$|\.num_batches_tracked$")
"""Counters and constants that classes make themselves."""
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
_SHOWN = 5
_NOISE_FIX = "Use the checkpoint for another task, or one whose masked-LM head was saved by the class that reads it."


def read_state(path: Path) -> State:
    """Read a weight file.

    Raises:
        InputError: If it is broken, or holds anything but plain tensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (SafetensorError, ValueError, KeyError) as error:
            raise InputError(Problem(str(path), f"broken safetensors file: {first_sentence(error)}.")) from error
    return _read_bin(path)


def _read_bin(path: Path) -> State:
    import torch

    if path.stat().st_size > MAX_BIN_BYTES:
        raise InputError(Problem(str(path), f"larger than {MAX_BIN_BYTES >> 30} GiB, refused."))
    convert = "Convert it to model.safetensors where you trust its origin."
    try:
        _refuse_compressed(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # a foreign pickle fails in many ways
        what = f"cannot be read as plain weights: {first_sentence(error)}."
        raise InputError(Problem(str(path), what, convert)) from error
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise InputError(Problem(str(path), "does not hold a state dict of tensors."))
    odd = [str(k) for k, v in state.items() if not isinstance(k, str) or not _plain(v)]
    if odd:
        what = f"{len(odd)} of its tensors are quantized, sparse, without data or otherwise not plain: {_few(odd)}."
        raise InputError(Problem(str(path), what, "Save the model in fp32 with save_pretrained()."))
    return state


def _refuse_compressed(path: Path) -> None:
    """Torch stores tensors uncompressed; a compressed entry may be a thousand times as large as the file."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        grown = sum(i.file_size for i in archive.infolist())
    if grown > path.stat().st_size:
        raise InputError(Problem(str(path), f"unpacks to {grown:,} bytes, more than the file has; refused."))


def _plain(value: torch.Tensor) -> bool:
    """Whether a tensor is dense, has its data, and no more numbers than its storage holds."""
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_meta or value.is_nested:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def first_sentence(error: Exception) -> str:
    """What went wrong, without the rest of a long message, such as torch's advice to load the pickle unprotected."""
    return (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")


def fitting(model: Any, state: State, folder: ModelFolder, task: Task, new_head: bool) -> State:
    """Name the tensors of a checkpoint as the model does; the model may be a sketch without memory.

    Args:
        model: The class with the task's head.
        state: All tensors of the checkpoint.
        folder: Where they come from.
        task: Decides the head.
        new_head: Whether a missing head may start random.

    Returns:
        The tensors that the model reads.

    Raises:
        InputError: If one is missing, of another shape or number type, not finite, or read by no class of the family.
    """
    own = model.state_dict(keep_vars=True)
    prefix = f"{model.base_model_prefix}."
    bare = not any(k.startswith(prefix) for k in own)
    if bare:
        # the encoder without a head: a class with a head gave its keys a prefix
        own = {prefix + k: v for k, v in own.items()}
    if not any(k.startswith(prefix) for k in state):
        # saved from the bare encoder: its keys lack the prefix that the class with a head gives them
        # saved from the bare encoder: its keys lack the prefix that the class with a head gives them
        state = {k if k in own else prefix + k: v for k, v in state.items()}
    unread, given = _unread(model, own, state, folder, new_head or bare), state
    state = {k: v for k, v in state.items() if k in own}
    head = [k for k in own if not k.startswith(prefix)]
    wrong = [k for k in state if state[k].shape != own[k].shape]
    if wrong and new_head:
        # a head for another label set: train a new one
        state = {k: v for k, v in state.items() if k not in head}
        wrong = [k for k in wrong if k not in head]
    # the pooler is no part of an encoder's answer and a new head trains its own, but one that is there is taken over
    optional = (f"{prefix}pooler.",) if new_head or bare else ()
    lost = [k for k in _lost(own, state) if not k.startswith(optional)]
    where = str(folder.path)
    problems = [
        Problem(
            where,
            f"weight has another shape than config.json says: {k} {_sizes(state[k])} instead of {_sizes(own[k])}.",
        )
        for k in wrong[:_SHOWN]
    ]
    if rest := [k for k in lost if k not in head]:
        problems.append(Problem(where, f"{len(rest)} weights are missing, e.g. {_few(rest)}."))
    why = _noise(own, given, folder.family) if task.name is TaskName.FILL_MASK and not new_head else None
    if why is not None:
        problems.append(Problem(where, f"has no head for {task.name} that can be used: {why}.", _NOISE_FIX))
    elif (rest := [k for k in lost if k in head]) and not new_head:
        what = f"has no trained head for {task.name} ({', '.join(rest)} missing)."
        fix = "Fine-tune it first: pocketbert finetune RECIPE, or teacher.finetune in the recipe."
        problems.append(Problem(where, what, fix))
    if unread:
        what = f"{len(unread)} weights are read by no class of {folder.family.title}: {_few(unread)}."
        problems.append(Problem(where, what, "Remove them, or use the model_type that they belong to."))
    if problems := problems or [Problem(where, what) for what in _odd_numbers(own, state)]:
        raise InputError(problems)
    return {k.removeprefix(prefix): v for k, v in state.items()} if bare else state


def _noise(own: Mapping[str, Any], state: State, family: Family) -> str | None:
    """Why the masked-LM head of a checkpoint is noise; None where nothing says so."""
    unread = tuple(k for k in state if k not in own)
    return next((why for start, why in family.noise.items() if any(k.startswith(start) for k in unread)), None)


def _lost(own: Mapping[str, Any], state: State) -> list[str]:
    """Weights that are in the checkpoint under none of their names."""
    names = tied_names(own)
    given = {names.get(k, k) for k in own if k in state}
    return [k for k in own if names.get(k, k) not in given and not HARMLESS.search(k)]


def _odd_numbers(own: Mapping[str, Any], state: State) -> list[str]:
    """Weights that are no floating-point numbers, or not finite as fp32."""
    types = [f"{k} ({str(v.dtype).removeprefix('torch.')})" for k, v in state.items() if not _is_number(own[k], v)]
    if types:
        return [f"{len(types)} weights are not floating-point numbers: {_few(types)}."]
    real = {k: v for k, v in state.items() if v.is_floating_point() and v.numel()}
    # a NaN is not smaller than anything
    broken = [k for k, v in real.items() if not v.abs().max().item() < LARGEST]
    return (
        [f"NaN, infinite or immense numbers (from {LARGEST:g}) in {_few(broken)} ({len(broken)} in all)."]
        if broken
        else []
    )


def _is_number(own: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a value can be taken as it is: 16, 32 or 64 bits, floating-point where the model's own is."""
    if not own.is_floating_point():
        return not value.is_complex()
    return value.is_floating_point() and value.element_size() >= 2


def _unread(model: Any, own: Mapping[str, Any], state: State, folder: ModelFolder, pooler: bool) -> list[str]:
    """Tensors of a checkpoint that neither this class reads nor a head of another task would.

    Args:
        model: The class with the task's head.
        own: Its weights, the encoder's with prefix.
        state: The checkpoint, the encoder's with prefix.
        folder: Where it comes from.
        pooler: Whether a pooler that the class does not have is of no consequence in any case.
    """
    prefix = f"{model.base_model_prefix}."
    # a class without a pooler takes the encoder's states themselves; one whose pooler computes nothing was trained without
    pooler = pooler or not any(n.endswith("pooler") and m is not None for n, m in model.named_modules())
    rest = [
        k
        for k in state
        if k not in own
        and not HARMLESS.search(k)
        and not k.removeprefix(prefix).startswith(folder.family.unread)
        and not (pooler and k.startswith(f"{prefix}pooler."))
    ]
    heads = _other_heads(model, folder.family.by_layer) if rest else set()
    return [k for k in rest if k not in heads and k.removeprefix(prefix) not in heads]


def _other_heads(model: Any, by_layer: Sequence[str]) -> set[str]:
    """Names of the weights outside the encoder, in every class that transformers has for the family."""
    import torch
    import transformers

    config = copy.deepcopy(model.config)
    config.num_hidden_layers, config.num_labels = 1, 2  # classes for question-answering take no other number
    for name in by_layer:
        setattr(config, name, getattr(config, name)[:1])
    prefix = f"{model.base_model_prefix}."
    out: set[str] = set()
    for name in _OTHER_HEADS:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            with torch.device("meta"):
                made = auto.from_config(config)
            out |= {k for k in made.state_dict() if not k.startswith(prefix)}
    return out


def tied_names(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For each weight the first name it goes by: a masked-language model's decoder is its embedding table."""
    first: dict[int, str] = {}
    # by object: the weights of a sketch have no address
    return {name: first.setdefault(id(value), name) for name, value in state.items() if value.numel()}


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(n if len(n) <= 100 else f"{n[:97]}..." for n in names[:_SHOWN])
    return f"{shown}, ..." if len(names) > _SHOWN else shown


def _sizes(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(value.shape)
