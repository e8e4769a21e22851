"""Attention with relative positions (He et al. 2021, DeBERTa) as products with tables and slices, without any gather of scores.

What content adds for a distance depends on i - j only, so the relative table is looked up once for each distance, and not
for each pair: query i times the tables of all distances gives row i of a matrix [L, 2 L], in which the wanted entries lie on a
diagonal. A slice of the flattened matrix makes columns of diagonals.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pocketbert.export.adapters.lean.attention import AllRows
from pocketbert.export.adapters.parts import Parts


class Distances(nn.Module):
    """Which row of the relative tables belongs to which distance i - j between a query i and a key j."""

    def __init__(self, rows: Tensor, opaque: bool) -> None:
        """Lay out the rows.

        Args:
            rows: Row of each distance from -R to R, [2 R + 1]; R is larger than the longest input: torch.export would else
                make that length a case of its own.
            opaque: Add a zero that is computed from the inputs. Converters for fixed lengths would else look the rows
                up in advance, and store every table once for each length, in fp32.
        """
        super().__init__()
        self.largest, self.opaque = len(rows) // 2, opaque
        self.falling = nn.Buffer(rows.flip(0)[:-1].to(torch.int32).contiguous())
        """Rows of the distances R to 1 - R."""
        self.rising = nn.Buffer(rows[:-1].to(torch.int32).contiguous())
        """Rows of the distances -R to R - 1."""

    def forward(self, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choose the rows for a length.

        Args:
            mask: Added to the scores, [B, 1, 1, L], nowhere above 0.

        Returns:
            Rows of the distances L to 1 - L, those of -L to L - 1, both [2 L], and those from the first token, [L].
        """
        length = mask.shape[-1]
        zero = torch.relu(mask[0, 0, 0, :1]).to(torch.int32) if self.opaque else 0
        start, end = self.largest - length, self.largest + length
        falling = self.falling[start:end] + zero
        return falling, self.rising[start:end] + zero, falling[length:]


class DisentangledRows(nn.Module):
    """Disentangled attention of every token: content to content, content to position, position to content.

    Takes over the projections of `parts` and changes the query's in place.
    """

    def __init__(self, parts: Parts, keys: Tensor | None, queries: Tensor | None) -> None:
        """Take over the projections.

        Args:
            parts: Of the layer.
            keys: Positions as keys, projected, [rows, heads * depth]; None without content to position.
            queries: Positions as queries, projected, [rows, heads * depth]; None without position to content.
        """
        super().__init__()
        self.content = AllRows(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.keys, self.queries = _table(keys), _table(None if queries is None else queries * parts.scaling)

    def forward(self, states: Tensor, mask: Tensor, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Attend.

        Args:
            states: [B, L, H].
            mask: Added to the scores, [B, 1, 1, L].
            rows: What `Distances` returns.

        Returns:
            Context, the heads next to each other, [B, L, heads * depth].
        """
        own = self.content
        query, key, value = own.split(own.query(states)), own.split(own.key(states)), own.split(own.value(states))
        scores = torch.matmul(query, key.transpose(2, 3))
        if self.keys is not None:
            scores = scores + shifted(torch.matmul(query, self._heads(self.keys(rows[0]))))
        if self.queries is not None:
            scores = scores + shifted(torch.matmul(key, self._heads(self.queries(rows[1])))).transpose(2, 3)
        weights = torch.softmax(scores + mask, -1)
        return torch.matmul(weights, value).transpose(1, 2).flatten(2)

    def _heads(self, table: Tensor) -> Tensor:
        """[n, heads * depth] to [1, heads, depth, n]."""
        count, width = table.shape
        heads = self.content.heads
        return table.view(1, count, heads, width // heads).permute(0, 2, 3, 1)


class DisentangledFirstRow(nn.Module):
    """Disentangled attention of the first token: needs the keys of all tokens, but no values of the others.

    (q + Q_j)·k_j + q·K_j for each key j, where K and Q are the tables of the distance -j.
    """

    def __init__(self, parts: Parts, keys: Tensor | None, queries: Tensor | None) -> None:
        """Take over the projections, see `DisentangledRows`."""
        super().__init__()
        self.content = AllRows(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.keys, self.queries = _table(keys), _table(None if queries is None else queries * parts.scaling)
        depth = parts.value.out_features // parts.heads
        self.own = nn.Buffer(torch.eye(parts.heads, dtype=parts.value.weight.dtype).repeat_interleave(depth, 1))
        """1 where a column belongs to the row's head, [heads, heads * depth]."""

    def forward(self, states: Tensor, mask: Tensor, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Attend from the first token.

        Args:
            states: [B, L, H].
            mask: Added to the scores, [B, 1, 1, L].
            rows: What `Distances` returns.

        Returns:
            Context of the first token, [B, 1, heads * depth].
        """
        query, key = self.content.query(states[:, :1]), self.content.key(states)
        products = key * query if self.queries is None else key * (query + self.queries(rows[2]))
        if self.keys is not None:
            products = products + query * self.keys(rows[2])
        batch, length, width = products.shape
        heads = self.content.heads
        scores = products.view(batch, length, heads, width // heads).sum(-1).transpose(1, 2)
        weights = torch.softmax(scores + mask[:, 0], -1)
        context: Tensor = self.content.value(torch.matmul(weights, states))
        return (context * self.own).sum(1, keepdim=True)


def shifted(products: Tensor) -> Tensor:
    """Turn columns of distances into columns of tokens.

    Args:
        products: [B, heads, L, 2 L]; column c of row i belongs to token i + c - L.

    Returns:
        [B, heads, L, L].
    """
    batch, heads, length, _ = products.shape
    flat = products.reshape(batch, heads, -1)[..., length:]
    # not -1: torch.export cannot prove for every range of lengths that the quotient is whole
    return flat.reshape(batch, heads, length, 2 * length - 1)[..., :length]


def _table(rows: Tensor | None) -> nn.Embedding | None:
    if rows is None:
        return None
    made = nn.Embedding(rows.shape[0], rows.shape[1], device="meta")
    made.weight = nn.Parameter(rows.detach().contiguous())
    return made
