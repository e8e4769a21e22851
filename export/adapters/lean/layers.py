"""Post-norm encoder layers put together from the parts of the stock ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pocketbert.export.adapters.lean.attention import AllRows, FirstRow
from pocketbert.export.adapters.lean.shortcut import Shortcut
from pocketbert.export.adapters.parts import Parts


@dataclass(frozen=True)
class Shape:
    """How to write the layers.

    Attributes:
        flat_ffn: Run the feed-forward part on [B * L, H]. ONNX Runtime then cannot prove that its output has the shape
            of the residual, and leaves Add and LayerNormalization as they are; its SkipLayerNormalization, which it
            would put in their place, takes several times as long as both.
        opaque: See `FirstRow`.
    """

    flat_ffn: bool = False
    opaque: bool = False


class PostNormLayer(nn.Module):
    """A layer of BERT, RoBERTa or DistilBERT, for all rows or for the first one only."""

    def __init__(self, parts: Parts, first_row: bool, shape: Shape, attention: nn.Module | None = None) -> None:
        """Take over the modules of a stock layer.

        Args:
            parts: The modules.
            first_row: Whether only the first row of the output is read.
            shape: How to write the layer.
            attention: What computes the context, in place of `AllRows` or `FirstRow`.
        """
        super().__init__()
        self.first_row, self.flat_ffn = first_row, shape.flat_ffn
        projections = (parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        if attention is None:
            attention = FirstRow(*projections, opaque=shape.opaque) if first_row else AllRows(*projections)
        self.attention = attention
        self.attention_out, self.attention_norm = parts.attention_out, parts.attention_norm
        self.up, self.act, self.down = parts.up, parts.act, parts.down
        self.output_norm = parts.output_norm
        self.rows_shortcut, self.attended_shortcut = Shortcut(), Shortcut()

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, *_: Any, first_row: bool = False, **__: Any
    ) -> Tensor:
        """Run the layer; what else the stock encoder passes is for decoders.

        Args:
            hidden_states: [B, L, H].
            attention_mask: Added to attention scores, [B, 1, 1, L]; or what the layer's own attention takes.
            first_row: Whether this run is for the first row only, of a layer that has runs for all rows too.

        Returns:
            [B, L, H], or [B, 1, H] where only the first row is wanted.
        """
        rows = hidden_states[:, :1] if self.first_row or first_row else hidden_states
        return self.after(self.attention(rows, hidden_states, hidden_states, attention_mask), rows)

    def after(self, context: Tensor, rows: Tensor) -> Tensor:
        """Run what follows the attention.

        Args:
            context: [B, L, H], or [B, 1, H] of a first-row layer.
            rows: What the layer was given for these tokens, of the same shape.

        Returns:
            [B, L, H], or [B, 1, H].
        """
        attended = self.attention_norm(self.attention_out(context) + self.rows_shortcut(rows))
        inner = attended.flatten(0, 1) if self.flat_ffn else attended
        change = self.down(self.act(self.up(inner)))
        if self.flat_ffn:
            change = change.view(attended.shape)
        return self.output_norm(change + self.attended_shortcut(attended))  # type: ignore[no-any-return]
