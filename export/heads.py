"""What a graph computes after the model, where clients expect it inside the file."""

from __future__ import annotations

from torch import Tensor

_LEAST_NORM = 1e-12


def mean_pooling(states: Tensor, attention_mask: Tensor) -> Tensor:
    """One unit vector per text: the mean of its token states, padding left out, divided by its length.

    Source: Reimers and Gurevych 2019 (Sentence-BERT), MEAN strategy; normalised as sentence-transformers' Normalize.

    Args:
        states: Token states [B, L, H].
        attention_mask: [B, L], 1 for real tokens.

    Returns:
        [B, H] float32.
    """
    mask = attention_mask[:, :, None].to(states.dtype)
    mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1.0)
    return mean / (mean * mean).sum(-1, keepdim=True).sqrt().clamp(min=_LEAST_NORM)
