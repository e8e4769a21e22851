"""Optimizers: AdamW with a warm-up, and LAMB, which trained BERT in large batches and MobileBERT.

A `Course` creates the optimizer of a training stage and sets the learning rates before each step. An objective may have
one in its attribute ``course``; objectives without one are trained with `AdamWCourse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.types import Schedule


class Course(Protocol):
    """Interface of an optimizer together with its learning-rate schedule."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the optimizer for a model's trainable weights.

        Its state has the fields ``step``, ``exp_avg`` and ``exp_avg_sq``, which checkpoints store.
        """
        ...

    def prepare(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set the optimizer's learning rates for a step, before its forward pass. They depend on the step alone.

        Args:
            optimizer: The optimizer that the method `optimizer` returned.
            step: Number, from 0, of the step about to be made.

        Returns:
            The largest learning rate.
        """
        ...


class AdamWCourse:
    """AdamW with one learning rate for all weights and a warm-up. Biases and norms have no weight decay.

    Args:
        settings: Number of steps and learning rates.
    """

    def __init__(self, settings: Optimisation) -> None:
        self._settings = settings

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create a fused AdamW over a model's trainable weights."""
        settings = self._settings
        trained = [p for p in model.parameters() if p.requires_grad]
        return torch.optim.AdamW(
            split_decay_groups(trained, settings.weight_decay),
            lr=settings.lr,
            betas=(0.9, settings.beta2),
            eps=settings.eps,
            fused=True,
        )

    def prepare(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set a step's learning rate in all parameter groups of the optimizer, and return it."""
        rate = _learning_rate(step, self._settings)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate


def _learning_rate(step: int, settings: Optimisation) -> float:
    """Return the learning rate of a step (from 0): a linear warm-up, then constant or a linear decay to 0."""
    warmup_steps = max(1, round(settings.warmup * settings.steps))
    if step < warmup_steps:
        return settings.lr * (step + 1) / warmup_steps
    if settings.schedule is Schedule.CONSTANT:
        return settings.lr
    return settings.lr * max(0.0, (settings.steps - step) / max(1, settings.steps - warmup_steps))


def split_decay_groups(parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters into two optimizer groups: matrices with weight decay, and vectors (biases, norms) without."""
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam with the step of each weight matrix scaled to the matrix's norm times the learning rate.

    You et al. 2020, arXiv 1904.00962, Algorithm 2, with phi the identity; ``x`` a parameter, ``g`` its gradient::

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        u = m / (sqrt(v) + eps) + decay x
        x = x - lr (|x| / |u|) u

    As in Google's code for BERT and MobileBERT, and unlike Algorithm 2, m and v are not divided by ``1 - beta^t``: the ratio
    of the norms makes up for most of it. Parameters of one dimension (biases, scales and shifts of norms) have a ratio of 1,
    as have parameters and updates of norm 0. Weight decay applies to a parameter group, as in AdamW; put parameters of one
    dimension into a group without it.

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
        """Update every parameter that has a gradient by one LAMB step.

        Args:
            closure: Function that computes the loss and its gradients anew, and returns the loss.

        Returns:
            The result of the closure; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update the parameters of one group by LAMB's equations, with one fused call per operation."""
        beta1, beta2 = group["betas"]
        gradients = [p.grad for p in parameters if p.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["step"] = torch.zeros((), dtype=torch.float32)
                for field in ("exp_avg", "exp_avg_sq"):
                    self.state[parameter][field] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        states = [self.state[p] for p in parameters]
        first, second = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        torch._foreach_add_([s["step"] for s in states], 1.0)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        root = torch._foreach_sqrt(second)
        torch._foreach_add_(root, group["eps"])
        update = torch._foreach_div(first, root)
        if group["weight_decay"]:
            torch._foreach_add_(update, parameters, alpha=group["weight_decay"])
        matrices = [n for n, p in enumerate(parameters) if p.ndim > 1]
        if matrices:
            matrix_updates = [update[n] for n in matrices]
            # |x| / |u| of each matrix, 1 where either norm is 0; never read back from the device
            weight_norm = torch.stack(torch._foreach_norm([parameters[n] for n in matrices]))
            update_norm = torch.stack(torch._foreach_norm(matrix_updates))
            ratios = torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
            torch._foreach_mul_(matrix_updates, list(ratios.unbind()))
        torch._foreach_add_(parameters, update, alpha=-group["lr"])
