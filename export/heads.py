"""What a graph computes after the model, where clients expect it inside the file."""

from __future__ import annotations

from torch import Tensor

from pocketbert.core.pooling import Pooling, PoolingKind

_LEAST_NORM = 1e-12


def pooled(states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """One vector per text.

    Source: Reimers and Gurevych 2019 (Sentence-BERT), strategies MEAN and CLS; normalised as sentence-transformers'
    Normalize.

    Args:
        states: Token states [B, L, H].
        attention_mask: [B, L], 1 for real tokens.
        pooling: Which states, and whether the vector has length 1.

    Returns:
        [B, H] float32.
    """
    vector = states[:, 0] if pooling.kind is PoolingKind.CLS else _mean(states, attention_mask)
    if not pooling.normalize:
        return vector
    return vector / (vector * vector).sum(-1, keepdim=True).sqrt().clamp(min=_LEAST_NORM)


def _mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    mask = attention_mask[:, :, None].to(states.dtype)
    return (states * mask).sum(1) / mask.sum(1).clamp(min=1.0)
