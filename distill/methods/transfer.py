"""Which layers learn when, and how fast: progressive, joint and auxiliary knowledge transfer (MobileBERT) as data.

Sun et al. 2020, arXiv 2004.02984, section "Training strategies"; numbers of the released code (google-research/mobilebert,
distill_util.py, lamb_optimizer.py, optimization.py). Layers and steps are counted from 0.

In the released code the first step of a phase has rate 0, still belongs to the phase before, and sets all moments to 0.
Here that step is not lost; moments are set to 0 as there, so that a layer's first steps are a start, not a jump.
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
from pocketbert.distill.training.optimizer import Lamb, decay_groups

LEARNING_RATE = 1.5e-3
"""Peak of all phases."""
BATCH = 2048
"""Rows of a step."""
STEPS_PER_LAYER = 10_000
"""Of transfer: 240,000 for MobileBERT's 24 layers."""
PRETRAINING_STEPS = 500_000
WARMUP_STEPS = 10_000
"""Of pre-training distillation."""
LAST_RATE = 1e-4
"""Where pre-training distillation ends, as a share of the peak."""
CURRENT_RATE = 3.0
"""Multiplier of the layer whose turn it is."""
FINISHED_RATE = 0.3
"""Multiplier of the layers below it: they are not frozen, only slow."""
PUBLISHED_DEPTH = 24


@dataclass(frozen=True)
class Rates:
    """One number for each part of a model: multipliers of the learning rate, or learning rates.

    Attributes:
        layers: For each encoder layer, bottom to top.
        rest: For everything outside the encoder: embeddings and heads.
    """

    layers: tuple[float, ...]
    rest: float

    def times(self, factor: float) -> Rates:
        """All of them times a factor."""
        return Rates(tuple(factor * rate for rate in self.layers), factor * self.rest)


@dataclass(frozen=True)
class Phase:
    """Steps in which the same losses are on and the same layers learn.

    Attributes:
        name: For logs, such as ``layer 3`` or ``pre-training distillation``.
        steps: How many.
        layers: Layers whose transfer losses are on.
        pretraining: Whether the loss of pre-training distillation is on.
        rates: Multipliers of the learning rate.
        warmup: Steps of a linear rise, then a linear fall to `LAST_RATE`; None for the course of transfer.
    """

    name: str
    steps: int
    layers: tuple[int, ...]
    pretraining: bool
    rates: Rates
    warmup: int | None = None

    def background(self, step: int) -> float:
        """The factor that all learning rates of the phase have in common, above 0 and at most 1.

        With ``s = (step + 1) / steps``: in transfer ``min(10 s, 0.9 + 0.1 sqrt(1 - s))``, a rise through the first tenth and
        a slow fall from 1 to 0.9; with a warm-up ``(step + 1) / warmup``, then ``1 - (1 - LAST_RATE) s``.

        Args:
            step: The step about to be made, from 0 in the phase.
        """
        done = (step + 1) / self.steps
        if self.warmup is None:
            return min(10 * done, 0.9 + 0.1 * sqrt(1 - done))
        if step < self.warmup:
            return (step + 1) / self.warmup
        return 1 - (1 - LAST_RATE) * done


@dataclass(frozen=True)
class TransferPhases:
    """A strategy of knowledge transfer from its first step to its last.

    Attributes:
        strategy: Its name.
        phases: One after the other.
        published: Steps of the whole as published, for students of this depth.
        lr: Peak learning rate.
    """

    strategy: str
    phases: tuple[Phase, ...]
    published: int
    lr: float = LEARNING_RATE

    @property
    def depth(self) -> int:
        """Encoder layers of the student."""
        return len(self.phases[0].rates.layers)

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return self._ends[-1]

    @property
    def name(self) -> str:
        """The strategy, with a note where there are fewer steps than published. No phase can have more."""
        if self.steps == self.published:
            return self.strategy
        return f"{self.strategy}, reduced to {self.steps:,} of {self.published:,} steps"

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(phase.steps for phase in self.phases))

    def number_of(self, step: int) -> int:
        """Number of the phase, from 0, that a step belongs to.

        Raises:
            ValueError: If there is no such step.
        """
        if not 0 <= step < self.steps:
            raise ValueError(f"step {step} of {self.steps}: there are steps 0 to {self.steps - 1}")
        return bisect_right(self._ends, step)

    def phase_of(self, step: int) -> Phase:
        """The phase that a step belongs to."""
        return self.phases[self.number_of(step)]

    def begins(self, step: int) -> bool:
        """Whether a step is the first of its phase."""
        return self._within(step) == 0

    def gates(self, step: int) -> tuple[float, ...]:
        """Weight of each layer's transfer losses: ``1 / depth`` where they are on, otherwise 0."""
        phase = self.phase_of(step)
        return tuple(1 / self.depth if layer in phase.layers else 0.0 for layer in range(self.depth))

    def rates(self, step: int) -> Rates:
        """Multiplier of the learning rate of each part."""
        return self.phase_of(step).rates

    def learning_rates(self, step: int) -> Rates:
        """Learning rate of each part: peak, times the phase's background, times the multiplier."""
        phase = self.phase_of(step)
        return phase.rates.times(self.lr * phase.background(self._within(step)))

    def reduced(self, steps: int, transfer: int | None = None, where: str = "distill.0") -> TransferPhases:
        """The same strategy in fewer steps, each phase and warm-up shortened alike; `name` tells.

        Args:
            steps: Of all phases together.
            transfer: Of those before pre-training distillation together; default their share in all.
            where: Recipe key of the stage, for errors.

        Raises:
            InputError: If a phase would have no step left, or there are more steps than now.
        """
        early = [phase for phase in self.phases if not phase.pretraining]
        late = self.phases[len(early) :]
        if transfer is None or not early or not late:
            return self._with(_shorter(self.phases, steps, f"{where}.steps", self.strategy))
        first = _shorter(early, transfer, f"{where}.transfer_steps", self.strategy)
        return self._with(first + _shorter(late, steps - transfer, f"{where}.steps", self.strategy))

    def with_embeddings(self) -> TransferPhases:
        """The same strategy with everything outside the encoder learning as the first layer does.

        Not published: for a student whose embeddings are no copy of its teacher's.
        """
        return self._with([replace(p, rates=replace(p.rates, rest=p.rates.layers[0])) for p in self.phases])

    def _with(self, phases: Sequence[Phase]) -> TransferPhases:
        return replace(self, phases=tuple(phases))

    def _within(self, step: int) -> int:
        number = self.number_of(step)
        return step - (self._ends[number - 1] if number else 0)


