"""Knowledge transfer of MobileBERT: which layers learn in which steps, and at which learning rates.

`progressive`, `joint` and `auxiliary` return the published strategies as `TransferPhases`; `TransferPhases.reduced`
shortens them to the steps of a stage. `TransferCourse` applies them to an optimizer.

Sources: Sun et al. 2020, arXiv 2004.02984, section "Training strategies"; numbers of the released code
(google-research/mobilebert, distill_util.py, lamb_optimizer.py, optimization.py). Layers and steps are counted from 0.

In the released code the first step of a phase has rate 0, still belongs to the phase before, and sets all moments to 0.
Here that step is not lost; moments are set to 0 as there, so that a layer starts without the momentum of the phase
before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import sqrt
from typing import Any

import torch
from torch import nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.recipe.sections import Updates
from pocketbert.core.types import Transfer
from pocketbert.distill.training.optimizer import Lamb, split_decay_groups

PUBLISHED_BATCH = 2048
"""Published rows of a step."""
STEPS_PER_LAYER = 10_000
"""Published transfer steps: 240,000 for MobileBERT's 24 layers."""

_PEAK_RATE = 1.5e-3
_PRETRAINING_STEPS = 500_000
_PRETRAINING_WARMUP_STEPS = 10_000
_LAST_RATE = 1e-4
"""Learning rate at the end of pre-training distillation, as a share of the peak."""
_CURRENT_RATE = 3.0
"""Multiplier of the learning rate of the layer that is transferred."""
_FINISHED_RATE = 0.3
"""Multiplier of the layers below it: they are not frozen, only slow."""
_PUBLISHED_DEPTH = 24


# --- phases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """One number for each encoder layer and one for the rest of the model: learning rates, or multipliers of one.

    Attributes:
        layers: Rate of each encoder layer, bottom to top.
        rest: Rate of everything outside the encoder: embeddings and heads.
    """

    layers: tuple[float, ...]
    rest: float


@dataclass(frozen=True)
class Phase:
    """Consecutive training steps in which the same loss terms are active and the same layers are trained.

    Attributes:
        name: Name for logs, such as ``layer 3`` or ``pre-training distillation``.
        steps: Number of steps.
        layers: Layers whose transfer losses are computed.
        pretraining: Whether the loss of pre-training distillation is computed.
        rates: Multipliers of the learning rate for each layer and the rest of the model.
        warmup: Steps of a linear rise, then a linear fall to 1e-4 of the peak; None for the schedule of transfer.
    """

    name: str
    steps: int
    layers: tuple[int, ...]
    pretraining: bool
    rates: Rates
    warmup: int | None = None

    def background(self, step: int) -> float:
        """Return the schedule's factor on all learning rates at a step of the phase, above 0 and at most 1.

        With ``s = (step + 1) / steps``: in transfer ``min(10 s, 0.9 + 0.1 sqrt(1 - s))``, a rise through the first
        tenth and a slow fall from 1 to 0.9; with a warm-up ``(step + 1) / warmup``, then ``1 - (1 - 1e-4) s``.

        Args:
            step: The step about to be made, from 0 in the phase.
        """
        done = (step + 1) / self.steps
        if self.warmup is None:
            return min(10 * done, 0.9 + 0.1 * sqrt(1 - done))
        if step < self.warmup:
            return (step + 1) / self.warmup
        return 1 - (1 - _LAST_RATE) * done


@dataclass(frozen=True)
class TransferPhases:
    """The phases of a knowledge transfer in order, from the first training step to the last.

    Attributes:
        strategy: Name of the strategy.
        phases: The phases in order.
        published: Number of steps that the strategy has as published, all phases together, for students of this depth.
        lr: Peak learning rate.
    """

    strategy: str
    phases: tuple[Phase, ...]
    published: int
    lr: float = _PEAK_RATE

    @property
    def depth(self) -> int:
        """Number of encoder layers of the student."""
        return len(self.phases[0].rates.layers)

    @property
    def steps(self) -> int:
        """Number of training steps of all phases together."""
        return self._ends[-1]

    @property
    def name(self) -> str:
        """Name of the strategy, followed by the numbers of steps if there are fewer steps than published.

        No phase can have more steps than published.
        """
        if self.steps == self.published:
            return self.strategy
        return f"{self.strategy}, reduced to {self.steps:,} of {self.published:,} steps"

    @cached_property
    def _ends(self) -> list[int]:
        """Number of steps up to the end of each phase."""
        return list(accumulate(phase.steps for phase in self.phases))

    def number_of(self, step: int) -> int:
        """Return the number, from 0, of the phase in which a training step lies.

        Raises:
            ValueError: If there is no such step.
        """
        if not 0 <= step < self.steps:
            raise ValueError(f"step {step} of {self.steps}: there are steps 0 to {self.steps - 1}")
        return bisect_right(self._ends, step)

    def phase_of(self, step: int) -> Phase:
        """Return the phase in which a training step lies."""
        return self.phases[self.number_of(step)]

    def begins(self, step: int) -> bool:
        """Return whether a step is the first of its phase."""
        return self._step_in_phase(step) == 0

    def gates(self, step: int) -> tuple[float, ...]:
        """Return the weight of each layer's transfer loss at a step: ``1 / depth`` in its phase, otherwise 0."""
        phase = self.phase_of(step)
        return tuple(1 / self.depth if layer in phase.layers else 0.0 for layer in range(self.depth))

    def rates(self, step: int) -> Rates:
        """Return the multipliers of the learning rate of each layer and of the rest of the model at a step."""
        return self.phase_of(step).rates

    def learning_rates(self, step: int) -> Rates:
        """Return the learning rate of each layer and of the rest of the model at a training step."""
        phase = self.phase_of(step)
        factor = self.lr * phase.background(self._step_in_phase(step))
        return Rates(tuple(factor * rate for rate in phase.rates.layers), factor * phase.rates.rest)

    def reduced(self, steps: int, transfer: int | None = None, where: str = "distill.0") -> TransferPhases:
        """Return a copy with fewer or as many training steps: phases and warm-ups are shortened in proportion.

        Args:
            steps: Number of steps of all phases together.
            transfer: Number of steps of the phases before pre-training distillation together; by default these phases
                are shortened like the others. Not read if all phases or none are pre-training distillation.
            where: Recipe key of the stage, which error messages name.

        Raises:
            InputError: If a phase would have no step left, or more steps are wanted than there are now.
        """
        early = [phase for phase in self.phases if not phase.pretraining]
        late = self.phases[len(early) :]
        if transfer is None or not early or not late:
            shorter = _shorten(self.phases, steps, f"{where}.steps", self.strategy)
        else:
            shorter = _shorten(early, transfer, f"{where}.transfer_steps", self.strategy)
            shorter += _shorten(late, steps - transfer, f"{where}.steps", self.strategy)
        return replace(self, phases=tuple(shorter))

    def with_embeddings(self) -> TransferPhases:
        """Return a copy in which embeddings and heads are trained too, at the learning rates of the first layer.

        This is not in the paper. It is meant for a student whose embeddings are no copy of its teacher's.
        """
        phases = [replace(p, rates=replace(p.rates, rest=p.rates.layers[0])) for p in self.phases]
        return replace(self, phases=tuple(phases))

    def _step_in_phase(self, step: int) -> int:
        """Return the number of a training step, from 0, counted within its phase."""
        number = self.number_of(step)
        return step - (self._ends[number - 1] if number else 0)


