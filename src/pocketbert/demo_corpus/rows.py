"""The records a corpus is made of."""

from __future__ import annotations

from dataclasses import dataclass


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
