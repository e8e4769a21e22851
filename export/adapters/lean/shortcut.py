"""The tensor that a post-norm layer adds to the result of one of its parts."""

from __future__ import annotations

from torch import Tensor, nn


class Shortcut(nn.Module):
    """Hands on the states that a part was given, multiplied channel by channel where they were divided before.

    Args:
        channels_first: Whether states are [B, C, 1, L]; else [B, L, C].
    """

    factors: Tensor | None

    def __init__(self, channels_first: bool = False) -> None:
        super().__init__()
        self.channels_first = channels_first
        self.register_buffer("factors", None)

    def forward(self, states: Tensor) -> Tensor:
        """Return the states as they were before their channels were divided."""
        return states if self.factors is None else states * self.factors

    def multiply(self, factors: Tensor) -> None:
        """Multiply by further factors, [C]."""
        more = factors[:, None, None] if self.channels_first else factors
        self.factors = more.clone() if self.factors is None else self.factors * more
