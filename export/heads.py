"""What a graph computes after the model, where clients expect it inside the file."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbert.core.predict.pooling import Pooling, PoolingKind

_LEAST = 1e-4
"""What a length is taken for at least, so that a vector of zeros stays one; fp16 knows the number."""


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
    # first by the largest entry: in fp16 the squares of a long vector's entries do not fit
    scaled = vector / _at_least(vector.abs().amax(-1, keepdim=True), _LEAST)
    return scaled / _at_least((scaled * scaled).sum(-1, keepdim=True).sqrt(), _LEAST)


def _mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    mask = attention_mask[:, :, None].to(states.dtype)
    return (states * mask).sum(1) / _at_least(mask.sum(1), 1.0)


def _at_least(values: Tensor, least: float) -> Tensor:
    """Values, none below a number. Not `clamp`: Core ML's has an upper end too, and infinity is a weight to refuse."""
    return torch.maximum(values, torch.full((), least))
