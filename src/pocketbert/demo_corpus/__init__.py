"""A made-up corpus of phone-assistant commands with intents and slots.

All wording was written for this project. Dev and test use phrasings, slot values and politeness that train
never has, so that the figures on them say how well a model generalises rather than how well it remembers.
"""

from __future__ import annotations

from pocketbert.demo_corpus.generator import LABELS, Corpus, Row, generate, write

__all__ = ["LABELS", "Corpus", "Row", "generate", "write"]
