"""TinyBERT's data augmentation: copies of texts in which words are replaced (Jiao et al. 2020, section 3.2, Algorithm 1).

`Augmenter` makes the copies. A word of one token is replaced by words that a masked-language model predicts in its place
(`MaskedWords`), other words by the nearest ones in a space of word vectors (`pocketbert.distill.word_vectors.Neighbours`).
`CopyStore` keeps the copies on disk, in parts, so that a killed run does not make them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.disk.files import read_json, write_atomic, write_json
from pocketbert.core.disk.ownership import FolderContents, lock_beside, remove
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.recipe.data import AugmentSection
from pocketbert.core.seeds import generator
from pocketbert.distill.capture.outputs import LmHead
from pocketbert.distill.word_vectors import SPARE, Neighbours, Word, WordReader, WordText, select_candidates

_DESCRIPTION = "augment.json"
_CONTENTS = FolderContents(_DESCRIPTION, ("part-*.jsonl",))
"""Files of a store: a folder that holds anything else is not replaced."""
_PART_ROWS = 1000
"""Rows of a part."""
_TOKENS_AT_ONCE = 4096
"""Tokens of a forward pass, padding included."""

_Texts = tuple[str, ...]
"""The text of a row, or the two of a pair."""
_Choices = tuple[tuple[Word, tuple[str, ...]], ...]
"""Words of a text, each with at least one candidate that may replace it."""


@dataclass(frozen=True)
class SourceRow:
    """A row of a data set to be augmented.

    Attributes:
        number: Number of the row in its source: with the seed, it decides all random choices.
        texts: The row's text, or the two texts of a pair.
    """

    number: int
    texts: tuple[str, ...]


class Augmenter:
    """Makes copies of text rows in which some words are replaced by similar ones.

    Algorithm 1 of the paper, with N = `settings.copies`, p = `settings.probability` and K = `settings.candidates`: each
    replaceable word of a copy is, with probability p, replaced by one of its at most K candidates, all equally likely.
    Candidates are found once per word and not per copy. What the paper leaves open follows the released code, with
    three exceptions:

    - A copy that equals the row or an earlier copy is left out, so a row has at most N copies. A pair has at most 2N:
      first those that vary its first text, then those that vary its second. The other text is the row's own. In the
      released code, copies with a varied second text have the last varied first text, which is an oversight.
    - A candidate is a word that could itself be replaced (letters only, no stop word), and never the word that it
      replaces. So p is the expected share of the words with candidates that change.
    - The text between replaced words stays as it was, to the byte: the released code writes lower-case tokens.

    Args:
        reader: Reader that splits texts into words.
        settings: The recipe's section ``data.augment``.
        seed: Seed of the run.
        neighbours: Finds replacements for words of several tokens; if `masked` is None, for all words.
        masked: Finds replacements for words of one token; None to use `neighbours` for these too.
    """

    def __init__(
        self,
        reader: WordReader,
        settings: AugmentSection,
        seed: int,
        neighbours: Neighbours,
        masked: MaskedWords | None = None,
    ) -> None:
        self.reader, self.settings, self.seed = reader, settings, seed
        self._neighbours, self._masked = neighbours, masked

    def copies(self, rows: Sequence[SourceRow]) -> list[list[tuple[str, ...]]]:
        """Return, for each row, its copies: at most `settings.copies` for each of its texts, with some words replaced.

        Each copy is the row's text, or both texts of a pair. The row itself is never among its copies. The copies
        depend on the seed, the row's texts and its number, and not on the other rows.
        """
        unique = list(dict.fromkeys(t for row in rows for t in row.texts))
        choices = dict(zip(unique, self._find_candidates(unique), strict=True))
        return [self._vary_row(row, [choices[t] for t in row.texts]) for row in rows]

    def _find_candidates(self, texts: Sequence[str]) -> list[_Choices]:
        """Return, for each text, its replaceable words that have candidates, each with its candidates."""
        word_texts, masked = self.reader.read(texts), self._masked
        near = [w.text for t in word_texts for w in t.words if masked is None or w.token is None]
        neighbours = dict(zip(near, self._neighbours.find(near), strict=True))
        predicted = [[] for _ in word_texts] if masked is None else masked.candidates(word_texts)
        choices = []
        for text, predictions in zip(word_texts, predicted, strict=True):
            rest = iter(predictions)
            candidates = [
                (w, neighbours[w.text] if masked is None or w.token is None else next(rest)) for w in text.words
            ]
            choices.append(tuple((word, words) for word, words in candidates if words))
        return choices

    def _vary_row(self, row: SourceRow, choices: Sequence[_Choices]) -> list[_Texts]:
        """Return the copies of one row, in which some words are replaced. No two are equal, and none equals the row.

        `choices` holds, for each text of the row, its replaceable words with their candidates.
        """
        copies, width = self.settings.copies, max(map(len, choices))
        if width == 0:
            return []
        # counters, not a stream: copy 3 of a text is the same whether 3 or 30 are made
        draws = generator(self.seed, "augment", row.number).random((copies, len(row.texts), 2, width))
        unique: dict[_Texts, None] = {row.texts: None}
        for part, own in enumerate(row.texts):
            for chances, picks in draws[:, part].tolist():
                text = _replace_words(own, choices[part], chances, picks, self.settings.probability)
                unique[(*row.texts[:part], text, *row.texts[part + 1 :])] = None
        return list(unique)[1:]


def _replace_words(
    text: str, choices: _Choices, chances: Sequence[float], picks: Sequence[float], probability: float
) -> str:
    """Return a text in which random words are replaced by one of their candidates. Everything else is unchanged.

    `chances` and `picks` hold a number in [0, 1) for each word of `choices`. A word is replaced if its chance is below
    `probability`, p of the paper; its pick decides which candidate replaces it.
    """
    parts, done = [], 0
    for (word, candidates), chance, pick in zip(choices, chances, picks, strict=False):
        if chance < probability:
            parts += [text[done : word.start], _match_case(word.text, candidates[int(pick * len(candidates))])]
            done = word.end
    return "".join([*parts, text[done:]])


def _match_case(word: str, candidate: str) -> str:
    """Return a candidate in the letter case of the word that it replaces: all capitals, one capital, or as it is."""
    if word.isupper():
        return candidate.upper()
    return candidate[0].upper() + candidate[1:] if word[0].isupper() else candidate


# --- candidates of a masked-language model ---


@dataclass(frozen=True)
class _MaskedText:
    """A tokenized text in which one word is masked.

    Attributes:
        ids: Token ids of the model input, special tokens included, [L] int64.
        place: Position of the mask token in `ids`.
        split: Position in `ids` where the second segment begins; the end of `ids` if there is none.
        word: The masked word.
    """

    ids: NDArray[np.int64]
    place: int
    split: int
    word: str


class MaskedWords:
    """Finds replacements for words of one token: those that a masked-language model predicts in their place.

    As in the released code of TinyBERT the model reads the text with the word masked and, if its family has segments,
    the unchanged text as second segment: it predicts words that resemble the masked one, not any that fit. Families
    without segments read the masked text alone. If a text is too long for the model, only the tokens around the word
    are read.

    Args:
        model: A model with a masked-language-model head, in eval mode.
        family: Names, layer paths and inputs of the model's family.
        reader: Reader with the model's tokenizer.
        mask_id: Id of the mask token.
        positions: Longest input in tokens.
        count: Candidates per word, K of the paper.
        where: Recipe key that error messages name.
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
        self._mask_id, self.count = mask_id, count
        vocabulary = reader.vocabulary()
        self._words = list(vocabulary.values())
        self._device = next(model.parameters()).device
        self._word_ids = torch.tensor(list(vocabulary), dtype=torch.int64, device=self._device)
        self._pad_id = int(getattr(model.config, "pad_token_id", 0) or 0)
        segments = 2 if family.uses_segments else 1
        special = len(self._base.before) + segments * len(self._base.after)
        self._room = max(1, (positions - special) // segments)

    def candidates(self, texts: Sequence[WordText]) -> list[list[tuple[str, ...]]]:
        """Return, for each text, the candidates of each of its words of one token, in the order of the words.

        The candidates are the `count` most probable words, or fewer, among the whole words of the vocabulary
        (`WordReader.vocabulary`) without the masked word itself. They are in the order of the vocabulary, not of their
        probabilities, so that rounding cannot change which number a candidate has.
        """
        masked = [[self._mask_word(t.ids, w.token, w.text) for w in t.words if w.token is not None] for t in texts]
        predicted = iter(self._predict_all([row for text_rows in masked for row in text_rows]))
        return [[next(predicted) for _ in text_rows] for text_rows in masked]

    def _mask_word(self, ids: NDArray[np.int64], place: int, word: str) -> _MaskedText:
        """Build a model input in which one token is masked, so that the model predicts words for its place.

        Special tokens are added, and if the family has segments, the unchanged text as second segment. If the text is
        too long for the model, only the tokens around the masked one are kept.

        Args:
            ids: Token ids of the text, without special tokens.
            place: Index of the token to mask.
            word: The word that is masked.
        """
        first = max(0, min(place - self._room // 2, len(ids) - self._room))
        unchanged = ids[first : first + self._room]
        masked = unchanged.copy()
        masked[place - first] = self._mask_id
        before, after = self._base.before, self._base.after
        parts = [before, masked, after]
        split = sum(map(len, parts))
        if self._family.uses_segments:
            parts += [unchanged, after]
        return _MaskedText(np.concatenate(parts), len(before) + place - first, split, word)

    def _predict_all(self, rows: Sequence[_MaskedText]) -> list[tuple[str, ...]]:
        """Predict the candidates of all masked texts, in batches of similar length; return them in the given order."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        candidates: list[tuple[str, ...]] = [()] * len(rows)
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(rows[order[end]].ids) <= _TOKENS_AT_ONCE:
                end += 1
            numbers = order[start:end]
            for i, places in zip(numbers, self._predict_batch([rows[i] for i in numbers]), strict=True):
                candidates[i] = select_candidates(rows[i].word, places, self._words, self.count)
            start = end
        return candidates

    @torch.inference_mode()
    def _predict_batch(self, rows: Sequence[_MaskedText]) -> list[list[int]]:
        """Return, for each masked text, the indices of the most probable words in the list of whole words, best first.

        There are `SPARE` more than the number of candidates, because some are dropped later; fewer if there are not as
        many whole words.
        """
        width = max(len(row.ids) for row in rows)
        arrays = {name: np.zeros((len(rows), width), np.int64) for name in self._family.inputs}
        arrays["input_ids"][:] = self._pad_id
        selected = np.zeros(len(rows), np.int64)
        for i, row in enumerate(rows):
            padding = width - len(row.ids) if self._family.padding_side == "left" else 0
            columns = slice(padding, padding + len(row.ids))
            arrays["input_ids"][i, columns] = row.ids
            arrays["attention_mask"][i, columns] = 1
            if self._family.uses_segments:
                arrays["token_type_ids"][i, padding + row.split : columns.stop] = 1
            selected[i] = i * width + padding + row.place
        inputs: dict[str, Tensor] = {k: torch.from_numpy(v).to(self._device) for k, v in arrays.items()}
        logits = self._head.run(self._model, inputs, torch.from_numpy(selected).to(self._device)).logits
        most = min(self.count + SPARE, len(self._words))
        places: list[list[int]] = logits[:, self._word_ids].topk(most, dim=-1).indices.tolist()
        return places


# --- copies on disk ---


class CopyStore:
    """Augmented rows on disk: for each row its copies with replaced words, in files of `at_once` rows each, in order.

    Args:
        folder: Folder of the files.
        key: Digest of what decides the copies: rows, settings, seed, models.
        rows: Number of rows.
        at_once: Rows of each file.
    """

    def __init__(self, folder: Path, key: str, rows: int, at_once: int = _PART_ROWS) -> None:
        self.folder, self.rows, self.at_once = folder, rows, at_once
        self._description = {"key": key, "rows": rows, "at_once": at_once}

    @property
    def parts(self) -> int:
        """Number of files of a complete store."""
        return -(-self.rows // self.at_once)

    def part(self, number: int) -> Path:
        """Return the path of file `number`. It has a line per row: a list of copies, each a list of one text or two."""
        return self.folder / f"part-{number:06d}.jsonl"

    def fill(self, rows: Sequence[SourceRow], make: Callable[[], Augmenter]) -> None:
        """Make the copies that the store lacks, and write them to its files.

        A store of other rows or settings (another key) is removed first. A second process that needs the same store
        waits for the first.

        Args:
            rows: All rows of the data set.
            make: Function that creates the augmenter, which loads models; called only if copies are missing.

        Raises:
            InputError: If the folder holds files that are not those of a store.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with lock_beside(self.folder):
            self._prepare_folder()
            missing = [i for i in range(self.parts) if not self.part(i).is_file()]
            if not missing:
                return
            augmenter = make()
            done = min(self.rows, (self.parts - len(missing)) * self.at_once)
            with Meter("augment", self.rows, done) as meter:
                for number in missing:
                    part_rows = rows[number * self.at_once : (number + 1) * self.at_once]
                    lines = [json.dumps(c, ensure_ascii=False) + "\n" for c in augmenter.copies(part_rows)]
                    write_atomic(self.part(number), "".join(lines))
                    meter.advance(len(part_rows))

    def read(self) -> Iterator[list[tuple[str, ...]]]:
        """Yield the list of copies of each row, in the order of the rows."""
        for number in range(self.parts):
            with self.part(number).open(encoding="utf-8", newline="\n") as stream:
                for line in stream:
                    yield [tuple(texts) for texts in json.loads(line)]

    def _prepare_folder(self) -> None:
        """Keep the store's folder if it was made with the same rows and settings (key), else put an empty one there.

        Raises InputError if the folder holds files but not the description of a store.
        """
        description = self.folder / _DESCRIPTION
        if description.is_file() and read_json(description) == self._description:
            return
        if self.folder.exists() and not description.is_file() and any(self.folder.iterdir()):
            raise InputError(
                Problem(
                    str(self.folder), "is there and holds no augmented rows; not replaced.", "Choose another place."
                )
            )
        if description.is_file():
            print_note(f"  removed copies that were made of other rows or with other settings: {self.folder}")
        remove(self.folder, _CONTENTS)
        self.folder.mkdir()
        write_json(description, self._description)
