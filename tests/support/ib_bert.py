"""Small IB-BERT models, and the rows they are asked about."""

from __future__ import annotations

from typing import Any

import torch

from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForPreTraining

DEPTH, HEADS, WIDTH, INSIDE, EMBEDDING, VOCABULARY = 3, 4, 24, 32, 6, 50
IDS = torch.tensor([[2, 11, 12, 13, 14, 3, 15, 3], [2, 21, 22, 3, 0, 0, 0, 0]])
TYPES = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1], [0] * 8])
MASK = (IDS != 0).long()


def config(**changes: Any) -> IbBertConfig:
    sizes = {
        **{"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS},
        **{"intra_bottleneck_size": INSIDE, "intermediate_size": 40, "embedding_size": EMBEDDING},
        **{"max_position_embeddings": 20, "initializer_range": 0.2},
    }
    return IbBertConfig(**{**sizes, **changes})


def tiny(kind: Any = IbBertForPreTraining, seed: int = 0, **changes: Any) -> Any:
    """A model in eval mode whose norms, biases and pad row are no identities."""
    torch.manual_seed(seed)
    model = kind(config(**changes))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    return model.eval()
