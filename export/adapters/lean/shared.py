"""An encoder whose layers run more often than they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from pocketbert.export.adapters.parts import Stack


class SharedStack(nn.Module):
    """Runs a few stored layers in an order, and the last run for the first token only where no head reads more.

    Every run uses the same parameters, so that a file holds them once: a run for the first token is a way to call a
    layer, not a layer with weights in another form, which `pocketbert.export.adapters.lean.attention.FirstRow` would be.

    Args:
        stack: What the embeddings go through first, and which layer runs when.
        layers: The stored layers as they are to run; they take ``first_row``.
        first_row: Whether only the first token's last state is read.
        channels_first: Whether the layers work on states [B, C, 1, L] and a mask [B, L, 1, 1].
    """

    def __init__(
        self, stack: Stack, layers: Sequence[nn.Module], first_row: bool, channels_first: bool = False
    ) -> None:
        super().__init__()
        self.entry, self.layers, self.order = stack.entry, nn.ModuleList(layers), stack.order
        self.first_row, self.channels_first = first_row, channels_first

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> tuple[Tensor]:
        """Run the encoder.

        Args:
            hidden_states: Embeddings, [B, L, E].
            attention_mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            The last hidden state, [B, L, H], or [B, 1, H] where no head reads more.
        """
        states: Tensor = self.entry(hidden_states)
        if self.channels_first:
            states, attention_mask = states.transpose(1, 2)[:, :, None], attention_mask.transpose(1, 3)
        for step, number in enumerate(self.order, 1):
            only_first = self.first_row and step == len(self.order)
            states = self.layers[number](states, attention_mask, first_row=only_first)
        return (states[:, :, 0].transpose(1, 2) if self.channels_first else states,)
