"""ReLU6 in place of ReLU: what feed-forward parts make lies between 0 and 6, whatever the text.

Source: the configuration for quantization-aware training of MobileBERT (Sun et al. 2020, arXiv 2004.02984),
config/uncased_L-24_H-128_B-512_A-4_F-4_OPT_QAT.json of the original code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.models.activation import ACTIVATION_KEYS, CLIPPED, HIGHEST, activation_of, not_clippable


def clip_activations(student: Any, where: str) -> Callable[[], None]:
    """Put relu6 in place of a model's relu, in its modules and in its configuration.

    Args:
        student: A transformers model. **It is changed in place.**
        where: Recipe key of the choice, for errors.

    Returns:
        A function that undoes it.

    Raises:
        InputError: If the activation is another one, or does not follow from the configuration.
    """
    config = student.config
    name = activation_of(config.to_dict())
    if name == CLIPPED:
        return lambda: None
    paths = [path for path, module in student.named_modules() if type(module) is nn.ReLU]
    if name != "relu" or not paths:
        raise InputError(not_clippable(name, where))
    key = next(k for k in ACTIVATION_KEYS if getattr(config, k, None) == name)
    _check_rebuilt(student, key, paths, where)
    _put(student, key, CLIPPED, {path: nn.ReLU6() for path in paths})
    return lambda: _put(student, key, name, {path: nn.ReLU() for path in paths})


def is_clip(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a call of a function of torch computes relu6.

    Args:
        function: The function, as `torch.overrides.TorchFunctionMode` gets it.
        arguments: What it is called with.
        named: What it is called with by name.
    """
    if function is F.relu6:
        return True
    ends = {**dict(zip(("min_val", "max_val"), arguments[1:3], strict=False)), **named}
    return function is F.hardtanh and (ends.get("min_val"), ends.get("max_val")) == (0.0, HIGHEST)


def _check_rebuilt(student: Any, key: str, paths: list[str], where: str) -> None:
    """Refuse a model that its changed configuration would not build again: its folder would be another model."""
    config = copy.deepcopy(student.config)
    setattr(config, key, CLIPPED)
    with torch.device("meta"):
        twin = type(student)(config)
    if [path for path, module in twin.named_modules() if isinstance(module, nn.ReLU6)] != paths:
        what = f"a model of {CLIPPED} cannot be built from config.json: {key} is not read at every relu of the student."
        raise InputError(Problem(where, what, "Leave activation out: its ranges are learned."))


def _put(student: Any, key: str, name: str, modules: dict[str, nn.Module]) -> None:
    setattr(student.config, key, name)
    for path, module in modules.items():
        parent, _, own = path.rpartition(".")
        setattr(student.get_submodule(parent), own, module)
