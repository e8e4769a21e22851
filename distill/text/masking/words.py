"""Where words begin in a row of token ids, read off how the vocabulary spells its tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.predict.tokenization import TextTokenizer

_WORDPIECE, _BYTES, _SENTENCEPIECE = "##", "Ġ", "▁"
_BYTE_BLANKS = ("Ġ", "Ċ", "ĉ", "č")
"""Blank, line feed, tab and carriage return as byte-level vocabularies spell them."""
_UNSPACED = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))
"""Kana and Chinese characters: scripts that put no blanks between words."""
_UNKNOWN = ("[UNK]", "<unk>")


def continues_word(tokenizer: TextTokenizer, size: int) -> NDArray[np.bool_] | None:
    """Which tokens continue a word.

    The mark that most tokens carry tells the kind of vocabulary:

    - WordPiece: tokens with ``##`` continue a word. Punctuation is a word, and so is every Chinese character, as in
      BERT; words of several characters, as BERT-wwm has them of a segmenter, cannot be told from ids.
    - Byte-level BPE: tokens without a leading ``Ġ`` (or another blank) do. Punctuation belongs to the word that it
      follows, as in fairseq's whole-word masks. Where no blanks are written (Chinese, Japanese, Thai), a word is
      all text up to the next blank.
    - SentencePiece: tokens without a leading ``▁`` do, but for those that begin with a Chinese character or kana:
      there every token is a word. Thai, Lao, Khmer and Burmese words reach to the next blank.

    A token behind a special or unknown one begins a word whatever it looks like; see `word_starts`.

    Args:
        tokenizer: Spells the tokens.
        size: V, the highest id plus one.

    Returns:
        [V]; None where no token carries one of these marks: of such a vocabulary words cannot be told.
    """
    tokens = [tokenizer.token(i) for i in range(size)]
    marks = {mark: sum(t.startswith(mark) for t in tokens) for mark in (_WORDPIECE, _BYTES, _SENTENCEPIECE)}
    kind = max(marks, key=marks.__getitem__)
    if not marks[kind]:
        return None
    if kind == _WORDPIECE:
        return np.array([t.startswith(kind) and len(t) > len(kind) for t in tokens])
    if kind == _BYTES:
        return np.array([not t.startswith((*_BYTE_BLANKS, " ")) for t in tokens])
    return np.array([not t.startswith(kind) and not _unspaced(t) for t in tokens])


def word_starts(continues: NDArray[np.bool_], apart: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where words begin in a row.

    Args:
        continues: Whether each token continues a word by its spelling, [n].
        apart: Tokens that belong to no word (special and unknown ones), [n].

    Returns:
        [n]; True at the first token of each word, and at tokens that belong to none.
    """
    after = np.empty_like(apart)
    after[:1], after[1:] = True, apart[:-1]
    starts: NDArray[np.bool_] = ~continues | apart | after
    return starts


def wordless_ids(tokenizer: TextTokenizer, size: int) -> list[int]:
    """Ids that mean no piece of a text that could be predicted: special tokens and the unknown token, ascending.

    The unknown token is found by its name, as some tokenizer files do not declare it special.

    Args:
        tokenizer: Whose ids.
        size: V, the highest id plus one.
    """
    unknown = (i for i in range(size) if tokenizer.token(i) in _UNKNOWN)
    return sorted({*tokenizer.special_ids, *unknown})


def _unspaced(token: str) -> bool:
    return bool(token) and any(low <= ord(token[0]) <= high for low, high in _UNSPACED)
