"""The activation of a model's feed-forward parts, and whether relu6 can take its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketbert.core.errors import Problem

ACTIVATION_KEYS = ("hidden_act", "activation")
"""Keys of config.json that name it."""
CLIPPED = "relu6"
CLIPPABLE = ("relu", CLIPPED)
HIGHEST = 6.0
"""The largest number that relu6 makes."""


def activation_of(config: Mapping[str, Any]) -> str | None:
    """Return the activation that a configuration names; None where it names none.

    Args:
        config: Content of config.json.
    """
    return next((str(config[key]) for key in ACTIVATION_KEYS if isinstance(config.get(key), str)), None)


def not_clippable(activation: str | None, where: str) -> Problem:
    """Tell why relu6 cannot take the place of an activation.

    Args:
        activation: Its name; None where config.json names none.
        where: Recipe key that asks for relu6.
    """
    found = f"is {activation}" if activation else "is not named by its config.json"
    return Problem(
        where,
        f"{CLIPPED} takes the place of relu, which it equals up to 6; the student's activation {found}.",
        "Leave activation out: ranges of other activations are learned. MobileBERT students have relu (student: {size: mini}).",
    )
