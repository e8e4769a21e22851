"""The losses and the capture of signals inside a training loop of your own.

A small random teacher and student, so that it runs anywhere in seconds; put your models and batches in
their place.

Run: python examples/own_training_loop.py
"""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForSequenceClassification

from pocketbert.core.families import family_of
from pocketbert.distill.capture import record_attention
from pocketbert.distill.layer_map import layer_map
from pocketbert.distill.losses import attention_kl, hidden_mse, mean_over_layers, soft_targets


def main(steps: int = 30) -> list[float]:
    """Train, and return the loss of every step."""
    torch.manual_seed(0)
    config = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "num_labels": 3,
    }
    teacher = BertForSequenceClassification(BertConfig(num_hidden_layers=4, **config)).eval()
    student = BertForSequenceClassification(BertConfig(num_hidden_layers=2, **config)).train()
    layers = layer_map(2, 4)  # student layers 1, 2 learn from teacher layers 2, 4
    family = family_of("bert")
    taught = record_attention(teacher, family, [n - 1 for n in layers])
    learnt = record_attention(student, family, range(2))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)

    losses = []
    for _ in range(steps):
        ids = torch.randint(0, 100, (8, 12))
        mask = torch.ones_like(ids)
        mask[:, 9:] = 0  # padding never enters a loss
        with torch.no_grad(), taught:
            target = teacher(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        with learnt:
            out = student(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        loss = (
            soft_targets(out.logits, target.logits, temperature=2.0)
            + mean_over_layers(
                [
                    hidden_mse(out.hidden_states[m], target.hidden_states[n], mask)
                    for m, n in enumerate(layers, 1)
                ]
            )
            + mean_over_layers(
                [attention_kl(learnt.scores[m], taught.scores[n - 1], mask) for m, n in enumerate(layers)]
            )
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


if __name__ == "__main__":
    history = main()
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")
