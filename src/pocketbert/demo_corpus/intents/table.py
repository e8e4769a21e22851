"""All intents, sorted by name."""

from __future__ import annotations

from pocketbert.demo_corpus.intents import (
    climate,
    clock,
    facts,
    light,
    other,
    phone,
    plan,
    player,
    shopping,
    talk,
    volume,
)
from pocketbert.demo_corpus.intents.intent import Intent

_MODULES = (
    climate,
    clock,
    facts,
    light,
    other,
    phone,
    plan,
    player,
    shopping,
    talk,
    volume,
)

INTENTS: tuple[Intent, ...] = tuple(
    sorted((entry for module in _MODULES for entry in module.INTENTS), key=lambda entry: entry.name)
)
"""Every intent of the corpus."""
