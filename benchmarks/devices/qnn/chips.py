"""The chips that files are compiled for, by the names that Android and data sheets give."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbert.core.errors import nearest


@dataclass(frozen=True)
class Chip:
    """A Snapdragon with a Hexagon Tensor Processor.

    Attributes:
        name: As ``getprop ro.soc.model`` of a phone tells it.
        title: As it is sold.
        model: Its number in the vendor's ``Qnn_SocModel_t``. It must be given: with 0 the compiler fails on some chips.
        architecture: Version of the Hexagon processor.
    """

    name: str
    title: str
    model: int
    architecture: int

    @property
    def words(self) -> str:
        """The chip for tables, e.g. ``Snapdragon 8 Gen 3 (SM8650), Hexagon v75``."""
        return f"{self.title} ({self.name}), Hexagon v{self.architecture}"


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("SM8450", "Snapdragon 8 Gen 1", 36, 69),
        Chip("SM8475", "Snapdragon 8+ Gen 1", 42, 69),
        Chip("SM8550", "Snapdragon 8 Gen 2", 43, 73),
        Chip("SM8650", "Snapdragon 8 Gen 3", 57, 75),
        Chip("SM8750", "Snapdragon 8 Elite", 69, 79),
        Chip("SM8850", "Snapdragon 8 Elite Gen 5", 87, 81),
    )
}
"""Chips for which a BERT was compiled here in fp16. Older ones (SM8350, Hexagon v68) compute no floats."""


def chip_of(name: str) -> Chip:
    """Look a chip up.

    Raises:
        ValueError: If it is not in the table; the message lists what is.
    """
    if name.upper() not in CHIPS:
        raise ValueError(f"unknown SoC '{name}'; {nearest(name.upper(), list(CHIPS))}")
    return CHIPS[name.upper()]
