"""ModernBERT's layers with fewer operations and the same result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters.lean.layers import Shape
from pocketbert.export.adapters.modernbert.rotary import rotated


class GatedLayer(nn.Module):
    """A ModernBertEncoderLayer for all rows, the scale of its scores folded into the query's rows of the fused weights."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        own = layer.attn
        self.attention_type, self.depth = layer.attention_type, own.head_dim
        self.attn_norm, self.qkv, self.attention_out = layer.attn_norm, own.Wqkv, own.Wo
        self.mlp_norm, self.up, self.act, self.down = layer.mlp_norm, layer.mlp.Wi, layer.mlp.act, layer.mlp.Wo
        width = self.qkv.in_features
        with torch.no_grad():
            for parameter in self.qkv.parameters():
                parameter[:width].mul_(own.head_dim**-0.5)

    def forward(self, states: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Run the layer.

        Args:
            states: [B, L, H].
            mask: Added to the scores, [B, 1, 1 or L, L].
            positions: Cosines and sines, each [1, 1, L, head size / 2].

        Returns:
            [B, L, H].
        """
        width = states.shape[-1]
        paired, value = self.qkv(self.attn_norm(states)).split([2 * width, width], -1)
        # queries and keys side by side: both are turned by the same angles
        query, key = rotated(self._heads(paired), *positions).chunk(2, 1)
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + mask, -1)
        context = torch.matmul(weights, self._heads(value)).transpose(1, 2).flatten(2)
        return self._closed(states + self.attention_out(context))

    def _closed(self, states: Tensor) -> Tensor:
        """Run the gated feed-forward part, [B, L, H] to [B, L, H]."""
        inner, gate = self.up(self.mlp_norm(states)).chunk(2, -1)
        return states + self.down(self.act(inner) * gate)  # type: ignore[no-any-return]

    def _heads(self, states: Tensor) -> Tensor:
        batch, length, width = states.shape
        return states.view(batch, length, width // self.depth, self.depth).transpose(1, 2)


class FirstRowGatedLayer(GatedLayer):
    """The last layer, for the first row only: keys of all tokens, but one query, and values of their weighted means.

    The mean of V x under weights that sum to 1 is V (mean of x). A key is turned by its own position, so it cannot be
    left out in the same way; see `pocketbert.export.adapters.lean.attention.FirstRow`.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        fused, width = self.qkv, self.qkv.in_features
        del self.qkv
        self.query, self.key, self.value = (_part(fused, i * width, width) for i in range(3))
        own = torch.eye(width // self.depth, dtype=fused.weight.dtype).repeat_interleave(self.depth, 1)
        self.own = nn.Buffer(own)
        """1 where a column belongs to the row's head, [heads, heads * depth]."""

    def forward(self, states: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Run the layer, [B, L, H] to [B, 1, H]; see `GatedLayer.forward`."""
        normed = self.attn_norm(states)
        query = self._heads(self.query(normed[:, :1]))  # the first position's angle is 0
        key = rotated(self._heads(self.key(normed)), *positions)
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + mask[:, :, :1], -1)
        means = torch.matmul(weights.squeeze(2), normed)
        context = (self.value(means) * self.own).sum(1, keepdim=True)
        return self._closed(states[:, :1] + self.attention_out(context))


def _part(fused: nn.Linear, start: int, rows: int) -> nn.Linear:
    """Some rows of a linear layer."""
    biased = fused.bias is not None
    part = nn.Linear(fused.in_features, rows, bias=biased, device="meta")
    part.weight = nn.Parameter(fused.weight.detach()[start : start + rows].clone())
    if biased:
        part.bias = nn.Parameter(fused.bias.detach()[start : start + rows].clone())
    return part


def lean_layer(layer: Any, first_row: bool, shape: Shape) -> nn.Module:
    """Rewrite one ModernBertEncoderLayer, which is changed in place; its graph is the same in every format.

    Args:
        layer: The stock layer.
        first_row: Whether only the first row of its output is read.
        shape: Not used.
    """
    return FirstRowGatedLayer(layer) if first_row else GatedLayer(layer)


LAYER_PARTS.add(
    "modernbert",
    LayerParts("transformers.models.modernbert.modeling_modernbert.ModernBertEncoderLayer", lean=lean_layer),
)
