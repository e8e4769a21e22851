"""Losses of several heads: each term is that of the head by itself, and rows without its label are in none of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING
from pocketbert.core.tasks import several_task, task_of
from pocketbert.distill.losses.task import (
    count_labelled_tokens,
    gold_loss,
    gold_terms,
    head_weights,
    soft_loss,
    soft_terms,
)

LABELS = ("intent: a", "intent: b", "mood: number", "slots: O", "slots: B-x", "slots: I-x")
TASK = several_task(
    {"intent": "text-classification", "mood": "regression", "slots": "token-classification"},
    LABELS,
    {"intent": 1, "mood": 1, "slots": 0.5},
)
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
TAGS = torch.tensor([[-100, 1, 2, -100], [-100, 0, -100, -100], [-100, 0, -100, -100]])
BATCH = {
    "attention_mask": MASK,
    "intent.labels": torch.tensor([1, 0, 0]),
    "intent.labelled": torch.tensor([True, False, True]),
    "mood.labels": torch.tensor([0.5, 0.2, 0.0]),
    "slots.labels": TAGS,
    "slots.labelled": torch.tensor([True, True, False]),
}


def draw(seed: int) -> Any:
    return torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float()


def alone(name: str, logits: torch.Tensor) -> Any:
    head = next(h for h in TASK.heads if h.name == name)
    own = logits[:, :, head.columns] if name == "slots" else logits[:, 0, head.columns]
    return SimpleNamespace(logits=own)


def own_batch(name: str) -> dict[str, torch.Tensor]:
    return {"attention_mask": MASK, **{k.partition(".")[2]: v for k, v in BATCH.items() if k.startswith(f"{name}.")}}


@pytest.mark.parametrize(
    ("name", "task"),
    [("intent", "text-classification"), ("mood", "regression"), ("slots", "token-classification")],
)
def test_each_term_is_that_of_the_head_by_itself(name: str, task: str) -> None:
    logits, taught = draw(1), draw(2)
    outputs = SimpleNamespace(logits=logits)
    gold = gold_terms(TASK, outputs, BATCH)[f"labels.{name}"]
    wanted = gold_loss(task_of(task), alone(name, logits), own_batch(name))
    assert gold.mean.item() == pytest.approx(wanted.mean.item(), abs=1e-6)
    soft = soft_terms(TASK, outputs, {"logits": taught}, BATCH, 2.0, DEFAULT_POOLING)[f"logits.{name}"]
    other = {"logits": alone(name, taught).logits}
    wanted = soft_loss(task_of(task), alone(name, logits), other, own_batch(name), 2.0, DEFAULT_POOLING)
    assert soft.mean.item() == pytest.approx(wanted.mean.item(), abs=1e-6)
    assert soft.mean.item() > 0


def test_a_row_without_a_label_of_a_head_gives_it_no_gold_loss() -> None:
    logits = draw(1).requires_grad_()
    terms = gold_terms(TASK, SimpleNamespace(logits=logits), BATCH)
    [gradient] = torch.autograd.grad(terms["labels.intent"].mean, logits)
    assert (gradient[1] == 0).all()
    assert (gradient[0, 0, :2] != 0).all()
    assert (gradient[0, 1:] == 0).all(), "a head on whole texts is read at the first token only"
    logits = draw(1).requires_grad_()
    terms = gold_terms(TASK, SimpleNamespace(logits=logits), BATCH)
    [gradient] = torch.autograd.grad(terms["labels.slots"].mean, logits)
    assert (gradient[2] == 0).all()
    assert (gradient[..., :3] == 0).all()
    counts = count_labelled_tokens(TASK, BATCH)
    assert {name: int(value) for name, value in counts.items()} == {
        "labels.intent": 2,
        "labels.slots": 3,
        "logits.slots": 4,
    }


def test_a_column_teaches_only_rows_with_a_label_or_an_answer() -> None:
    task = replace(TASK, heads=tuple(replace(head, learns_from="column") for head in TASK.heads))
    logits, joint = draw(1), draw(2)
    taught = {head.output: alone(head.name, joint).logits for head in task.heads}
    terms = soft_terms(task, SimpleNamespace(logits=logits), taught, BATCH, 2.0, DEFAULT_POOLING)
    counts = count_labelled_tokens(task, BATCH)
    for head, rows, count in zip(task.heads, ([0, 2], [0, 1, 2], [0, 1]), (2, 3, 3), strict=True):
        own = SimpleNamespace(logits=alone(head.name, logits).logits[rows])
        batch = {name: value[rows] for name, value in own_batch(head.name).items()}
        wanted = soft_loss(head.task, own, {"logits": taught[head.output][rows]}, batch, 2.0, DEFAULT_POOLING)
        term = terms[f"logits.{head.name}"]
        assert term.mean.item() == pytest.approx(wanted.mean.item(), abs=1e-6)
        assert term.count.item() == counts.get(f"logits.{head.name}", torch.tensor(3)).item() == count
    none = BATCH | {"slots.labelled": torch.zeros(3, dtype=torch.bool)}
    empty = soft_terms(task, SimpleNamespace(logits=logits), taught, none, 2.0, DEFAULT_POOLING)["logits.slots"]
    assert (empty.mean.item(), empty.count.item()) == (0, 0)


def test_weights_are_those_of_the_term_times_those_of_the_head() -> None:
    found = head_weights(TASK, {"logits": 2.0, "labels": 1.0, "hidden": 3.0})
    assert found["hidden"] == 3.0
    assert found["logits.intent"] == 2.0
    assert found["logits.slots"] == 1.0
    assert found["labels.slots"] == 0.5
    assert "logits" not in found
    assert head_weights(task_of("regression"), {"logits": 2.0}) == {"logits": 2.0}
