"""A tokenized input: its ids, the places of its tokens, and how it is cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Text = str | tuple[str, str]
"""One text, or a pair of texts."""


@dataclass(frozen=True)
class Places:
    """The positions of an input's tokens in its text.

    Attributes:
        offsets: First and behind-last character of each token in its text, [L, 2] code points; [0, 0] of special tokens.
        words: Number of the word that each token belongs to, [L]; -1 of special tokens. A word is what the tokenizer's
            own pre-tokenizer splits off. Of single texts only: of pairs the library numbers other things.
        parts: Which text each token comes from, [L]: 0, 1, or -1 for special tokens.
    """

    offsets: NDArray[np.int64]
    words: NDArray[np.int64]
    parts: NDArray[np.int64]

    def take(self, keep: NDArray[np.int64]) -> Places:
        """The places of some tokens."""
        return Places(self.offsets[keep], self.words[keep], self.parts[keep])


@dataclass(frozen=True)
class Encoded:
    """One tokenized input.

    Attributes:
        ids: Token ids with special tokens, length L, int64.
        type_ids: Segment ids, length L, int64.
        truncated: Whether tokens were cut off.
        places: Where the tokens stand in the text, for tasks whose answers are places; else None.
        tail: Special tokens behind the text, or behind the second one of a pair: 1 for BERT, 2 for XLNet.
        keeps_end: Whether the beginning of a text is what is cut off; its places are known then.
        extra: Inputs that are made of other data columns, by name, [L] or [L, width]; empty where there are none.
    """

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]
    truncated: bool
    places: Places | None = None
    tail: int = 1
    keeps_end: bool = False
    extra: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.ids)


def cut(row: Encoded, length: int) -> Encoded:
    """A row of at most `length` tokens that still ends with the special tokens behind its text.

    Where the places are known, the end of the text, or of the longer one of a pair, is left out (the beginning of a row that
    keeps its end), so that all special tokens stay where there is room for them: some models look for the separators.
    """
    if len(row) <= length:
        return row
    places = row.places
    tail = min(length, row.tail if places is None else max(1, tail_of(places.parts)))
    keep = np.r_[0 : length - tail, len(row) - tail : len(row)]
    if places is not None and places.parts.max(initial=-1) >= 0:
        keep = _shortened(places.parts, length, keep, row.keeps_end)
    extra = {name: values[keep] for name, values in row.extra.items()}
    return replace(
        row,
        ids=row.ids[keep],
        type_ids=row.type_ids[keep],
        truncated=True,
        places=None if places is None else places.take(keep),
        extra=extra,
    )


def _shortened(
    parts: NDArray[np.int64], length: int, otherwise: NDArray[np.int64], keeps_end: bool
) -> NDArray[np.int64]:
    """Places of the tokens that stay of a text or a pair; `otherwise` where not one token of each would."""
    first, second = (np.flatnonzero(parts == part) for part in (0, 1))
    room = length - (len(parts) - first.size - second.size)
    if room < 1 + bool(second.size):
        return otherwise
    short = min(first.size, second.size, room // 2)
    sizes = (room - short, short) if first.size > second.size else (short, room - short)
    if keeps_end:
        first, second = first[max(0, first.size - sizes[0]) :], second[max(0, second.size - sizes[1]) :]
    return np.sort(np.concatenate([np.flatnonzero(parts < 0), first[: sizes[0]], second[: sizes[1]]]))


def tail_of(parts: NDArray[np.int64]) -> int:
    """How many special tokens are last."""
    text = np.flatnonzero(parts >= 0)
    return len(parts) - 1 - int(text[-1]) if text.size else len(parts)
