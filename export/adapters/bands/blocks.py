"""Rows of tokens as blocks: what a token sees within its window lies in its own block and in both neighbours.

Nothing here depends on the length but sizes, so that a graph may leave it free.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def between_zeros(states: Tensor, before: int, after: int) -> Tensor:
    """States [B, L, W] with rows of zeros before and behind them, [B, before + L + after, W]."""
    return functional.pad(states, (0, 0, before, after))


def own_blocks(states: Tensor, size: int) -> Tensor:
    """Cut rows into blocks.

    Args:
        states: [B, L, W].
        size: Rows of a block.

    Returns:
        [B, N, size, W]; the last block ends with zeros.
    """
    return _cut(between_zeros(states, 0, size), 0, _count(states, size), size)


def near_blocks(states: Tensor, size: int, front: bool) -> Tensor:
    """For each block its rows and those of both neighbours, and behind them the first row of all.

    Args:
        states: [B, L, W].
        size: Rows of a block.
        front: Whether every block gets the first row of all.

    Returns:
        [B, N, 3 * size, W], or with the first row [B, N, 3 * size + 1, W]; zeros where there is no row.
    """
    count, padded = _count(states, size), between_zeros(states, size, 2 * size)
    parts = [_cut(padded, i, count, size) for i in range(3)]
    if front:
        parts.append(states[:, None, :1].expand(-1, count, -1, -1))
    return torch.cat(parts, 2)


def rows_of(blocks: Tensor, length: int) -> Tensor:
    """Blocks [B, N, size, W] as rows [B, L, W]."""
    return blocks.flatten(1, 2)[:, :length]


def _count(states: Tensor, size: int) -> int:
    return (states.shape[1] + (size - 1)) // size  # one sum: `pocketbert.export.coreml` looks for it


def _cut(padded: Tensor, first: int, count: int, size: int) -> Tensor:
    part = padded[:, first * size : (first + count) * size]
    return part.reshape(padded.shape[0], count, size, padded.shape[2])
