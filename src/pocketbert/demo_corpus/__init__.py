"""A made-up corpus of phone-assistant commands with intents and slots.

All wording was written for this project. Dev and test use phrasings, slot values and politeness that train never has, so that
the figures on them show how well a model generalises rather than how well it remembers.

`intents.json` holds the phrasings of each intent and `slot_values.json` the words that fill their slots; both are written in
the notation of `pocketbert.demo_corpus.grammar`. Songs, bands, shows and apps in them are invented; composers are long dead.
"""

from __future__ import annotations

from pocketbert.demo_corpus.generator import LABELS, Corpus, Row, generate, write

__all__ = ["LABELS", "Corpus", "Row", "generate", "write"]
