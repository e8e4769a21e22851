"""All slot vocabularies by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pocketbert.demo_corpus.grammar import Vocabulary
from pocketbert.demo_corpus.words import home, lists, media, talk, times, world

_MODULES = (home, lists, media, talk, times, world)

VOCABULARIES: Mapping[str, Vocabulary] = MappingProxyType(
    {entry.name: entry for module in _MODULES for entry in module.VOCABULARIES}
)
"""Every vocabulary that a template may name."""
