"""What the timed inferences read: real texts, at their own length or joined to a wanted one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.records import TEXT, Length
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.predictor import fitting
from pocketbert.core.predict.tokenization import Encoded, Text, TextTokenizer

MAX_TEXTS = 100
"""Real texts are cycled after this many: enough for a typical mix of lengths."""

Feed = dict[str, NDArray[np.int64]]
"""Inputs of one inference by name, each [1, L]."""


def choose_texts(texts: Sequence[Text], most: int = MAX_TEXTS) -> list[Text]:
    """At most `most` texts, evenly spaced, so that sorted data gives a fair mix as well.

    Raises:
        InputError: If there are none.
    """
    if not texts:
        raise InputError(Problem("texts", "none given.", "Give at least one real text to measure with."))
    if len(texts) <= most:
        return list(texts)
    return [texts[i * len(texts) // most] for i in range(most)]


def row_of_length(rows: Sequence[Encoded], length: int) -> Encoded:
    """A token sequence of exactly `length` tokens that looks like real input.

    The tokens between the first and the last of each row are strung together and put between the first
    row's first and last token (the special tokens). Random ids would do for fp32, but dynamic int8
    computes ranges from the values, and an embedding table that is read all over is slower than text.

    Args:
        rows: Tokenized real texts.
        length: Wanted length, at least 3.

    Returns:
        The row; type ids are those of a single text.

    Raises:
        InputError: If the texts hold no tokens besides the special ones, or `length` is too small.
    """
    if length < 3:
        raise InputError(
            Problem("lengths", f"{length} leaves no room for text next to 2 special tokens; allowed: 3 or more.")
        )
    inner = np.concatenate([r.ids[1:-1] for r in rows]) if rows else np.zeros(0, np.int64)
    if not inner.size:
        raise InputError(Problem("texts", "hold no tokens except the special ones.", "Give longer texts."))
    ids = np.concatenate([rows[0].ids[:1], np.resize(inner, length - 2), rows[0].ids[-1:]])
    return Encoded(ids, np.zeros(length, np.int64), False)


def fixed_shapes(asked: Sequence[Length], fixed: Sequence[int], most: int) -> list[int]:
    """The lengths of a compiled file: those that were asked for, without text, which has none.

    Args:
        asked: Tokens, or ``"text"``.
        fixed: The only lengths that the file takes, of which the smallest ones that hold the others are taken; empty where it
            takes all.
        most: Longest input; the only length where no number was asked for.
    """
    wanted = [min(int(x), most) for x in asked if x != TEXT] or [most]
    return list(dict.fromkeys(min((n for n in fixed if n >= x), default=max(fixed, default=x)) for x in wanted))


def feeds(tokenizer: TextTokenizer, texts: Sequence[Text], length: Length, fixed: Sequence[int] = ()) -> list[Feed]:
    """Inputs to cycle through, one inference each, padded only where the file takes some lengths only.

    Args:
        tokenizer: The variant's tokenizer.
        texts: Real texts.
        length: Tokens, or ``"text"`` for every text at its own length.
        fixed: The only lengths that the file takes; empty where it takes all.

    Returns:
        One entry per text for ``"text"``, else a single one.
    """
    rows = tokenizer.encode(list(texts))
    wanted = rows if length == TEXT else [row_of_length(rows, length)]
    return [tokenizer.pad([row], fitting(fixed, len(row))) for row in wanted]
