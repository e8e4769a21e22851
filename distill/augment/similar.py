"""Similar words of as many tokens, by the cosine of word vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pocketbert.distill.augment.neighbours import Neighbours
from pocketbert.distill.augment.vectors import WordVectors
from pocketbert.distill.augment.words import WordReader

CANDIDATES = 15
"""Nearest words to choose from, as in TinyBERT's augmentation; MacBERT's authors name no number."""


class VectorWords:
    """The nearest words of a word that the tokenizer cuts into as many tokens; satisfies `SimilarWords` of the masks.

    Args:
        vectors: Where words lie: a file of word vectors, or a teacher's embeddings.
        reader: The teacher's tokenizer.
        vocabulary: V; words with a token beyond it are left out.
        count: Nearest words that are looked at.
    """

    def __init__(self, vectors: WordVectors, reader: WordReader, vocabulary: int, count: int = CANDIDATES) -> None:
        self._neighbours, self._reader, self._vocabulary = Neighbours(vectors, count), reader, vocabulary
        self._known: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}

    def of(self, word: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
        """Words like one; see `pocketbert.distill.text.masking.similar.SimilarWords`."""
        if word not in self._known:
            self._known[word] = self._search(word)
        return self._known[word]

    def key(self) -> list[Any]:
        """Digest of the words and their vectors; see `pocketbert.distill.text.masking.similar.SimilarWords`."""
        vectors = self._neighbours.vectors
        digest = hashlib.sha256("\n".join(vectors.words).encode())
        digest.update(np.ascontiguousarray(vectors.matrix, "<f4").tobytes())
        return [digest.hexdigest(), self._neighbours.count, self._vocabulary]

    def _search(self, word: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        text = self._reader.text(word)
        if not text:
            return ()
        (found,) = self._neighbours.find([text])
        pieces = [tuple(p) for p in self._reader.pieces(found)] if found else []
        return tuple(p for p in pieces if len(p) == len(word) and p != word and max(p) < self._vocabulary)