def progressive(depth: int = PUBLISHED_DEPTH) -> TransferPhases:
    """Plan layer after layer from the bottom, then pre-training distillation (PKT), as MobileBERT was trained.

    The layer whose turn it is learns at 3 times the rate, those below at 0.3 times, those above and everything outside the
    encoder not at all. In pre-training distillation all learn alike.

    Args:
        depth: Layers of the student and of the teacher.
    """
    turns = [
        Phase(f"layer {turn}", STEPS_PER_LAYER, (turn,), False, Rates(_turn_rates(turn, depth), 0.0))
        for turn in range(depth)
    ]
    return _published("progressive", *turns, _pretraining(depth))


def joint(depth: int = PUBLISHED_DEPTH) -> TransferPhases:
    """Plan all layers at once, with as many steps as in `progressive`, then pre-training distillation (JKT).

    The rates of the first phase were not published: here every layer has the plain rate on the course of transfer, and what is
    outside the encoder stays as it is, as in `progressive`.

    Args:
        depth: Layers of the student and of the teacher.
    """
    everything = tuple(range(depth))
    transfer = Phase("all layers", depth * STEPS_PER_LAYER, everything, False, Rates((1.0,) * depth, 0.0))
    return _published("joint", transfer, _pretraining(depth))


def auxiliary(depth: int = PUBLISHED_DEPTH) -> TransferPhases:
    """Plan one phase of all layers and pre-training distillation, with as many steps as `progressive` has (AKT).

    The rates were not published: here they take the course of pre-training distillation.

    Args:
        depth: Layers of the student and of the teacher.
    """
    steps = depth * STEPS_PER_LAYER + PRETRAINING_STEPS
    whole = replace(_pretraining(depth), name="all losses", steps=steps, layers=tuple(range(depth)))
    return _published("auxiliary", whole)


STRATEGIES = {
    Transfer.PROGRESSIVE: progressive,
    Transfer.JOINT: joint,
    Transfer.AUXILIARY: auxiliary,
}
"""What makes the published phases of each strategy, for a depth."""


def _turn_rates(turn: int, depth: int) -> tuple[float, ...]:
    return (FINISHED_RATE,) * turn + (CURRENT_RATE,) + (0.0,) * (depth - turn - 1)


def _pretraining(depth: int) -> Phase:
    rates = Rates((1.0,) * depth, 1.0)
    return Phase("pre-training distillation", PRETRAINING_STEPS, (), True, rates, WARMUP_STEPS)


def _published(strategy: str, *phases: Phase) -> TransferPhases:
    return TransferPhases(strategy, phases, sum(phase.steps for phase in phases))


def _shorter(phases: Sequence[Phase], steps: int, where: str, strategy: str) -> list[Phase]:
    """Phases in fewer steps, their shares as before."""
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
    ends = [(2 * end * steps + total) // (2 * total) for end in accumulate(p.steps for p in phases)]
    starts = [0, *ends[:-1]]
    return [_shortened(p, end - start) for p, start, end in zip(phases, starts, ends, strict=True)]


def _shortened(phase: Phase, steps: int) -> Phase:
    warmup = None if phase.warmup is None else max(1, round(phase.warmup * steps / phase.steps))
    return replace(phase, steps=steps, warmup=warmup)


# --- transfer_course ---
# How a MobileBERT's layers are moved: LAMB, with a learning rate for each layer.


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
