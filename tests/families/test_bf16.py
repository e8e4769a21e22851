"""Every row says truly whether its code trains with matrix products in bf16; autocast shows it on any machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pocketbert.core.families import find_family
from pocketbert.distill.training import loop as precision
from pocketbert.distill.training.loop import training_dtype
from support.matrix.cells import graph_of
from support.tiny import EXPORTED, tiny_classifier

OWN = [name for name in EXPORTED if graph_of(find_family(name)) == name]


def step(model: Any) -> float:
    """One forward and backward pass over a padded batch, as a training step makes it."""
    ids = torch.randint(5, 20, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 8:] = 0
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, attention_mask=mask, labels=torch.tensor([0, 1, 2])).loss
    loss.backward()
    return float(loss.detach())


@pytest.mark.parametrize("name", OWN)
def test_the_row_says_whether_bf16_works(name: str) -> None:
    model = tiny_classifier(name, 2, ("a", "b", "c")).train()
    if find_family(name).trains_in_bf16:
        assert 0 < step(model) < 100
        assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
        return
    with pytest.raises(RuntimeError, match="BFloat16 without overflow"):
        step(model)


@pytest.mark.parametrize("name", ["deberta", "deberta-v2"])
def test_training_obeys_the_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_bf16_is_fast", lambda: True)
    wanted = torch.bfloat16 if find_family(name).trains_in_bf16 else torch.float32
    assert training_dtype(tiny_classifier(name, 1, ("a", "b"))) is wanted
