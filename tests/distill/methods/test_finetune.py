from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.methods.task import Finetune
from support.tiny import BASIC


@pytest.mark.parametrize("name", BASIC)
def test_the_term_is_the_cross_entropy_with_gold(name: str, open_tiny: Callable[..., Any]) -> None:
    model, folder, tokenizer = open_tiny(name, 2)
    batch = {k: torch.from_numpy(v) for k, v in tokenizer.pad(tokenizer.encode(["good", "a bad film"])).items()}
    labels = torch.tensor([2, 0])
    task = TASKS[TaskName.TEXT_CLASSIFICATION]
    [(key, term)] = Finetune(folder.family, task)(model, {**batch, "labels": labels}).items()
    logits = model(**{k: batch[k] for k in folder.family.inputs}).logits
    wanted = -(logits.detach().double().log_softmax(-1)[torch.arange(2), labels]).mean()
    assert key == "labels"
    assert float(term.mean.detach()) == pytest.approx(float(wanted), rel=1e-5)
    assert term.mean.requires_grad
    assert float(term.count) == 2
