"""All slot vocabularies by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pocketbert.demo_corpus import words_home, words_lists, words_media, words_talk, words_time, words_world
from pocketbert.demo_corpus.grammar import Vocabulary

_MODULES = (words_home, words_lists, words_media, words_talk, words_time, words_world)

VOCABULARIES: Mapping[str, Vocabulary] = MappingProxyType(
    {entry.name: entry for module in _MODULES for entry in module.VOCABULARIES}
)
"""Every vocabulary that a template may name."""
