"""Training stops at a loss, a gradient or a weight that is NaN or infinite, before weights or checkpoints hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from pocketbert.core.errors import GateError

ATTEMPTS = 30
"""How often a step is tried with ever smaller loss scales: 30 halvings of the usual first scale, 65,536, lead to 2^-14, the
smallest normal number of fp16. Gradients that do not fit then never will."""


class NotFiniteError(GateError):
    """A training step met a NaN or an infinity; exit code 3.

    The optimiser did not use what was not finite, and no checkpoint holds it.

    Args:
        purpose: What was trained (``finetune``, ``distill.0``).
        step: The step, from 1, as in ``metrics.jsonl``.
        message: Values, what is kept, and the fix.
    """

    def __init__(self, purpose: str, step: int, message: str) -> None:
        self.purpose, self.step = purpose, step
        super().__init__([f"{purpose}: {message}"])


@dataclass(frozen=True)
class Attempt:
    """What a step computed, before the optimiser uses it. All processes hold the same values, so they decide alike.

    Attributes:
        loss: Weighted loss over the rows of all processes.
        terms: The terms that it is the weighted sum of, by name.
        norm: Global norm of the gradients, before they are clipped.
        rate: Learning rate; the largest where there are several.
    """

    loss: float
    terms: Mapping[str, float]
    norm: float
    rate: float

    @property
    def loss_is_finite(self) -> bool:
        """Whether the loss and each of its terms are numbers."""
        return all(map(isfinite, (self.loss, *self.terms.values())))

    @property
    def finite(self) -> bool:
        """Whether the optimiser may use the gradients."""
        return self.loss_is_finite and isfinite(self.norm)

    def __str__(self) -> str:
        """What is not finite, with the terms that are not before the others."""
        ordered = sorted(self.terms.items(), key=lambda term: isfinite(term[1]))
        terms = f"terms: {', '.join(f'{name} {value:.4g}' for name, value in ordered) or 'none'}"
        if self.loss_is_finite:
            return f"the gradient norm is {self.norm:.4g} although the loss is {self.loss:.4g} ({terms})"
        return f"the loss is {self.loss:.4g} ({terms})"


def first_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds a NaN or an infinity; None if there is none.

    Args:
        named: Tensors of any shape with their names.
    """
    for name, value in named:
        # a sum shows every NaN and infinity at a third of the cost; what is finite can overflow in it
        if not (isfinite(float(value.detach().sum())) or bool(torch.isfinite(value).all())):
            return name
    return None
