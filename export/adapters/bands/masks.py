"""Who attends to whom: windows, padding and global tokens, as numbers that layers add to attention scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbert.export.adapters.bands.blocks import near_blocks, own_blocks
from pocketbert.export.adapters.mask_4d import MASKED


@dataclass(frozen=True)
class Masks:
    """What layers add to attention scores, and which tokens are global.

    Attributes:
        near: By half the window: keys that a token may attend to, global ones among them. Over all pairs [B, 1, S, S] or
            [B, 1, 1, S]; over blocks [B * N, 1, R, 3 * R], where R is half the window, and one key more for a global token.
        real: Keys that a global token may attend to, [B, 1, 1, S].
        globals: 1 at global tokens, [B, S, 1]; None where there are none, or the first only.
        blocks: Whether attention is over blocks.
        front: Whether every block sees the first token, which is global.
    """

    near: dict[int, Tensor]
    real: Tensor
    globals: Tensor | None
    blocks: bool = False
    front: bool = False


def pair_masks(reaches: Sequence[int], attention_mask: Tensor, wide: Tensor | None, several: bool) -> Masks:
    """Masks of attention over all pairs of tokens.

    Args:
        reaches: Half the window of each layer.
        attention_mask: [B, S].
        wide: 1 at global tokens, [B, S]; None where a task has none.
        several: Whether more than the first token may be global.
    """
    real, places = _real(attention_mask)
    additive = (1.0 - real[:, None, None, :]) * MASKED
    near, length = {}, attention_mask.shape[1]
    for reach in sorted(set(reaches)):
        if isinstance(length, int) and length <= reach + 1:
            near[reach] = additive
            continue
        allowed = _within(reach, places[:, :, None], places[:, None, :])
        if wide is not None:
            allowed = torch.clamp(allowed + wide[:, None, :], min=0.0, max=1.0)
        near[reach] = ((allowed * real[:, None, :] - 1.0) * -MASKED)[:, None]
    return Masks(near, additive, wide[:, :, None] if wide is not None and several else None)


def block_masks(reaches: Sequence[int], attention_mask: Tensor, wide: Tensor | None) -> Masks:
    """Masks of attention over blocks of half a window: a global token is seen once, behind the blocks.

    Args:
        reaches: Half the window of each layer.
        attention_mask: [B, S].
        wide: 1 at the first token, the only global one, [B, S]; None where a task has none.
    """
    real, places = _real(attention_mask)
    additive = (1.0 - real[:, None, None, :]) * MASKED
    marks = torch.stack([places, real] if wide is None else [places, real, wide], -1)
    near = {}
    for reach in sorted(set(reaches)):
        own, seen = own_blocks(marks[:, :, :1], reach), near_blocks(marks, reach, wide is not None)[:, :, None]
        beside = seen[:, :, :, : 3 * reach]
        allowed = _within(reach, own, beside[..., 0]) * beside[..., 1]
        if wide is not None:
            first = seen[:, :, :, 3 * reach :, 2].expand(-1, -1, reach, -1)
            allowed = torch.cat([allowed * (1.0 - beside[..., 2]), first], -1)
        near[reach] = ((allowed - 1.0) * -MASKED).flatten(0, 1)[:, None]
    return Masks(near, additive, None, True, wide is not None)


def _real(attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """1 at real tokens, and their places, [B, S]."""
    real = attention_mask.to(torch.float32)
    # counted instead of numbered: a constant of all pairs would be stored in files of fixed lengths
    return real, torch.cumsum(real, 1)


def _within(reach: int, places: Tensor, others: Tensor) -> Tensor:
    """1 for places that are at most `reach` apart, else 0; both ends: Core ML writes infinity for one that is missing."""
    return torch.clamp(reach + 1.0 - torch.abs(places - others), min=0.0, max=1.0)
