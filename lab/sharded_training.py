"""Train a tiny model whose weights FSDP2 divides among processes, and compare it with the whole model.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 lab/sharded_training.py [--unequal]

With `--unequal` process 1 computes its rows in two portions and process 0 in one, which waits for ever: stop it with Ctrl-C.
It says what fine-tuning a divided teacher would rest on (docs/lab/distributed.md).
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

STEPS, ROWS = 3, 4


def loss_of(model: Any, rows: slice) -> torch.Tensor:
    """Return what some of the rows add to the mean loss of all."""
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(5, 50, (ROWS, 8), generator=generator), torch.tensor([0, 1, 2, 1])
    logits = model(input_ids=ids[rows], attention_mask=torch.ones_like(ids[rows])).logits
    return torch.nn.functional.cross_entropy(logits, labels[rows], reduction="sum") / ROWS


def step_of(model: Any, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    """Make an optimizer step, and return the norm of the gradient before it was clipped."""
    loss.backward()
    norm: Any = clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def main() -> None:
    """Train the whole model and the divided one side by side, and print how far they differ."""
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=60, num_labels=3, hidden_dropout_prob=0.0, **sizes)
    config.attention_probs_dropout_prob = config.classifier_dropout = 0.0
    model = transformers.BertForSequenceClassification(config).train()
    whole = copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (world,))
    for module in (*model.bert.encoder.layer, model):
        fully_shard(module, mesh=mesh)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-6) for m in (whole, model)]
    own = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
    for number in range(STEPS):
        norms = [step_of(whole, optimizers[0], loss_of(whole, slice(None)))]
        norms.append(step_of(model, optimizers[1], loss_of(model, own) * world))  # gradients are averaged
        if rank == 0:
            print(f"step {number + 1}: norm of the gradient {norms[0]:.7f} whole, {norms[1]:.7f} divided")
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    apart = max(float((divided.detach().full_tensor() - one.detach()).abs().max()) for divided, one in pairs)
    if rank == 0:
        print(f"weights differ by at most {apart:.1e}")
    if "--unequal" in sys.argv:
        for number in range(1 + rank):
            model.set_requires_gradient_sync(number == rank)
            loss_of(model, slice(number, number + 1)).backward()
            print(f"process {rank}: portion {number + 1} is done", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
