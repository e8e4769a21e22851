"""The message when training stops at a NaN or an infinity: what it was, what is kept, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from pocketbert.core.recipe.updates import Updates
from pocketbert.distill.training.finite import ATTEMPTS, Attempt, NotFiniteError, first_not_finite
from pocketbert.distill.training.records import Progress, mean_so_far


@dataclass(frozen=True)
class Refusals:
    """Makes the errors of one training run.

    Attributes:
        purpose: What is trained; begins the message.
        settings: Steps and rates.
        dtype: Number type of the matrix products.
        work: Where checkpoints are.
    """

    purpose: str
    settings: Updates
    dtype: torch.dtype
    work: Path

    def of_step(
        self, found: Attempt, progress: Progress, saved: int, model: nn.Module, scale: float | None = None
    ) -> NotFiniteError:
        """The error for a step that the optimiser must not make.

        Args:
            found: What the step computed.
            progress: The steps before it.
            saved: Step of the newest checkpoint; 0 without one.
            model: Its weights, before the step.
            scale: The smallest loss scale that was tried, where only the gradients were not finite.
        """
        type_name = str(self.dtype).removeprefix("torch.")
        tried = "" if scale is None else f", at each of {ATTEMPTS} loss scales down to {scale:.3g}"
        facts = [
            f"step {progress.step + 1} of {self.settings.steps} was not made: {found}{tried}; "
            f"learning rate {found.rate:.3g}, {type_name}."
        ]
        before = mean_so_far(progress)
        if before is not None:
            facts.append(f"The mean loss of steps {before.first} to {before.last} was {before.loss:.4g}.")
        broken = first_not_finite(model.named_parameters())
        if broken is not None:
            facts.append(f"The weights were not finite even before this step ('{broken}').")
            return self._error(progress.step + 1, facts, saved, self._about_weights())
        facts.append("Weights and optimiser are as they were before this step.")
        warmer = " or raise warmup" if hasattr(self.settings, "warmup") else ""
        advice = (
            f"If the loss grew before this step, lower lr (its peak is {self.settings.lr:.3g}){warmer}; "
            "if it did not, look at the training rows and at the teacher."
        )
        return self._error(progress.step + 1, facts, saved, advice)

    def of_weights(self, weight: str, progress: Progress, saved: int) -> NotFiniteError:
        """The error for weights that no checkpoint may hold, though every loss and gradient was finite.

        Args:
            weight: Name of one that is not finite.
            progress: The steps done.
            saved: Step of the newest checkpoint; 0 without one.
        """
        what = f"after step {progress.step} of {self.settings.steps}, '{weight}' holds a NaN or an infinity; nothing was saved."
        return self._error(progress.step, [what], saved, self._about_weights())

    def _about_weights(self) -> str:
        # the losses and gradients before were finite: the optimiser's own arithmetic did it
        return f"Raise eps ({self.settings.eps:.3g}), or lower lr (its peak is {self.settings.lr:.3g})."

    def _error(self, step: int, facts: list[str], saved: int, advice: str) -> NotFiniteError:
        kept = "No checkpoint was written before: the same command begins this stage again."
        if saved:
            kept = f"The checkpoint of step {saved} in {self.work} is kept: the same command resumes from it and computes the same again."
        fix = f"Fix: {advice} A changed recipe needs another -o/--output, or --overwrite."
        return NotFiniteError(self.purpose, step, " ".join([*facts, kept, fix]))
