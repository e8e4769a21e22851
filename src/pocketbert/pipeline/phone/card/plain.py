"""Text of a user as a cell or a list item of the card."""

from __future__ import annotations


def plain(text: str) -> str:
    """Text that cannot break out of its place in the card."""
    return " ".join(text.replace("|", "\\|").replace("`", "'").replace("<", "&lt;").split())
