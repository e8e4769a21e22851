"""A teacher for a task: encoder plus a new head, trained on gold labels."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from pocketbert.core.families import Family
from pocketbert.distill.losses import hard_targets


@dataclass
class Finetune:
    """Objective: cross-entropy with gold labels.

    Attributes:
        family: Decides the model's inputs.
        weights: One term, ``labels``.
    """

    family: Family
    weights: dict[str, float] = field(default_factory=lambda: {"labels": 1.0})

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The term ``labels``; see `pocketbert.distill.loop.Objective`."""
        logits = model(**{name: batch[name] for name in self.family.inputs}).logits
        return {"labels": hard_targets(logits, batch["labels"])}
