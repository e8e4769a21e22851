"""A teacher for a task: encoder plus a new head, trained on gold labels."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from pocketbert.core.families import Family
from pocketbert.core.tasks import Task
from pocketbert.distill.losses.task import counted, gold_loss
from pocketbert.distill.training.terms import Term


@dataclass
class Finetune:
    """Objective: the task's loss against gold labels.

    Attributes:
        family: Decides the model's inputs.
        task: Decides the loss.
        weights: One term, ``labels``.
    """

    family: Family
    task: Task
    weights: dict[str, float] = field(default_factory=lambda: {"labels": 1.0})

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `pocketbert.distill.training.terms.Counting`."""
        return counted(self.task, batch)

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """The term ``labels``; see `pocketbert.distill.training.loop.Objective`."""
        made = model(**{name: batch[name] for name in self.family.inputs})
        return {"labels": gold_loss(self.task, made, batch)}
