"""Which words of a text may be replaced, and their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import TokenizerKind
from pocketbert.distill.augment.stop_words import STOP_WORDS
from pocketbert.distill.text.corpora.tokenizer import CorpusTokenizer

_SPACE = {TokenizerKind.BYTE_BPE: "Ġ", TokenizerKind.SENTENCEPIECE: "▁"}
"""What stands for the blank before a word in vocabularies that spell it."""
_CONTINUES = "##"
SHORTEST = 3
"""Letters of the shortest word that is replaced or replaces another."""


@dataclass(frozen=True)
class Word:
    """A word that may be replaced.

    Attributes:
        start: Its first character in the text, in code points.
        end: One behind its last one.
        text: The word as the text spells it.
        token: Place of its only token among the text's tokens; None where it has several, or an unknown one.
    """

    start: int
    end: int
    text: str
    token: int | None


@dataclass(frozen=True)
class WordText:
    """A text as augmentation sees it.

    Attributes:
        text: The text.
        ids: All its tokens without special ones, [L] int64.
        words: The words that may be replaced, in order.
    """

    text: str
    ids: NDArray[np.int64]
    words: tuple[Word, ...]


def is_word(text: str) -> bool:
    """Whether a text is one word of a script that has capitals: Latin, Greek, Cyrillic, Armenian.

    Of scripts without capitals, tokenizers of the family split Chinese and Japanese into single characters and others
    into fragments, and what replaces these is no language; such words stay as they are.
    """
    return text.isalpha() and all(c.lower() != c.upper() for c in text)


def is_replaceable(word: str) -> bool:
    """Whether a word may be replaced, and may replace others: `is_word`, three letters or more, no English stop word.

    Shorter entries of a vocabulary are fragments and initials for the most part.
    """
    return len(word) >= SHORTEST and is_word(word) and word.lower() not in STOP_WORDS


class WordReader:
    """Texts into words by the tokenizer's own pre-tokenization.

    Args:
        path: ``tokenizer.json`` or the folder that holds it.
        kind: How its vocabulary tells the beginning of a word from its continuation.
    """

    def __init__(self, path: Path, kind: TokenizerKind) -> None:
        self.base, self.kind = CorpusTokenizer(path), kind
        """Special tokens around a text, and the digest."""
        file = path / "tokenizer.json" if path.is_dir() else path
        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def read(self, texts: Sequence[str]) -> list[WordText]:
        """Tokens and replaceable words (`is_replaceable`) of each text.

        Raises:
            InputError: If the tokenizer cannot encode a text.
        """
        try:
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises plain Exception
            raise InputError(Problem("tokenizer.json", f"cannot encode: {error}.")) from error
        return [
            WordText(t, np.array(e.ids, np.int64), tuple(self._words(t, e)))
            for t, e in zip(texts, encodings, strict=True)
        ]

    def _words(self, text: str, encoding: Encoding) -> list[Word]:
        tokens: dict[int, list[int]] = {}
        for place, number in enumerate(encoding.word_ids):
            if number is not None:
                tokens.setdefault(number, []).append(place)
        out = []
        for places in tokens.values():
            start = min(encoding.offsets[p][0] for p in places)
            end = max(encoding.offsets[p][1] for p in places)
            span = text[start:end]  # some tokenizers count the blank before a word to it
            start, word = end - len(span.lstrip()), span.strip()
            if not is_replaceable(word):
                continue
            single = len(places) == 1 and encoding.ids[places[0]] != self.base.unknown_id
            out.append(Word(start, start + len(word), word, places[0] if single else None))
        return sorted(out, key=lambda w: w.start)

    def pieces(self, words: Sequence[str]) -> list[list[int]]:
        """Token ids of single words as they occur within a text; empty where one of them is unknown."""
        blank = "" if self.kind is TokenizerKind.WORDPIECE else " "
        encoded = self._tokenizer.encode_batch([blank + w for w in words], add_special_tokens=False)
        return [[] if self.base.unknown_id in e.ids else list(e.ids) for e in encoded]

    def text(self, pieces: Sequence[int]) -> str:
        """The word that some tokens spell, without blanks around it."""
        return str(self._tokenizer.decode(list(pieces))).strip()

    def vocabulary(self) -> dict[int, str]:
        """Vocabulary entries that are whole words and `is_replaceable`, by id, ascending.

        What continues a word (``##ing``), special tokens, numbers and signs are none.
        """
        space, special = _SPACE.get(self.kind, ""), set(self.base.special_ids)
        out = {}
        for token, id in sorted(self._tokenizer.get_vocab().items(), key=lambda entry: entry[1]):
            if id in special or not token.startswith(space) or token.startswith(_CONTINUES):
                continue
            # bytes of a byte-level vocabulary are spelt as other letters
            word = str(self._tokenizer.decode([id])).strip() if space else token
            if is_replaceable(word):
                out[int(id)] = word
        return out
