"""Rotary positions as a graph holds them: half of each table, since both halves are equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RotaryAngles(nn.Module):
    """Cosines and sines of positions, computed in the graph: a length that no file has seen needs no table.

    Args:
        rotary: The stock module: a buffer ``KIND_inv_freq`` for each kind of layer.
        kinds: Kinds of layers, such as ``full_attention``.
    """

    def __init__(self, rotary: Any, kinds: tuple[str, ...]) -> None:
        super().__init__()
        self.kinds = kinds
        for kind in kinds:
            self.register_buffer(kind, getattr(rotary, f"{kind}_inv_freq").detach().float(), persistent=False)

    def forward(self, length: int) -> dict[str, tuple[Tensor, Tensor]]:
        """By kind, cosines and sines, each [1, 1, L, head size / 2].

        Args:
            length: Tokens L, which may be symbolic.
        """
        return {kind: self._rows(kind, torch.arange(length)) for kind in self.kinds}

    def _rows(self, kind: str, places: Tensor) -> tuple[Tensor, Tensor]:
        angles = (places[:, None].float() * self.get_buffer(kind))[None, None]
        return angles.cos(), angles.sin()


class RotaryTable(nn.Module):
    """The same from tables: fp16, in which Core ML computes, has no angle of the 300th position to more than a tenth.

    Args:
        angles: What computes them.
        rows: Positions that the model knows.
    """

    def __init__(self, angles: RotaryAngles, rows: int) -> None:
        super().__init__()
        self.kinds = angles.kinds
        for kind, tables in angles(rows).items():
            for name, table in zip(("cos", "sin"), tables, strict=True):
                self.register_buffer(f"{kind}_{name}", table.detach().clone(), persistent=False)

    def forward(self, length: int) -> dict[str, tuple[Tensor, Tensor]]:
        """See `RotaryAngles.forward`."""
        return {
            kind: (self.get_buffer(f"{kind}_cos")[:, :, :length], self.get_buffer(f"{kind}_sin")[:, :, :length])
            for kind in self.kinds
        }


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of numbers by its position's angle, [B, H, L, d] to [B, H, L, d].

    Source: Su et al. 2021 (RoFormer, arXiv 2104.09864), section 3.4.2; the pairs are number i and number i + d / 2.
    """
    first, second = states.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
