"""How a teacher's signals for one row lie in a cache: which arrays, in what order, of what size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Signal
from pocketbert.distill.teacher.signals import Taught

TOKENS = -1
"""Stands in a shape for the number of tokens of the row."""

_GIB = 1 << 30


class Part(BaseModel):
    """One array of a row's record.

    Attributes:
        signal: What kind it is; ``logits`` stands for all task outputs.
        name: Name of the output, or number of the hidden state or layer.
        shape: Shape for one row, `TOKENS` where its tokens stand: (C,), (`TOKENS`, d), (H, `TOKENS`, `TOKENS`).
    """

    model_config = ConfigDict(frozen=True)

    signal: Signal
    name: str
    shape: tuple[int, ...]

    def shape_of(self, tokens: int) -> tuple[int, ...]:
        """Shape for a row of that many tokens."""
        return tuple(tokens if n == TOKENS else n for n in self.shape)

    def place(self, first: int, tokens: int) -> tuple[slice, ...]:
        """The positions of a row's own values in its padded array."""
        return tuple(slice(first, first + tokens) if n == TOKENS else slice(None) for n in self.shape)

    def values(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers to store for rows of these many tokens, same shape."""
        per_token = math.prod(n for n in self.shape if n != TOKENS)
        out: NDArray[np.int64] = per_token * lengths ** self.shape.count(TOKENS)
        return out


class Layout(BaseModel):
    """Records of all rows, one behind the other in row order.

    A row's signals stand together, so that reading a row at random is one read.

    Attributes:
        parts: Arrays of a record, in order.
        half: Whether numbers are stored as fp16.
    """

    model_config = ConfigDict(frozen=True)

    parts: tuple[Part, ...]
    half: bool

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Little-endian number type on disk."""
        return np.dtype("<f2" if self.half else "<f4")

    def starts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each of N records begins, in numbers, and where the last one ends: [N + 1]."""
        sizes = sum((part.values(lengths) for part in self.parts), np.zeros(len(lengths), np.int64))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def layout_of(taught: Taught, half: bool) -> Layout:
    """The layout that holds what a teacher returned for any batch.

    Args:
        taught: Signals of a batch of whatever size.
        half: Whether to store fp16.
    """
    parts = [
        Part(signal=Signal.LOGITS, name=name, shape=_output_shape(name, value))
        for name, value in taught.outputs.items()
    ]
    parts += [
        Part(signal=Signal.HIDDEN, name=str(n), shape=(TOKENS, value.shape[-1])) for n, value in taught.hidden.items()
    ]
    parts += [
        Part(signal=Signal.ATTENTION, name=str(n), shape=(value.shape[1], TOKENS, TOKENS))
        for n, value in taught.scores.items()
    ]
    return Layout(parts=tuple(parts), half=half)


def _output_shape(name: str, value: Tensor) -> tuple[int, ...]:
    """Logits [B, C] belong to the row; every other output has the tokens behind the batch."""
    if name == "logits" and value.ndim == 2:
        return tuple(value.shape[1:])
    return (TOKENS, *value.shape[2:])


def estimate_bytes(layout: Layout, lengths: Sequence[int], signal: Signal | None = None) -> int:
    """What a cache will take on disk, exactly but for some kilobytes of description.

    Args:
        layout: Which arrays.
        lengths: Tokens of each row.
        signal: Count this one alone.
    """
    tokens = np.asarray(lengths, np.int64)
    chosen = [p for p in layout.parts if signal in (None, p.signal)]
    return sum(int(p.values(tokens).sum()) for p in chosen) * layout.dtype.itemsize


def check_size(layout: Layout, lengths: Sequence[int], limit: int, where: str) -> None:
    """Refuse a cache that would be larger than wanted.

    Args:
        layout: Which arrays.
        lengths: Tokens of each row.
        limit: Most bytes.
        where: Recipe key, for errors.

    Raises:
        InputError: Naming the bytes, what costs most, and every single change that would do.
    """
    total = estimate_bytes(layout, lengths)
    if total <= limit:
        return
    costs = {s: estimate_bytes(layout, lengths, s) for s in Signal}
    ranked = sorted((s for s in costs if costs[s]), key=lambda s: -costs[s])
    shares = ", ".join(f"{s.value} {_gib(costs[s])} ({costs[s] / total:.0%})" for s in ranked)
    fixes = [
        f"give {s.value} weight 0 ({_gib(total - costs[s])} remain)"
        for s in ranked[:1]
        if total - costs[s] <= limit and len(ranked) > 1
    ]
    if not layout.half and total // 2 <= limit:
        fixes.append(f"store fp16 (cache_teacher: fp16; {_gib(total // 2)})")
    fixes.append("run the teacher online (leave cache_teacher out)")
    raise InputError(
        Problem(
            where,
            f"teacher outputs of {len(lengths):,} rows would take {total:,} bytes ({_gib(total)}), "
            f"more than the allowed {_gib(limit)}: {shares}.",
            f"One of: {'; '.join(fixes)}.",
        )
    )


def _gib(count: int) -> str:
    return f"{count / _GIB:.3g} GiB"
