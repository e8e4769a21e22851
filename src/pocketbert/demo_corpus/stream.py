"""A named stream of pseudo-random choices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Stream:
    """Pseudo-random choices that depend on nothing but the stream's name.

    Only `random.Random.random` is used underneath: it is the one method whose sequence the standard
    library promises to keep from one Python version to the next.
    """

    def __init__(self, name: str) -> None:
        """Starts the stream.

        Args:
            name: Any text; equal names give equal choices.
        """
        self._random = random.Random(name)

    def chance(self, share: float) -> bool:
        """Returns True for about `share` of the calls."""
        return self._random.random() < share

    def below(self, limit: int) -> int:
        """Returns a whole number from 0 up to, not including, `limit`."""
        return int(self._random.random() * limit)

    def pick(self, choices: Sequence[T]) -> T:
        """Returns one of `choices`.

        Args:
            choices: A sequence with at least one entry.
        """
        return choices[self.below(len(choices))]
