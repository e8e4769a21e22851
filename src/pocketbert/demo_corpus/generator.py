"""Draws the corpus from the intents."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pocketbert.demo_corpus import intents_day, intents_home, intents_world, words
from pocketbert.demo_corpus.grammar import Intent, Stream, Vocabulary, Word, expand
from pocketbert.demo_corpus.speech import spoken

# --- rows ---
# The records a corpus is made of.


@dataclass(frozen=True)
class Row:
    """One utterance with its intent and its slots.

    Attributes:
        text: The utterance; words are separated by exactly one space.
        label: The intent, one of `pocketbert.demo_corpus.LABELS`.
        tokens: The whitespace words of `text`: `tuple(text.split())`, so `" ".join(tokens) == text`.
            Punctuation stays on the word it follows.
        tags: One BIO tag a token: `O`, `B-<slot>` or `I-<slot>`.
    """

    text: str
    label: str
    tokens: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """The three splits of the corpus; no utterance is in two of them.

    Attributes:
        train: Rows to learn from.
        dev: Rows to choose settings with; about half of them use wording that `train` does not have.
        test: Rows for the final figure; its unseen wording differs from that of `dev`.
    """

    train: tuple[Row, ...]
    dev: tuple[Row, ...]
    test: tuple[Row, ...]

    def splits(self) -> dict[str, tuple[Row, ...]]:
        """Returns the splits by name, in the order train, dev, test."""
        return {"train": self.train, "dev": self.dev, "test": self.test}


# --- storage ---
# Writing the corpus to disk.


def write(corpus: Corpus, folder: Path) -> dict[str, Path]:
    """Writes each split as gzip-compressed JSON lines.

    The lines are the same bytes everywhere. The gzip header holds neither a name nor a time, so the files
    are the same bytes too wherever Python is built with the same zlib.

    Args:
        corpus: The corpus.
        folder: Where `train.jsonl.gz`, `dev.jsonl.gz` and `test.jsonl.gz` go; made if it is absent.

    Returns:
        The paths by split name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for split, rows in corpus.splits().items():
        lines = "".join(json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n" for row in rows)
        paths[split] = folder / f"{split}.jsonl.gz"
        with (
            paths[split].open("wb") as raw,
            # An empty file name keeps GzipFile from copying the one of `raw` into the header.
            gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
        ):
            packed.write(lines.encode("utf-8"))
    return paths


# --- table ---
# All intents, sorted by name.


INTENTS: tuple[Intent, ...] = tuple(
    sorted(
        (
            *intents_day.INTENTS,
            *intents_day.PLAN_INTENTS,
            *intents_day.SHOPPING_INTENTS,
            *intents_day.TALK_INTENTS,
            *intents_home.INTENTS,
            *intents_home.LIGHT_INTENTS,
            *intents_home.VOLUME_INTENTS,
            *intents_home.PLAYER_INTENTS,
            *intents_world.INTENTS,
            *intents_world.PHONE_INTENTS,
            *intents_world.OTHER_INTENTS,
        ),
        key=lambda entry: entry.name,
    )
)
"""Every intent of the corpus."""


# --- vocabularies ---
# All slot vocabularies by name.


VOCABULARIES: Mapping[str, Vocabulary] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            *words.VOCABULARIES,
            *words.LISTS_VOCABULARIES,
            *words.MEDIA_VOCABULARIES,
            *words.TALK_VOCABULARIES,
            *words.TIMES_VOCABULARIES,
            *words.WORLD_VOCABULARIES,
        )
    }
)
"""Every vocabulary that a template may name."""


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
