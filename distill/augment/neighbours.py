"""The words nearest to a word, by the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pocketbert.distill.augment.vectors import WordVectors

SPARE = 4
"""Candidates asked for beyond those wanted: the word itself is among them, perhaps in several spellings."""
_AT_ONCE = 256


class Neighbours:
    """Finds neighbours, of each distinct word once.

    Args:
        vectors: Where words lie.
        count: Neighbours per word, K of the paper.
    """

    def __init__(self, vectors: WordVectors, count: int) -> None:
        self.vectors, self.count = vectors, count
        self._known: dict[str, tuple[str, ...]] = {}

    def find(self, words: Sequence[str]) -> list[tuple[str, ...]]:
        """Neighbours of each word, at most `count`, in the order of the vocabulary; none of a word without a vector.

        The word itself, in whatever case, is none. The order says nothing of nearness, so that rounding, which depends
        on what is computed together, cannot change which number a neighbour has.
        """
        new = sorted(set(words) - self._known.keys())
        for start in range(0, len(new), _AT_ONCE):
            block = new[start : start + _AT_ONCE]
            self._known.update(zip(block, self._search(block), strict=True))
        return [self._known[w] for w in words]

    def _search(self, words: list[str]) -> list[tuple[str, ...]]:
        vectors, entries = self.vectors.of(words), self.vectors.words
        cosines = vectors @ self.vectors.matrix.T
        most = min(self.count + SPARE, len(entries))
        if most == 0:
            return [() for _ in words]
        best = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
        out = []
        for word, vector, row, places in zip(words, vectors, cosines, best, strict=True):
            nearest = places[np.lexsort((places, -row[places]))] if vector.any() else ()
            out.append(chosen(word, [int(i) for i in nearest], entries, self.count))
        return out


def chosen(word: str, best: Sequence[int], entries: Sequence[str], count: int) -> tuple[str, ...]:
    """The first `count` entries that are not the word itself, in the order of the vocabulary.

    Args:
        word: The word to be replaced.
        best: Places of entries, the best one first.
        entries: The vocabulary.
        count: Most entries.
    """
    others = [i for i in best if entries[i].lower() != word.lower()][:count]
    return tuple(entries[i] for i in sorted(others))
