"""Inputs of drawn token ids: they read parts of a model that real texts leave out, at the full length and in both segments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.core.seeds import generator

_SEED = 20_261_123
_TOKENS = 1024
_FEWEST, _MOST = 2, 8


def drawn_count(length: int) -> int:
    """Tell how many drawn rows are enough at a length: about 1,024 tokens in all, 2 to 8 rows."""
    return min(max(_TOKENS // length, _FEWEST), _MOST)


def drawn_rows(
    tokenizer: TextTokenizer, vocabulary: int, length: int, count: int, *, pairs: bool, masked: bool = False
) -> list[Encoded]:
    """Draw inputs that fill `length` tokens: special tokens where the tokenizer places them, any others in between.

    The ids are drawn without putting back until every one was used, so that a small vocabulary is read completely. The
    same arguments give the same rows, and fewer rows are the first of more.

    Args:
        tokenizer: Places the special tokens.
        vocabulary: Rows of the embedding table; ids beyond it are not drawn.
        length: Tokens of each row, at most the tokenizer's `max_length`.
        count: How many rows.
        pairs: Whether every second row is a pair of texts, so that its second half is in the second segment.
        masked: Whether the first, middle and last drawn token of each row is the mask token, for models that predict it.

    Returns:
        The rows; none where the vocabulary has nothing but special tokens.
    """
    frames = [tokenizer.frame(length, pair=pairs and i % 2 == 1) for i in range(count)]
    pool = drawn_pool(tokenizer, vocabulary)
    if not pool.size:
        return []
    stream = _stream(pool, sum(int((_parts(f) >= 0).sum()) for f in frames))
    out, start = [], 0
    for frame in frames:
        places = np.flatnonzero(_parts(frame) >= 0)
        ids = frame.ids.copy()
        ids[places] = stream[start : start + places.size]
        start += places.size
        if masked and tokenizer.mask_id is not None and places.size:
            ids[places[[0, places.size // 2, -1]]] = tokenizer.mask_id
        out.append(Encoded(ids, frame.type_ids, truncated=False))
    return out


def drawn_pool(tokenizer: TextTokenizer, vocabulary: int) -> NDArray[np.int64]:
    """List the ids that are drawn: every piece of text that the tokenizer knows and the embedding table has."""
    frame = tokenizer.frame(tokenizer.max_length, pair=True)
    special = {*tokenizer.special_ids, tokenizer.pad_id, tokenizer.mask_id, *frame.ids[_parts(frame) < 0].tolist()}
    return np.array([i for i in tokenizer.ids if i < vocabulary and i not in special], np.int64)


def _parts(frame: Encoded) -> NDArray[np.int64]:
    assert frame.places is not None
    return frame.places.parts


def _stream(pool: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The pool in a drawn order, then in another one, until there are `count`."""
    rounds = range(-(-count // pool.size))
    return np.concatenate([generator(_SEED, "drawn ids", r).permutation(pool) for r in rounds])[:count]
