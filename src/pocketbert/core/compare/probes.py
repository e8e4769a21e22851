"""Inputs of drawn token ids: they read parts of a model that real texts leave out, at the full length and in both segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer
from pocketbert.core.seeds import generator

_SEED = 20_261_123
_TOKENS = 1024
_FEWEST, _MOST = 2, 8
_BEFORE_MASK = 6


def drawn_count(length: int) -> int:
    """Tell how many drawn rows are enough at a length: about 1,024 tokens in all, 2 to 8 rows."""
    return min(max(_TOKENS // length, _FEWEST), _MOST)


def drawn_rows(
    tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool], masked: bool = False
) -> list[Encoded]:
    """Draw inputs that fill `length` tokens: special tokens where the tokenizer places them, any others in between.

    The ids are drawn without putting back until every one was used, so that a small vocabulary is read completely. The
    same arguments give the same rows, and fewer rows are the first of more.

    Args:
        tokenizer: Places the special tokens.
        vocabulary: Rows of the embedding table; ids beyond it are not drawn.
        length: Tokens of each row, at most the tokenizer's `max_length`.
        kinds: For each row whether it is a pair of texts, so that its second half is in the second segment.
        masked: Whether the first, middle and last drawn token of each row is the mask token, for models that predict it.

    Returns:
        The rows; none where the vocabulary has nothing but special tokens.
    """
    return [
        row.masked(tokenizer.mask_id) if masked else row.encoded()
        for row in _draw(tokenizer, vocabulary, length, kinds)
    ]


def drawn_texts(
    tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool], mask: str | None = None
) -> list[Text]:
    """Draw texts instead of rows, for comparisons that start from text; see `drawn_rows`.

    The tokenizer may cut a text into other pieces than it was made of. At the tokenizer's longest input every text fills
    the length; below it a text may be a few tokens shorter.

    Args:
        tokenizer: Makes text of the drawn ids.
        vocabulary: Rows of the embedding table; ids beyond it are not drawn.
        length: Most tokens of each text.
        kinds: For each text whether it is a pair.
        mask: A mask token to put behind the first few words of single texts.
    """
    return [_text(tokenizer, row, length, mask) for row in _draw(tokenizer, vocabulary, length, kinds)]


@dataclass(frozen=True)
class _Row:
    """A frame and the ids that were drawn for its places."""

    frame: Encoded
    places: NDArray[np.int64]
    ids: NDArray[np.int64]

    def encoded(self) -> Encoded:
        ids = self.frame.ids.copy()
        ids[self.places] = self.ids
        return Encoded(ids, self.frame.type_ids, truncated=False)

    def masked(self, mask_id: int | None) -> Encoded:
        row = self.encoded()
        if mask_id is not None and self.places.size:
            row.ids[self.places[[0, self.places.size // 2, -1]]] = mask_id
        return row

    def parts(self) -> list[list[int]]:
        own = _parts(self.frame)[self.places]
        return [self.ids[own == part].tolist() for part in np.unique(own)]


def _draw(tokenizer: TextTokenizer, vocabulary: int, length: int, kinds: Sequence[bool]) -> list[_Row]:
    pool = drawn_pool(tokenizer, vocabulary)
    if not pool.size:
        return []
    frames = [tokenizer.frame(length, pair=pair) for pair in kinds]
    places = [np.flatnonzero(_parts(f) >= 0) for f in frames]
    rounds = range(-(-sum(p.size for p in places) // pool.size))
    stream = np.concatenate([pool[:0], *(generator(_SEED, "drawn ids", r).permutation(pool) for r in rounds)])
    ends = np.cumsum([p.size for p in places])
    return [_Row(f, p, stream[end - p.size : end]) for f, p, end in zip(frames, places, ends, strict=True)]


def _text(tokenizer: TextTokenizer, row: _Row, length: int, mask: str | None) -> Text:
    parts = row.parts()
    while True:
        words = [printable(tokenizer.decode(ids)) for ids in parts]
        if mask is not None and len(parts) == 1:
            head = printable(tokenizer.decode(parts[0][:_BEFORE_MASK]))
            words = [" ".join([head, mask, printable(tokenizer.decode(parts[0][_BEFORE_MASK:]))])]
        text: Text = words[0] if len(words) == 1 else (words[0], words[1])
        have, most = len(tokenizer.encode([text])[0]), tokenizer.max_length
        if have < length == most and len(parts[0]) < 4 * length:  # pieces grew together
            parts = [[*ids, *ids] for ids in parts]
        elif have > length and min(map(len, parts)) > 1:
            parts = [ids[: max(len(ids) - -(-(have - length) // len(parts)), 1)] for ids in parts]
        else:
            return text


def printable(text: str) -> str:
    """A text without the characters that end lines or control terminals."""
    return "".join(c for c in text if c.isprintable())


def drawn_pool(tokenizer: TextTokenizer, vocabulary: int) -> NDArray[np.int64]:
    """List the ids that are drawn: every piece of text that the tokenizer knows and the embedding table has."""
    frame = tokenizer.frame(tokenizer.max_length, pair=True)
    special = {*tokenizer.special_ids, tokenizer.pad_id, tokenizer.mask_id, *frame.ids[_parts(frame) < 0].tolist()}
    return np.array([i for i in tokenizer.ids if i < vocabulary and i not in special], np.int64)


def _parts(frame: Encoded) -> NDArray[np.int64]:
    assert frame.places is not None
    return frame.places.parts
