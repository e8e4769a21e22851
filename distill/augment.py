"""TinyBERT's data augmentation: copies of texts in which words are replaced (Jiao et al. 2020, section 3.2, Algorithm 1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.disk.ownership import Contents, lock_beside, remove
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.host.progress import Meter, say
from pocketbert.core.recipe.data import AugmentSection
from pocketbert.core.seeds import generator
from pocketbert.distill.capture.outputs import LmHead
from pocketbert.distill.word_vectors import SPARE, Neighbours, Word, WordReader, WordText, chosen

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
    """Candidates by context; see `pocketbert.distill.augment.MaskedWords`."""

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


# --- store ---
# Copies of rows on disk, in parts: what a killed run has made is not made again.


DESCRIPTION = "augment.json"
CONTENTS = Contents(DESCRIPTION, ("part-*.jsonl",))
"""Files of a store: a folder that holds anything else is not replaced."""
ROWS = 1000
"""Rows of a part."""


class CopyStore:
    """Copies of rows by their place, in files of some rows each.

    Args:
        folder: Where they are.
        key: Digest of what decides the copies: rows, settings, seed, models.
        rows: How many rows there are.
        at_once: Rows of a part.
    """

    def __init__(self, folder: Path, key: str, rows: int, at_once: int = ROWS) -> None:
        self.folder, self.rows, self.at_once = folder, rows, at_once
        self._about = {"key": key, "rows": rows, "at_once": at_once}

    @property
    def parts(self) -> int:
        """How many files there are in the end."""
        return -(-self.rows // self.at_once)

    def part(self, number: int) -> Path:
        """The file of a part: a line per row, a list of its copies, each a list of one text or two."""
        return self.folder / f"part-{number:06d}.jsonl"

    def fill(self, rows: Sequence[Row], make: Callable[[], Augmenter]) -> None:
        """Make the parts that are missing. A second process that wants the same waits for the first.

        Args:
            rows: All rows.
            make: Called where a part is missing: it loads models.

        Raises:
            InputError: If the folder holds something else.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with lock_beside(self.folder):
            self._open()
            missing = [i for i in range(self.parts) if not self.part(i).is_file()]
            if not missing:
                return
            augmenter = make()
            done = min(self.rows, (self.parts - len(missing)) * self.at_once)
            with Meter("augment", self.rows, done) as meter:
                for number in missing:
                    own = rows[number * self.at_once : (number + 1) * self.at_once]
                    lines = [json.dumps(c, ensure_ascii=False) + "\n" for c in augmenter.copies(own)]
                    write_atomic(self.part(number), "".join(lines))
                    meter.advance(len(own))

    def read(self) -> Iterator[list[Texts]]:
        """Copies of each row, in order."""
        for number in range(self.parts):
            with self.part(number).open(encoding="utf-8", newline="\n") as stream:
                for line in stream:
                    yield [tuple(texts) for texts in json.loads(line)]

    def _open(self) -> None:
        about = self.folder / DESCRIPTION
        if about.is_file() and read_json(about) == self._about:
            return
        if self.folder.exists() and not about.is_file() and any(self.folder.iterdir()):
            raise InputError(
                Problem(
                    str(self.folder), "is there and holds no augmented rows; not replaced.", "Choose another place."
                )
            )
        if about.is_file():
            say(f"  removed copies that were made of other rows or with other settings: {self.folder}")
        remove(self.folder, CONTENTS)
        self.folder.mkdir()
        write_json(about, self._about)


# --- masked ---
# The words that a masked-language model expects in the place of a word.


TOKENS_AT_ONCE = 4096
"""Tokens of a forward pass, padding included."""


@dataclass(frozen=True)
class _Row:
    """One question: a text with a token hidden.

    Attributes:
        ids: Tokens with special ones, [L] int64.
        place: Where the mask stands.
        split: Where the second segment begins.
        word: What is hidden.
    """

    ids: NDArray[np.int64]
    place: int
    split: int
    word: str


