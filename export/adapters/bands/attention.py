"""Attention within a window, and of global tokens to all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.export.adapters.bands.blocks import near_blocks, own_blocks, rows_of
from pocketbert.export.adapters.bands.masks import Masks
from pocketbert.export.adapters.lean.attention import AllRows, FirstRow
from pocketbert.export.adapters.lean.layers import Shape
from pocketbert.export.adapters.parts import Parts


class LocalAttention(nn.Module):
    """Attention within the window, and of the global tokens to all."""

    def __init__(self, parts: Parts, wide: Any, first: bool, shape: Shape) -> None:
        """Take over the projections of a layer.

        Args:
            parts: The modules of the layer.
            wide: The module with the projections of global attention; None where no token is global.
            first: Whether the first token alone is global.
            shape: How to write the layer.
        """
        super().__init__()
        self.near = _Near(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.wide: nn.Module | None = None
        self.first = first
        if wide is not None:
            projections = (wide.query_global, wide.key_global, wide.value_global, parts.heads, parts.scaling)
            self.wide = FirstRow(*projections, opaque=shape.opaque) if first else AllRows(*projections)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Masks, int]) -> Tensor:
        """Attend, [B, S, D] to [B, S, D].

        Args:
            queries: What queries are made from.
            keys: What keys are made from.
            values: What values are made from.
            mask: All masks, and half the window of the layer.
        """
        masks, reach = mask
        context = (
            self.near.of_blocks(queries, masks, reach)
            if masks.blocks
            else self.near(queries, keys, values, masks.near[reach])
        )
        if self.wide is None:
            return context
        if self.first:
            return torch.cat([self.wide(queries[:, :1], keys, values, masks.real), context[:, 1:]], 1)
        assert masks.globals is not None
        wide: Tensor = self.wide(queries, keys, values, masks.real)
        return context + (wide - context) * masks.globals


class FirstOnly(nn.Module):
    """Attention of the first token, which is global, to all."""

    def __init__(self, wide: Any, heads: int, scaling: float, shape: Shape) -> None:
        super().__init__()
        projections = (wide.query_global, wide.key_global, wide.value_global)
        self.wide = FirstRow(*projections, heads, scaling, opaque=shape.opaque)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Masks, int]) -> Tensor:
        """Attend, [B, 1, D] and [B, S, D] to [B, 1, D]; see `LocalAttention`."""
        context: Tensor = self.wide(queries, keys, values, mask[0].real)
        return context


class _Near(AllRows):
    """Local attention, over all pairs of tokens or over blocks of them."""

    def of_blocks(self, states: Tensor, masks: Masks, reach: int) -> Tensor:
        """Attend within blocks of half a window, [B, S, D] to [B, S, D]."""
        query = self._heads(own_blocks(self.query(states), reach))
        key, value = (self._heads(near_blocks(made(states), reach, masks.front)) for made in (self.key, self.value))
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + masks.near[reach], -1)
        context = torch.matmul(weights, value).transpose(1, 2).flatten(2)
        return rows_of(context.reshape(states.shape[0], -1, reach, context.shape[2]), states.shape[1])

    def _heads(self, blocks: Tensor) -> Tensor:
        """Part the heads, [B, N, R, heads * depth] to [B * N, heads, R, depth]."""
        return self.split(blocks.flatten(0, 1))
