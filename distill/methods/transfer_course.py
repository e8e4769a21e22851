"""How a MobileBERT's layers are moved: LAMB, with a learning rate for each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pocketbert.core.recipe.updates import Updates
from pocketbert.distill.methods.transfer_phases import TransferPhases
from pocketbert.distill.training.course import decay_groups
from pocketbert.distill.training.lamb import Lamb


class TransferCourse:
    """LAMB with a learning rate per layer that the strategy sets.

    A phase begins with moments at 0, in all groups. What has rate 0 gets no gradient: neither momentum nor the norm to
    clip knows of it, and nothing is computed for it. The released code keeps the moments of such groups at 0, but clips
    with their gradients.

    Args:
        phases: The strategy.
        layer_path: Where the model's encoder layers stand.
        settings: Peak learning rate, weight decay, beta2 and epsilon.
    """

    def __init__(self, phases: TransferPhases, layer_path: str, settings: Updates) -> None:
        self._phases = replace(phases, lr=settings.lr)
        self._path, self._settings = layer_path, settings

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """LAMB over `layer_groups`."""
        own = self._settings
        groups = layer_groups(model, self._path, own.weight_decay)
        return Lamb(groups, lr=own.lr, betas=(0.9, own.beta2), eps=own.eps)

    def prepare(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Give every group its learning rate, and the largest one back."""
        if self._phases.begins(step):
            optimizer.state.clear()
        rates = self._phases.learning_rates(step)
        for group in optimizer.param_groups:
            group["lr"] = rates.rest if group["layer"] is None else rates.layers[group["layer"]]
            for parameter in group["params"]:
                parameter.requires_grad_(group["lr"] > 0)
        return max(rates.rest, *rates.layers)


def layer_groups(model: nn.Module, layer_path: str, weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: those of each encoder layer, and the rest, each with and without weight decay.

    Parameters of one dimension (biases, scales and shifts of norms) have no decay. Each group names its ``layer``, from 0;
    None is the rest. What is not trained is in none.

    Args:
        model: The student.
        layer_path: Where its encoder layers stand, such as ``mobilebert.encoder.layer``.
        weight_decay: Of the matrices.

    Raises:
        ValueError: If there are no layers, or two share a parameter and could not have two rates.
    """
    found: Any = model
    for part in layer_path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, nn.ModuleList) or not len(found):
        raise ValueError(f"no list of layers at '{layer_path}' of {type(model).__name__}")
    owner: dict[int, int] = {}
    for number, layer in enumerate(found):
        for name, parameter in layer.named_parameters():
            if owner.setdefault(id(parameter), number) != number:
                raise ValueError(f"layers {owner[id(parameter)]} and {number} share the parameter '{name}'")
    trained = [p for p in model.parameters() if p.requires_grad]
    out: list[dict[str, Any]] = []
    for place in (*range(len(found)), None):
        own = [p for p in trained if owner.get(id(p)) == place]
        out += [{**group, "layer": place} for group in decay_groups(own, weight_decay) if group["params"]]
    return out
