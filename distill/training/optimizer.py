"""LAMB, the optimiser that BERT's large-batch pre-training and MobileBERT were trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from pocketbert.core.recipe.sections import Optimisation, Updates
from pocketbert.core.types import Schedule

# --- course ---
# What moves the weights in a stage, and how fast at each step.


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


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam with the step of each weight matrix scaled to the matrix's norm times the learning rate.

    You et al. 2020, arXiv 1904.00962, Algorithm 2, with phi the identity; ``x`` a parameter, ``g`` its gradient::

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        u = m / (sqrt(v) + eps) + decay x
        x = x - lr (|x| / |u|) u

    As in Google's code for BERT and MobileBERT, and unlike Algorithm 2, m and v are not divided by ``1 - beta^t``: the ratio
    of the norms makes up for most of it. Parameters of one dimension (biases, scales and shifts of norms) have a ratio of 1,
    as does what is 0 or would not move. Weight decay is a matter of the parameter's group, as in AdamW; leave these without.

    State per parameter: ``step``, ``exp_avg`` and ``exp_avg_sq``, under the names that torch's AdamW gives them.

    Args:
        params: Parameters, or groups of them with settings of their own; dense, all on one device.
        lr: Learning rate.
        betas: Decay of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Share of the parameter in the update.

    Raises:
        ValueError: If a setting is out of its range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        wrong = [
            f"{name} is {value}, allowed: {allowed}"
            for name, value, allowed, fits in (
                ("lr", lr, "0 and above", lr >= 0),
                ("betas", betas, "0 to below 1", all(0 <= beta < 1 for beta in betas)),
                ("eps", eps, "above 0", eps > 0),
                ("weight_decay", weight_decay, "0 and above", weight_decay >= 0),
            )
            if not fits
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient.

        Args:
            closure: Computes the loss and its gradients anew.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._move(params, group)
        return loss

    def _move(self, params: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        gradients = [p.grad for p in params if p.grad is not None]
        states = [self._state(p) for p in params]
        first, second = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        torch._foreach_add_([s["step"] for s in states], 1.0)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_add_(scale, group["eps"])
        update = torch._foreach_div(first, scale)
        if group["weight_decay"]:
            torch._foreach_add_(update, params, alpha=group["weight_decay"])
        matrices = [n for n, p in enumerate(params) if p.ndim > 1]
        if matrices:
            moved = [update[n] for n in matrices]
            torch._foreach_mul_(moved, _ratios([params[n] for n in matrices], moved))
        torch._foreach_add_(params, update, alpha=-group["lr"])

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def _ratios(params: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """``|x| / |u|`` of each pair, 1 where either norm is 0; never read back from the device."""
    size, length = (torch.stack(torch._foreach_norm(each)) for each in (params, updates))
    return list(torch.where((size > 0) & (length > 0), size / length, 1.0).unbind())
