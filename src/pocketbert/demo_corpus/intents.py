"""All intents, sorted by name."""

from __future__ import annotations

from pocketbert.demo_corpus import (
    intents_climate,
    intents_clock,
    intents_facts,
    intents_light,
    intents_other,
    intents_phone,
    intents_plan,
    intents_player,
    intents_shopping,
    intents_talk,
    intents_volume,
)
from pocketbert.demo_corpus.intent import Intent

_MODULES = (
    intents_climate,
    intents_clock,
    intents_facts,
    intents_light,
    intents_other,
    intents_phone,
    intents_plan,
    intents_player,
    intents_shopping,
    intents_talk,
    intents_volume,
)

INTENTS: tuple[Intent, ...] = tuple(
    sorted((entry for module in _MODULES for entry in module.INTENTS), key=lambda entry: entry.name)
)
"""Every intent of the corpus."""
