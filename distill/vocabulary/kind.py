"""What the pruning of a vocabulary asks of each kind of tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol


class Kind(Protocol):
    """One kind of tokenizer, as the ``model`` section of tokenizer.json has it.

    Attributes:
        name: Value of ``type`` in that section.
    """

    name: str

    def pieces(self, model: Mapping[str, Any]) -> dict[str, int]:
        """Return the pieces with their ids.

        Args:
            model: The section.
        """
        ...

    def letters(self, model: Mapping[str, Any], seen: Collection[str]) -> set[str]:
        """Return the pieces that always stay, so that a word that is not kept can still be spelt.

        Args:
            model: The section.
            seen: Pieces that training rows have.
        """
        ...

    def closed(self, model: Mapping[str, Any], kept: Collection[str]) -> set[str]:
        """Return the pieces that stay, together with all pieces that they are made from.

        Args:
            model: The section.
            kept: Pieces that are to stay.
        """
        ...

    def rewritten(self, model: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
        """Return the section with the kept pieces only.

        Args:
            model: The section.
            ids: New id of each piece that stays.
        """
        ...
