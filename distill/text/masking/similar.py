"""Words that may replace others: what a masking asks of the code that knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class SimilarWords(Protocol):
    """Knows similar words by their tokens."""

    def of(self, word: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
        """Words like one, each as many tokens and none the word itself; empty where none is known.

        Args:
            word: Its tokens.
        """
        ...

    def key(self) -> list[Any]:
        """All that decides which words are similar, as JSON."""
        ...
