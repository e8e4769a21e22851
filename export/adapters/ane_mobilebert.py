"""MobileBERT's layers on channels-first activations [B, C, 1, L]."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pocketbert.export.adapters.ane_layers import ChannelNorm, PerHeadAttention, pointwise
from pocketbert.export.adapters.lean_layers import Shape
from pocketbert.export.adapters.lean_mobilebert import ScaledResidual, lean_layer


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
    lean.attention.self = _Attention(attention)
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


class _Attention(nn.Module):
    """`PerHeadAttention` behind the signature of the stock attention module."""

    def __init__(self, attention: PerHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, None]:
        """Attend; there are no attention weights to return."""
        return self.attention(queries, keys, values, mask), None