class MaskedWords:
    """Asks a model's masked-language-model head.

    As in the released code of TinyBERT the model reads the text with the word hidden and, where its family has
    segments, the unchanged text as second segment: it expects words that resemble the hidden one, not any that fit.
    Families without segments read the first text alone. Of a text that does not fit, the tokens around the word are read.

    Args:
        model: A model with such a head, in eval mode.
        family: Its row of the family table.
        reader: Its tokenizer.
        mask_id: Id of the mask token.
        positions: Longest input in tokens.
        count: Candidates per word, K of the paper.
        where: Recipe key, for errors.
    """

    def __init__(
        self,
        model: Any,
        family: Family,
        reader: WordReader,
        mask_id: int,
        positions: int,
        count: int,
        where: str = "data.augment.masked_lm",
    ) -> None:
        self._head, self._model, self._family, self._base = LmHead(model, where), model, family, reader.base
        self._mask, self.count = mask_id, count
        entries = reader.vocabulary()
        self._entries = list(entries.values())
        self._device = next(model.parameters()).device
        self._ids = torch.tensor(list(entries), dtype=torch.int64, device=self._device)
        self._pad = int(getattr(model.config, "pad_token_id", 0) or 0)
        wrapping = len(self._base.before) + (2 if family.uses_segments else 1) * len(self._base.after)
        self._room = max(1, (positions - wrapping) // (2 if family.uses_segments else 1))

    def candidates(self, texts: Sequence[WordText]) -> list[list[tuple[str, ...]]]:
        """Of each text, candidates for its words of a single token, in their order.

        The candidates are the most probable words, at most `count`, in the order of the vocabulary. Only its whole
        words count (`WordReader.vocabulary`), and never the hidden word itself. The order says nothing of probability,
        so that rounding cannot change which number a candidate has.
        """
        rows = [[self._row(t.ids, w.token, w.text) for w in t.words if w.token is not None] for t in texts]
        found = iter(self._find([row for own in rows for row in own]))
        return [[next(found) for _ in own] for own in rows]

    def _find(self, rows: Sequence[_Row]) -> list[tuple[str, ...]]:
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        out: list[tuple[str, ...]] = [()] * len(rows)
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(rows[order[end]].ids) <= TOKENS_AT_ONCE:
                end += 1
            numbers = order[start:end]
            for i, places in zip(numbers, self._ask([rows[i] for i in numbers]), strict=True):
                out[i] = chosen(rows[i].word, places, self._entries, self.count)
            start = end
        return out

    def _row(self, ids: NDArray[np.int64], place: int, word: str) -> _Row:
        first = max(0, min(place - self._room // 2, len(ids) - self._room))
        plain = ids[first : first + self._room]
        hidden = plain.copy()
        hidden[place - first] = self._mask
        before, after = self._base.before, self._base.after
        parts = [before, hidden, after]
        split = sum(map(len, parts))
        if self._family.uses_segments:
            parts += [plain, after]
        return _Row(np.concatenate(parts), len(before) + place - first, split, word)

    @torch.inference_mode()
    def _ask(self, rows: Sequence[_Row]) -> list[list[int]]:
        """Places, among the whole words, of the most probable ones, best first."""
        width = max(len(row.ids) for row in rows)
        made = {name: np.zeros((len(rows), width), np.int64) for name in self._family.inputs}
        made["input_ids"][:] = self._pad
        selected = np.zeros(len(rows), np.int64)
        for i, row in enumerate(rows):
            left = width - len(row.ids) if self._family.padding_side == "left" else 0
            own = slice(left, left + len(row.ids))
            made["input_ids"][i, own] = row.ids
            made["attention_mask"][i, own] = 1
            if self._family.uses_segments:
                made["token_type_ids"][i, left + row.split : own.stop] = 1
            selected[i] = i * width + left + row.place
        inputs: dict[str, Tensor] = {k: torch.from_numpy(v).to(self._device) for k, v in made.items()}
        logits = self._head.run(self._model, inputs, torch.from_numpy(selected).to(self._device)).logits
        most = min(self.count + SPARE, len(self._entries))
        places: list[list[int]] = logits[:, self._ids].topk(most, dim=-1).indices.tolist()
        return places