def _shorten(phases: Sequence[Phase], steps: int, where: str, strategy: str) -> list[Phase]:
    """Return copies of phases whose numbers of steps are reduced in proportion to `steps` in all.

    Raises InputError if a phase would have no step left, or `steps` is more than the phases have now.
    """
    total = sum(phase.steps for phase in phases)
    least = -(-total // min(phase.steps for phase in phases))
    if not least <= steps <= total:
        raise InputError(
            Problem(
                where,
                f"{steps:,} steps do not divide into the {len(phases)} phases of {strategy} transfer.",
                f"Set {where.rpartition('.')[2]} from {least:,} to {total:,}.",
            )
        )
    shorter, start = list[Phase](), 0
    for phase, old_end in zip(phases, accumulate(phase.steps for phase in phases), strict=True):
        end = (2 * old_end * steps + total) // (2 * total)
        warmup = None if phase.warmup is None else max(1, round(phase.warmup * (end - start) / phase.steps))
        shorter.append(replace(phase, steps=end - start, warmup=warmup))
        start = end
    return shorter


# --- the published strategies -----------------------------------------------------------------------------------------


def progressive(depth: int = _PUBLISHED_DEPTH) -> TransferPhases:
    """Return MobileBERT's strategy (PKT): one phase per layer from the bottom up, then pre-training distillation.

    The layer that is transferred learns at 3 times the rate, those below it at 0.3 times; the layers above it and
    everything outside the encoder are not trained. In pre-training distillation all learn at the same rate.

    Args:
        depth: Number of layers of the student, and of the teacher.
    """
    phases = []
    for layer in range(depth):
        multipliers = (_FINISHED_RATE,) * layer + (_CURRENT_RATE,) + (0.0,) * (depth - layer - 1)
        phases.append(Phase(f"layer {layer}", STEPS_PER_LAYER, (layer,), False, Rates(multipliers, 0.0)))
    return _published("progressive", *phases, _pretraining_phase(depth))


def joint(depth: int = _PUBLISHED_DEPTH) -> TransferPhases:
    """Return the strategy JKT: one phase that transfers all layers at once, then pre-training distillation.

    The first phase has as many steps as the layers of `progressive` have together. The rates of the first phase were
    not published: here all layers learn at the same rate, and what is outside the encoder is not trained, as in
    `progressive`.

    Args:
        depth: Number of layers of the student, and of the teacher.
    """
    layers = tuple(range(depth))
    transfer = Phase("all layers", depth * STEPS_PER_LAYER, layers, False, Rates((1.0,) * depth, 0.0))
    return _published("joint", transfer, _pretraining_phase(depth))


def auxiliary(depth: int = _PUBLISHED_DEPTH) -> TransferPhases:
    """Return the strategy AKT: a single phase that trains all layers and pre-training distillation together.

    It has as many steps as `progressive`. The rates were not published: here they have the schedule of pre-training
    distillation.

    Args:
        depth: Number of layers of the student, and of the teacher.
    """
    steps = depth * STEPS_PER_LAYER + _PRETRAINING_STEPS
    phase = replace(_pretraining_phase(depth), name="all losses", steps=steps, layers=tuple(range(depth)))
    return _published("auxiliary", phase)


STRATEGIES = {
    Transfer.PROGRESSIVE: progressive,
    Transfer.JOINT: joint,
    Transfer.AUXILIARY: auxiliary,
}
"""Function that returns the published phases of a strategy for a depth."""


def _pretraining_phase(depth: int) -> Phase:
    """Return the phase of pre-training distillation, in which all layers learn at the same rate."""
    rates = Rates((1.0,) * depth, 1.0)
    return Phase("pre-training distillation", _PRETRAINING_STEPS, (), True, rates, _PRETRAINING_WARMUP_STEPS)


def _published(strategy: str, *phases: Phase) -> TransferPhases:
    """Return a strategy of the given phases, which counts their steps as the published number of steps."""
    return TransferPhases(strategy, phases, sum(phase.steps for phase in phases))


# --- the optimizer ----------------------------------------------------------------------------------------------------


class TransferCourse:
    """LAMB with a learning rate for each encoder layer, as `TransferPhases` sets it for each step.

    At the beginning of a phase all moments are set to 0. Parameters with rate 0 get no gradient: they enter neither
    momentum nor the norm to clip, and nothing is computed for them. The released code keeps their moments at 0, but
    clips with their gradients.

    Args:
        phases: The phases of the strategy.
        layer_path: Dotted path of the model's encoder layers.
        settings: Peak learning rate, weight decay, beta2 and epsilon.
    """

    def __init__(self, phases: TransferPhases, layer_path: str, settings: Updates) -> None:
        self._phases = replace(phases, lr=settings.lr)
        self._path, self._settings = layer_path, settings

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create LAMB with separate parameter groups for each encoder layer and for the rest of the model."""
        settings = self._settings
        groups = _layer_groups(model, self._path, settings.weight_decay)
        return Lamb(groups, lr=settings.lr, betas=(0.9, settings.beta2), eps=settings.eps)

    def prepare(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set the learning rate of every parameter group for a step, and return the largest rate.

        At the first step of a phase the optimizer's moments are cleared. Groups with rate 0 are frozen.
        """
        if self._phases.begins(step):
            optimizer.state.clear()
        rates = self._phases.learning_rates(step)
        for group in optimizer.param_groups:
            group["lr"] = rates.rest if group["layer"] is None else rates.layers[group["layer"]]
            for parameter in group["params"]:
                parameter.requires_grad_(group["lr"] > 0)
        return max(rates.rest, *rates.layers)


def _layer_groups(model: nn.Module, layer_path: str, weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """Return optimizer groups of the trained parameters: for each encoder layer one with and one without weight decay.

    Parameters of one dimension (biases, scales and shifts of norms) have no decay. The key ``layer`` of a group is the
    number of the layer, from 0, or None for everything outside the encoder. Raises ValueError if there are no layers at
    the path, or two layers share a parameter and could not have two rates.
    """
    layers: Any = model
    for attribute in layer_path.split("."):
        layers = getattr(layers, attribute, None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        raise ValueError(f"no list of layers at '{layer_path}' of {type(model).__name__}")
    layer_of: dict[int, int] = {}
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            if layer_of.setdefault(id(parameter), number) != number:
                raise ValueError(f"layers {layer_of[id(parameter)]} and {number} share the parameter '{name}'")
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = []
    for layer_number in (*range(len(layers)), None):
        members = [p for p in trained if layer_of.get(id(p)) == layer_number]
        groups += [{**g, "layer": layer_number} for g in split_decay_groups(members, weight_decay) if g["params"]]
    return groups
