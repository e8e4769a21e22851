"""Generate the demo corpus and write it to disk.

`generate` draws the rows of each intent and split from the templates of `intents.json`, makes them sound spoken, and orders
them; `write` stores the splits as compressed JSON lines.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pocketbert.demo_corpus.grammar import (
    Intent,
    Stream,
    Vocabulary,
    Word,
    expand_template,
    read_intents,
    read_vocabularies,
)
from pocketbert.demo_corpus.speech import make_spoken

INTENTS: tuple[Intent, ...] = read_intents()
"""Every intent of the corpus, sorted by name."""

VOCABULARIES: Mapping[str, Vocabulary] = MappingProxyType(read_vocabularies())
"""Every vocabulary that a template may use, by name."""

LABELS: tuple[str, ...] = tuple(intent.name for intent in INTENTS)
"""The intent names, sorted."""

_TRAIN_ROWS = 160
_HELD_ROWS = 32
"""Train rows, and dev rows and as many test rows, of an intent of weight 1."""

# wording that train has gets values that train has not more often than wording that is new anyway
_HELD_VALUES_KNOWN_WORDING = 0.6
_HELD_VALUES_NEW_WORDING = 0.5
_TRIES_A_ROW = 400


@dataclass(frozen=True)
class Row:
    """One utterance with its intent label and the BIO tags of its slots.

    Attributes:
        text: The utterance; words are separated by exactly one space.
        label: The intent, one of `pocketbert.demo_corpus.LABELS`.
        tokens: The words of `text`, split at spaces: `" ".join(tokens) == text`. Punctuation belongs to the word before
            it.
        tags: One BIO tag per token: `O`, `B-<slot>` or `I-<slot>`.
    """

    text: str
    label: str
    tokens: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """The rows of the train, dev and test splits; no utterance is in two of them.

    Attributes:
        train: Rows for training.
        dev: Rows for choosing settings; about half of them have wording that `train` does not have.
        test: Rows for the final score; their unseen wording differs from that of `dev`.
    """

    train: tuple[Row, ...]
    dev: tuple[Row, ...]
    test: tuple[Row, ...]

    def splits(self) -> dict[str, tuple[Row, ...]]:
        """Return the rows of each split by its name: train, dev, test."""
        return {"train": self.train, "dev": self.dev, "test": self.test}


def generate(seed: int = 20260101) -> Corpus:
    """Generate the demo corpus: the rows of all three splits, from the templates of `intents.json`.

    Each intent has a random generator of its own for each split, and rows are ordered by a digest. If one intent is
    edited, the rows of the others and their order stay the same.

    Args:
        seed: Decides all random choices; equal seeds give equal corpora on every machine.

    Returns:
        The rows of the train, dev and test splits.

    Raises:
        ValueError: If an intent has too few phrasings for its number of rows, or two intents share an utterance.
    """
    splits: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    intent_by_utterance: dict[str, str] = {}
    for intent in INTENTS:
        utterances: set[str] = set()
        for split, rows in splits.items():
            rows.extend(_draw_rows(intent, split, seed, utterances))
        for utterance in utterances:
            if intent_by_utterance.setdefault(utterance, intent.name) != intent.name:
                raise ValueError(f"both {intent_by_utterance[utterance]} and {intent.name} say {utterance!r}")

    def digest(row: Row) -> str:
        return hashlib.sha256(f"{seed}/{row.text}".encode()).hexdigest()

    return Corpus(*(tuple(sorted(rows, key=digest)) for rows in splits.values()))


def _draw_rows(intent: Intent, split: str, seed: int, utterances: set[str]) -> list[Row]:
    """Draw the rows of one intent for a split; no utterance is drawn twice.

    `utterances` has the utterances that were drawn for the intent, without case and punctuation. An utterance that is
    among them is drawn again, and those of the new rows are added to it.

    Raises:
        ValueError: If the intent has too few phrasings for its number of rows.
    """
    stream = Stream(f"{seed}/{split}/{intent.name}")
    count = round((_TRAIN_ROWS if split == "train" else _HELD_ROWS) * intent.weight)
    rows: list[Row] = []
    for attempt in range(count * _TRIES_A_ROW):
        words = _draw_utterance(intent, split, len(rows), attempt, stream)
        text = " ".join(word.text for word in words)
        normalized = " ".join(word.strip(",.?!") for word in text.lower().split())
        if normalized in utterances:
            continue
        utterances.add(normalized)
        rows.append(Row(text, intent.name, tuple(word.text for word in words), tuple(word.tag for word in words)))
        if len(rows) == count:
            return rows
    raise ValueError(f"{intent.name} has too few phrasings for {count} rows of {split}")


def _draw_utterance(intent: Intent, split: str, row_number: int, attempt: int, stream: Stream) -> list[Word]:
    """Draw one utterance of an intent, with wording and slot values that the split may use.

    Rows of dev and test have, by turns, wording that only their split may use and wording of train.
    """
    if split == "train":
        # by turns, so that phrasings with many variants do not crowd out the others
        template = intent.train[attempt % len(intent.train)]
        return make_spoken(expand_template(template, VOCABULARIES, stream, 0.0), stream, held=False)
    if row_number % 2:
        template, held_share = stream.pick(intent.train), _HELD_VALUES_KNOWN_WORDING
    else:
        template, held_share = stream.pick(intent.held(split)), _HELD_VALUES_NEW_WORDING
    return make_spoken(expand_template(template, VOCABULARIES, stream, held_share), stream, held=True)


def write(corpus: Corpus, folder: Path) -> dict[str, Path]:
    """Write each split into a gzip-compressed JSON lines file, and return the paths.

    The lines are the same bytes on every machine. The gzip header has no name and no time, so the files are the same
    bytes too if Python is built with the same zlib.

    Args:
        corpus: The corpus to write.
        folder: The folder for `train.jsonl.gz`, `dev.jsonl.gz` and `test.jsonl.gz`; created if it is missing.

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
            # an empty file name keeps GzipFile from copying the one of `raw` into the header
            gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
        ):
            packed.write(lines.encode("utf-8"))
    return paths
