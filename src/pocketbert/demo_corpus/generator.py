"""Draws the corpus from the intents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from pocketbert.demo_corpus.grammar import Word, expand
from pocketbert.demo_corpus.intents.intent import Intent
from pocketbert.demo_corpus.intents.table import INTENTS
from pocketbert.demo_corpus.rows import Corpus, Row
from pocketbert.demo_corpus.speech import spoken
from pocketbert.demo_corpus.stream import Stream
from pocketbert.demo_corpus.words.vocabularies import VOCABULARIES

LABELS: tuple[str, ...] = tuple(entry.name for entry in INTENTS)
"""The intent names, sorted."""

TRAIN_ROWS = 160
"""Train rows of an intent of weight 1."""

HELD_ROWS = 32
"""Dev rows, and as many test rows, of an intent of weight 1."""

# Wording that train has still gets values that train has not, more often than wording that is new anyway.
_HELD_VALUES_KNOWN_WORDING = 0.6
_HELD_VALUES_NEW_WORDING = 0.5
_TRIES_A_ROW = 400


def key(text: str) -> str:
    """Returns what makes an utterance the same as another: its words without case and punctuation.

    Args:
        text: An utterance.
    """
    return " ".join(word.strip(",.?!") for word in text.lower().split())


def generate(seed: int = 20260101) -> Corpus:
    """Draws the corpus.

    Every intent has a stream of choices of its own in every split, and rows are ordered by a digest, so
    editing one intent leaves the rows of the others, and their order, as they are.

    Args:
        seed: Another seed gives another corpus from the same phrasings.

    Returns:
        The corpus; equal seeds give equal corpora.

    Raises:
        ValueError: An intent has too few phrasings, or two intents came up with the same utterance.
    """
    owners: dict[str, str] = {}
    splits: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for entry in INTENTS:
        taken: set[str] = set()
        for split, rows in splits.items():
            rows.extend(_rows(entry, split, seed, taken))
        for text in taken:
            if owners.setdefault(text, entry.name) != entry.name:
                raise ValueError(f"both {owners[text]} and {entry.name} say {text!r}")
    return Corpus(*(tuple(sorted(rows, key=_order(seed))) for rows in splits.values()))


def _order(seed: int) -> Callable[[Row], str]:
    return lambda row: hashlib.sha256(f"{seed}/{row.text}".encode()).hexdigest()


def _rows(entry: Intent, split: str, seed: int, taken: set[str]) -> list[Row]:
    stream = Stream(f"{seed}/{split}/{entry.name}")
    count = round((TRAIN_ROWS if split == "train" else HELD_ROWS) * entry.weight)
    rows: list[Row] = []
    for number in range(count * _TRIES_A_ROW):
        words = _utterance(entry, split, len(rows), number, stream)
        text = " ".join(word.text for word in words)
        if key(text) in taken:
            continue
        taken.add(key(text))
        tokens = tuple(word.text for word in words)
        rows.append(Row(text, entry.name, tokens, tuple(word.tag for word in words)))
        if len(rows) == count:
            return rows
    raise ValueError(f"{entry.name} has too few phrasings for {count} rows of {split}")


def _utterance(entry: Intent, split: str, done: int, number: int, stream: Stream) -> list[Word]:
    if split == "train":
        # By turns, so that phrasings with many variants do not crowd out the others.
        template = entry.train[number % len(entry.train)]
        return spoken(expand(template, VOCABULARIES, stream, 0.0), stream, held=False)
    if done % 2:
        words = expand(stream.pick(entry.train), VOCABULARIES, stream, _HELD_VALUES_KNOWN_WORDING)
    else:
        words = expand(stream.pick(entry.held(split)), VOCABULARIES, stream, _HELD_VALUES_NEW_WORDING)
    return spoken(words, stream, held=True)
