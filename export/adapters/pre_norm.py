"""Rewrite pre-norm encoder layers, whose normalizations are in front of attention and feed-forward part.

`PreNormLayer` computes the same with fewer operations, for all tokens or for the first one only; the encoder's last
normalization stays in the model. The functions are registered in `LAYER_PARTS`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters.lean import AllRows, FirstRow, Shape


class PreNormLayer(nn.Module):
    """A pre-norm encoder layer with BERT's attribute names, computed for all tokens or for the first one only.

    Args:
        layer: The layer of the transformers model; its modules are reused and changed.
        first_row: Whether only the first token's output is used; then only that is computed.
        shape: Settings of the rewritten layer that depend on the file format.
    """

    def __init__(self, layer: Any, first_row: bool, shape: Shape) -> None:
        super().__init__()
        own = layer.attention.self
        projections = (own.query, own.key, own.value, own.num_attention_heads, own.scaling)
        self.attention = FirstRow(*projections, opaque=shape.opaque) if first_row else AllRows(*projections)
        self.attention_norm, self.attention_out = layer.attention.LayerNorm, layer.attention.output.dense
        self.up_norm, self.up = layer.intermediate.LayerNorm, layer.intermediate.dense
        self.act, self.down = layer.intermediate.intermediate_act_fn, layer.output.dense
        self.first_row, self.flat_ffn = first_row, shape.flat_ffn

    def forward(self, hidden_states: Tensor, attention_mask: Any, *_: Any, **__: Any) -> Tensor:
        """Run the encoder layer. Further arguments of the transformers encoder are ignored.

        Args:
            hidden_states: States of the tokens, [B, L, H].
            attention_mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            New states, [B, L, H], or [B, 1, H] of the first token.
        """
        normed = self.attention_norm(hidden_states)
        rows, queries = (hidden_states[:, :1], normed[:, :1]) if self.first_row else (hidden_states, normed)
        attended = rows + self.attention_out(self.attention(queries, normed, normed, attention_mask))
        inner = self.up_norm(attended)
        if not self.flat_ffn:
            return attended + self.down(self.act(self.up(inner)))  # type: ignore[no-any-return]
        change = self.down(self.act(self.up(inner.flatten(0, 1))))
        return attended + change.view(attended.shape)  # type: ignore[no-any-return]


LAYER_PARTS.add(
    "roberta-prelayernorm",
    LayerParts(
        "transformers.models.roberta_prelayernorm.modeling_roberta_prelayernorm.RobertaPreLayerNormLayer",
        lean=PreNormLayer,
    ),
)
