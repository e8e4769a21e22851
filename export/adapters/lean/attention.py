"""Attention with fewer operations than the stock modules have, and the same result."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AllRows(nn.Module):
    """Attention of every token, its scale folded into the query's weights.

    Takes over the modules that it is given and changes the query's weights in place.
    """

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, scaling: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.heads = query, key, value, heads
        _fold_scale(query, scaling)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend.

        Args:
            queries: What queries are made from, [B, L, D].
            keys: What keys are made from, [B, L, D].
            values: What values are made from, [B, L, E].
            mask: Added to the scores, [B, 1, 1, L].

        Returns:
            Context, the heads side by side, [B, L, heads * depth].
        """
        query, key, value = (
            self.split(self.query(queries)),
            self.split(self.key(keys)),
            self.split(self.value(values)),
        )
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + mask, -1)
        return torch.matmul(weights, value).transpose(1, 2).flatten(2)

    def split(self, states: Tensor) -> Tensor:
        """Part the heads, [B, L, heads * depth] to [B, heads, L, depth]."""
        batch, length, width = states.shape
        return states.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


class FirstRow(nn.Module):
    """Attention of the first token, without keys and values of the others.

    A single query q turns the two large projections round: q·(K x + k) is (Kᵀ q)·x plus a number that is the same
    for all tokens, which softmax drops; and the mean of V x + v under weights that sum to 1 is V (mean of x) + v.
    Both then act on one row per head instead of one per token.
    """

    def __init__(
        self, query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, scaling: float, opaque: bool = False
    ) -> None:
        """Take over the projections of an attention module.

        Args:
            query: Changed in place: the scale is folded into it.
            key: Its transpose is stored instead.
            value: Kept.
            heads: Number of heads.
            scaling: What scores are multiplied with.
            opaque: Add a head that is cut off again. The cut keeps litert-torch from seeing a product with a
                transposed operand, which it would write as FULLY_CONNECTED with computed weights; XNNPACK refuses
                that, and its part of the graph falls in two.
        """
        super().__init__()
        self.query, self.value, self.heads = query, value, heads
        _fold_scale(query, scaling)
        self.key = nn.Linear(key.out_features, key.in_features, bias=False, dtype=key.weight.dtype)
        self.key.weight = nn.Parameter(key.weight.detach().t().contiguous())
        own = torch.eye(heads, dtype=key.weight.dtype).repeat_interleave(key.out_features // heads, 1)
        self.own = nn.Buffer(own)
        """1 where a column belongs to the row's head, [heads, heads * depth]."""
        self.probing = nn.Buffer(torch.cat([own, own[:1]]) if opaque else own)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend from the first token.

        Args:
            queries: The first token, [B, 1, D].
            keys: All tokens, [B, L, D].
            values: All tokens, [B, L, E].
            mask: Added to the scores, [B, 1, 1, L].

        Returns:
            Context of the first token, [B, 1, heads * depth].
        """
        probes = self.key(self.query(queries) * self.probing).transpose(1, 2)
        scores = torch.matmul(keys, probes[:, :, : self.heads]).transpose(1, 2)
        weights = torch.softmax(scores + mask[:, 0], -1)
        context: Tensor = self.value(torch.matmul(weights, values))
        return (context * self.own).sum(1, keepdim=True)


def _fold_scale(query: nn.Linear, scaling: float) -> None:
    with torch.no_grad():
        query.weight.mul_(scaling)
        if query.bias is not None:
            query.bias.mul_(scaling)
