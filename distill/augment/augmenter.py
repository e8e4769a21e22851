"""TinyBERT's data augmentation: copies of texts in which words are replaced (Jiao et al. 2020, section 3.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pocketbert.core.recipe.data.augment import AugmentSection
from pocketbert.core.seeds import generator
from pocketbert.distill.augment.neighbours import Neighbours
from pocketbert.distill.augment.words import Word, WordReader, WordText

Texts = tuple[str, ...]
"""The text of a row, or the two of a pair."""
Choices = tuple[tuple[Word, tuple[str, ...]], ...]
"""Words of a text with what may replace each, which is never nothing."""


@dataclass(frozen=True)
class Row:
    """What is augmented.

    Attributes:
        number: Number of the row in its source: with the seed, it decides all random choices.
        texts: Its text, or two.
    """

    number: int
    texts: Texts


class Masked(Protocol):
    """Candidates by context; see `pocketbert.distill.augment.masked.MaskedWords`."""

    def candidates(self, texts: Sequence[WordText]) -> list[list[tuple[str, ...]]]:
        """Of each text, candidates for its words of a single token, in their order."""
        ...


class Augmenter:
    """Makes copies of rows.

    Algorithm 1 of the paper, with N = `settings.copies`, p = `settings.probability` and K = `settings.candidates`:
    each word of a copy is, with probability p, replaced by one of its K candidates, all equally likely. Candidates
    are found once per word and not per copy. What is not in the paper follows the released code, but for these:

    - a copy that equals the row or an earlier copy is left out, and all N together are at most N, also for a pair:
      the first half of its copies (the larger one of an odd N) varies the first text, the others the second. The
      released code makes N of each, and all that vary the second text carry the last varied first one by an
      oversight; here the other text is always the row's own.
    - a candidate is a word that could itself be replaced (`is_replaceable`: letters only, no stop word), and never the
      word that it replaces, so p is the share of words that change.
    - the text between replaced words stays as it was, to the byte: the released code writes lower-case tokens.

    Args:
        reader: Splits texts into words.
        settings: The recipe's section.
        seed: Seed of the run.
        neighbours: Candidates of words of several tokens; of all words where `masked` is None.
        masked: Candidates of words of one token.
    """

    def __init__(
        self,
        reader: WordReader,
        settings: AugmentSection,
        seed: int,
        neighbours: Neighbours,
        masked: Masked | None = None,
    ) -> None:
        self.reader, self.settings, self.seed = reader, settings, seed
        self._neighbours, self._masked = neighbours, masked

    def copies(self, rows: Sequence[Row]) -> list[list[Texts]]:
        """Copies of each row, without the row itself, at most `settings.copies`.

        They depend on the seed, the row and its number, not on what other rows are there.
        """
        unique = list(dict.fromkeys(t for row in rows for t in row.texts))
        choices = dict(zip(unique, self._choices(unique), strict=True))
        return [self._vary(row, [choices[t] for t in row.texts]) for row in rows]

    def _choices(self, texts: Sequence[str]) -> list[Choices]:
        read = self.reader.read(texts)
        near = [w.text for t in read for w in t.words if self._masked is None or w.token is None]
        by_word = dict(zip(near, self._neighbours.find(near), strict=True))
        guessed = [[] for _ in read] if self._masked is None else self._masked.candidates(read)
        out = []
        for text, found in zip(read, guessed, strict=True):
            left = iter(found)
            single = self._masked is not None
            each = [(w, next(left) if single and w.token is not None else by_word[w.text]) for w in text.words]
            out.append(tuple((w, c) for w, c in each if c))
        return out

    def _vary(self, row: Row, choices: Sequence[Choices]) -> list[Texts]:
        copies, width = self.settings.copies, max(map(len, choices))
        if width == 0:
            return []
        # counters, not a stream: copy 3 is the same whether 3 or 30 are made
        draws = generator(self.seed, "augment", row.number).random((copies, 2, width))
        first = copies if len(row.texts) == 1 else (copies + 1) // 2
        made: dict[Texts, None] = {row.texts: None}
        for copy in range(copies):
            part = 0 if copy < first else 1
            chances, picks = draws[copy].tolist()
            text = replaced(row.texts[part], choices[part], chances, picks, self.settings.probability)
            made[(*row.texts[:part], text, *row.texts[part + 1 :])] = None
        return list(made)[1:]


def replaced(text: str, choices: Choices, chances: Sequence[float], picks: Sequence[float], probability: float) -> str:
    """A text with some words replaced; all else stays as it was.

    Args:
        text: The text.
        choices: Its words with their candidates, in order.
        chances: A number in [0, 1) for each word: below `probability` it is replaced.
        picks: A number in [0, 1) for each word: which candidate it gets.
        probability: p of the paper.
    """
    out, done = [], 0
    for (word, candidates), chance, pick in zip(choices, chances, picks, strict=False):
        if chance < probability:
            out += [text[done : word.start], in_case(word.text, candidates[int(pick * len(candidates))])]
            done = word.end
    return "".join([*out, text[done:]])


def in_case(word: str, candidate: str) -> str:
    """A candidate written as the word was: in capitals, with a capital, or as the vocabulary spells it."""
    if word.isupper():
        return candidate.upper()
    return candidate[0].upper() + candidate[1:] if word[0].isupper() else candidate
