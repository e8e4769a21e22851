"""Training stops at a loss, a gradient or a weight that is NaN or infinite, before weights or checkpoints hold it.

The loop describes each computed step as a `StepResult` and lets the optimizer use it only if it is finite. Before a
checkpoint is written, `first_not_finite` searches weights and moments. `NonFiniteErrors` creates the error, which names
what was not finite, which checkpoint is kept, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor, nn

from pocketbert.core.errors import GateError
from pocketbert.core.recipe.sections import Updates
from pocketbert.distill.training.progress import Progress


class NotFiniteError(GateError):
    """Raised when a training step computes a NaN or an infinity. The program then ends with exit code 3.

    The optimiser did not use the numbers that are not finite, and no checkpoint contains them.

    Args:
        purpose: What was trained (``finetune``, ``distill.0``).
        step: The step, from 1, as in ``metrics.jsonl``.
        message: What was not finite, which checkpoint is kept, and the fix.
    """

    def __init__(self, purpose: str, step: int, message: str) -> None:
        self.purpose, self.step = purpose, step
        super().__init__([f"{purpose}: {message}"])


@dataclass(frozen=True)
class StepResult:
    """Loss, terms and gradient norm of a training step before the optimizer uses them; the same in all processes.

    Attributes:
        loss: Weighted loss over the rows of all processes.
        terms: The unweighted terms of the loss, by name.
        norm: Global norm of the gradients, before they are clipped.
        rate: Learning rate; the largest if parameter groups have different ones.
    """

    loss: float
    terms: Mapping[str, float]
    norm: float
    rate: float

    @property
    def loss_is_finite(self) -> bool:
        """Whether the loss and each of its terms are finite."""
        return all(map(isfinite, (self.loss, *self.terms.values())))

    @property
    def finite(self) -> bool:
        """Whether loss, terms and gradient norm are all finite, so that the optimizer may use the gradients."""
        return self.loss_is_finite and isfinite(self.norm)

    def __str__(self) -> str:
        """Describe in a sentence which of loss, terms and gradient norm is not finite."""
        ordered = sorted(self.terms.items(), key=lambda term: isfinite(term[1]))
        terms = f"terms: {', '.join(f'{name} {value:.4g}' for name, value in ordered) or 'none'}"
        if self.loss_is_finite:
            return f"the gradient norm is {self.norm:.4g} although the loss is {self.loss:.4g} ({terms})"
        return f"the loss is {self.loss:.4g} ({terms})"


def first_not_finite(named_tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor that holds a NaN or an infinity; None if there is none."""
    for name, value in named_tensors:
        # a sum shows every NaN and infinity at a third of the cost; what is finite can overflow in it
        if not (isfinite(float(value.detach().sum())) or bool(torch.isfinite(value).all())):
            return name
    return None


@dataclass(frozen=True)
class NonFiniteErrors:
    """Creates the `NotFiniteError` of a training run with its message: facts, kept checkpoint, and advice.

    Attributes:
        purpose: Name of the stage; begins the message.
        settings: Number of steps and learning rates.
        dtype: Number type of the matrix products.
        work: Folder of the checkpoints.
    """

    purpose: str
    settings: Updates
    dtype: torch.dtype
    work: Path

    def for_step(self, result: StepResult, progress: Progress, saved_step: int, model: nn.Module) -> NotFiniteError:
        """Create the error for a step whose loss, terms or gradients are not finite.

        Args:
            result: The losses and gradients of the step.
            progress: State of the run, with the losses of the steps before.
            saved_step: Step of the newest checkpoint; 0 without one.
            model: The model with its weights before the step.
        """
        type_name = str(self.dtype).removeprefix("torch.")
        facts = [
            f"step {progress.step + 1} of {self.settings.steps} was not made: {result}; "
            f"learning rate {result.rate:.3g}, {type_name}."
        ]
        mean = progress.newest_mean_loss()
        if mean is not None:
            first, last, loss = mean
            facts.append(f"The mean loss of steps {first} to {last} was {loss:.4g}.")
        broken = first_not_finite(model.named_parameters())
        if broken is not None:
            facts.append(f"The weights were not finite even before this step ('{broken}').")
            return self._error(progress.step + 1, facts, saved_step, self._advice_for_weights())
        facts.append("Weights and optimiser are as they were before this step.")
        raise_warmup = " or raise warmup" if hasattr(self.settings, "warmup") else ""
        advice = (
            f"If the loss grew before this step, lower lr (its peak is {self.settings.lr:.3g}){raise_warmup}; "
            "if it did not, look at the training rows and at the teacher."
        )
        return self._error(progress.step + 1, facts, saved_step, advice)

    def for_weights(self, name: str, progress: Progress, saved_step: int) -> NotFiniteError:
        """Create the error for a weight or moment that is not finite although every loss and gradient was.

        Args:
            name: Name of the weight or moment.
            progress: State of the run.
            saved_step: Step of the newest checkpoint; 0 without one.
        """
        fact = f"after step {progress.step} of {self.settings.steps}, '{name}' holds a NaN or an infinity; nothing was saved."
        return self._error(progress.step, [fact], saved_step, self._advice_for_weights())

    def _advice_for_weights(self) -> str:
        """Return the advice for weights or moments that are not finite."""
        # the losses and gradients before were finite: the optimizer's own arithmetic did it
        return f"Raise eps ({self.settings.eps:.3g}), or lower lr (its peak is {self.settings.lr:.3g})."

    def _error(self, step: int, facts: list[str], saved_step: int, advice: str) -> NotFiniteError:
        """Create the error: its message has the facts, the newest checkpoint (`saved_step`), and advice."""
        kept = "No checkpoint was written before: the same command begins this stage again."
        if saved_step:
            kept = (
                f"The checkpoint of step {saved_step} in {self.work} is kept: the same command resumes from it and computes "
                "the same again."
            )
        fix = f"Fix: {advice} A changed recipe needs another -o/--output, or --overwrite."
        return NotFiniteError(self.purpose, step, " ".join([*facts, kept, fix]))
