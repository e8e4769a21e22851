"""MobileBERT's layers on channels-first activations [B, C, 1, L]."""

from __future__ import annotations

from typing import Any

from torch import nn

from pocketbert.export.adapters.ane.layers import ChannelNorm, PerHeadAttention, pointwise
from pocketbert.export.adapters.lean.layers import Shape
from pocketbert.export.adapters.lean.mobilebert import BottleneckAttention, ScaledResidual, lean_layer


def channels_first_layer(layer: Any) -> nn.Module:
    """Rewrite one MobileBertLayer, which is changed in place.

    The stock layer only hands states from part to part, whatever their layout, so it stays and its parts are replaced.
    NoNorm is folded into the linear layers first, as in the other formats; where it is not, factors are turned.

    Args:
        layer: The stock layer.

    Returns:
        The same layer, on channels-first states, for all tokens.
    """
    own = layer.attention.self
    attention = PerHeadAttention(own.query, own.key, own.value, own.num_attention_heads, own.scaling)
    lean: Any = lean_layer(layer, False, Shape())
    lean.attention.self = BottleneckAttention(attention)
    for parent in list(lean.modules()):
        if isinstance(parent, ScaledResidual) or type(parent).__name__ == "NoNorm":
            for name, vector in list(parent.named_parameters(recurse=False)):
                setattr(parent, name, nn.Parameter(vector.detach()[:, None, None]))
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, pointwise(child))
            elif isinstance(child, nn.LayerNorm):
                setattr(parent, name, ChannelNorm(child))
    return lean  # type: ignore[no-any-return]
