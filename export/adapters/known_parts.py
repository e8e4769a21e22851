"""The parts of the layers of each family: those that the package knows, and those that were registered."""

from __future__ import annotations

from pocketbert.core.families import LAYER_PARTS, Family, LayerParts


def known_parts(family: Family) -> LayerParts | None:
    """What is registered under the key of a family's row; None where the row names none.

    Raises:
        InputError: If the row names what is not registered.
    """
    if family.layer_parts is None:
        return None
    return LAYER_PARTS.find(family.layer_parts, f"family {family.name}")
