"""Use the losses and the capture of signals in your own training loop.

Teacher and student are small and random, so the script runs anywhere in seconds; replace them and the batches with
yours. `with_pure_losses` adds up the terms itself; `with_an_objective` uses the object that
`pocketbert distill` uses, which works for any task.

Run: python examples/own_training_loop.py
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification

from pocketbert.distill import (
    TaskDistillation,
    TaskStage,
    attention_kl,
    family_of,
    hidden_mse,
    layer_map,
    mean_over_layers,
    record_attention,
    soft_targets,
    task_of,
)

SIZES = {"vocab_size": 100, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}


def batch() -> dict[str, torch.Tensor]:
    """Make eight rows of twelve tokens; the last three tokens are padding, which never enters a loss."""
    ids = torch.randint(0, 100, (8, 12))
    mask = torch.ones_like(ids)
    mask[:, 9:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def models(kind: Any) -> tuple[Any, Any]:
    """Build a frozen teacher of four layers and a student of two."""
    torch.manual_seed(0)
    teacher = kind(BertConfig(num_hidden_layers=4, num_labels=2, **SIZES)).eval().requires_grad_(False)
    return teacher, kind(BertConfig(num_hidden_layers=2, num_labels=2, **SIZES)).train()


def with_pure_losses(steps: int) -> list[float]:
    """Train with terms computed by hand, from pure functions of tensors."""
    teacher, student = models(BertForSequenceClassification)
    layers = layer_map(2, 4)  # student layers 1, 2 learn from teacher layers 2, 4
    family = family_of("bert")
    taught = record_attention(teacher, family, [n - 1 for n in layers])
    learnt = record_attention(student, family, range(2))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        inputs = batch()
        mask = inputs["attention_mask"]
        with torch.no_grad(), taught:
            target = teacher(**inputs, output_hidden_states=True)
        with learnt:
            out = student(**inputs, output_hidden_states=True)
        hidden = [hidden_mse(out.hidden_states[m], target.hidden_states[n], mask) for m, n in enumerate(layers, 1)]
        maps = [attention_kl(learnt.scores[m], taught.scores[n - 1], mask) for m, n in enumerate(layers)]
        loss = (
            soft_targets(out.logits, target.logits, temperature=2.0) + mean_over_layers(hidden) + mean_over_layers(maps)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def with_an_objective(steps: int) -> list[float]:
    """Train with the objective of method `task`, here for question-answering; its terms are means with their counts."""
    teacher, student = models(BertForQuestionAnswering)
    stage = TaskStage(method="task", steps=steps, temperature=2.0)
    objective = TaskDistillation(teacher, student, family_of("bert"), task_of("question-answering"), stage)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        terms = objective(student, batch())  # {"logits": Term(mean, count), "hidden": ..., "attention": ...}
        loss = torch.stack([objective.weights[name] * term.mean for name, term in terms.items()]).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


if __name__ == "__main__":
    for loop in (with_pure_losses, with_an_objective):
        history = loop(30)
        print(f"{loop.__name__}: loss {history[0]:.3f} -> {history[-1]:.3f}")
