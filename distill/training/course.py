"""What moves the weights in a stage, and how fast at each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from pocketbert.core.recipe.updates import Optimisation, Updates
from pocketbert.core.types import Schedule


class Course(Protocol):
    """An optimiser, and what is set before each of its steps."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of a model's trainable weights; its state has the fields ``step``, ``exp_avg`` and ``exp_avg_sq``."""
        ...

    def prepare(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set what a step needs, before its forward pass: a function of the step, and not of the steps before.

        Args:
            optimizer: As made above.
            step: The step about to be made, from 0.

        Returns:
            The largest learning rate.
        """
        ...


class AdamWCourse:
    """AdamW, one learning rate for all weights, no decay on biases and norms, which have one dimension.

    Args:
        settings: Steps and rates.
    """

    def __init__(self, settings: Optimisation) -> None:
        self._settings = settings

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW in one fused pass."""
        settings = self._settings
        trained = [p for p in model.parameters() if p.requires_grad]
        return torch.optim.AdamW(
            decay_groups(trained, settings.weight_decay),
            lr=settings.lr,
            betas=(0.9, settings.beta2),
            eps=settings.eps,
            fused=True,
        )

    def prepare(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Give all groups the step's learning rate, and return it."""
        rate = learning_rate(step, self._settings)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate


def decay_groups(parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: the matrices, and what has one dimension (biases, scales and shifts of norms), without decay.

    Args:
        parameters: What is trained.
        weight_decay: Of the matrices.
    """
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


@runtime_checkable
class WithCourse(Protocol):
    """An objective that decides about optimiser and learning rates too."""

    @property
    def course(self) -> Course:
        """What moves the weights."""
        ...


def course_of(settings: Updates, objective: object) -> Course:
    """The course of an objective that has one, else AdamW with the settings' schedule.

    Raises:
        ValueError: If the objective has none, and the settings have no schedule.
    """
    if isinstance(objective, WithCourse):
        return objective.course
    if not isinstance(settings, Optimisation):
        raise ValueError(f"{type(settings).__name__} has no schedule of one learning rate: give the objective a course")
    return AdamWCourse(settings)


def learning_rate(step: int, settings: Optimisation) -> float:
    """Linear warm-up, then linear decay to 0, or none.

    Args:
        step: The step about to be made, from 0.
        settings: Peak rate, steps, warm-up share and schedule.
    """
    warm = max(1, round(settings.warmup * settings.steps))
    if step < warm:
        return settings.lr * (step + 1) / warm
    if settings.schedule is Schedule.CONSTANT:
        return settings.lr
    return settings.lr * max(0.0, (settings.steps - step) / max(1, settings.steps - warm))
