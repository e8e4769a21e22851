"""Token ids of texts into rows of bounded length: one text a row, or texts packed one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.recipe.data.corpus import CorpusSettings
from pocketbert.distill.text.corpora.corpus import Dropped
from pocketbert.distill.text.corpora.tokenizer import CorpusTokenizer

Ids = NDArray[np.int64]


class RowBuilder(Protocol):
    """Makes rows of texts.

    Attributes:
        dropped: What did not become rows, so far.
    """

    dropped: Dropped

    def add(self, tokens: Ids) -> Iterator[Ids]:
        """The rows that are complete with one more text, given as ids without special tokens."""
        ...

    def finish(self) -> Iterator[Ids]:
        """What is left when all texts are there."""
        ...


class CutTexts:
    """One row per text; longer texts are cut into pieces, each wrapped in special tokens like a separate text.

    As in the code of DistilBERT (Sanh et al. 2019, arXiv 1910.01108), where too short and too unknown rows are
    dropped after cutting; that code cuts the wrapped text, which makes its first piece one token shorter than here.

    Args:
        settings: Lengths and limits.
        tokenizer: Gives the special tokens.
    """

    def __init__(self, settings: CorpusSettings, tokenizer: CorpusTokenizer) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        self.dropped = Dropped()
        self._room = settings.length - len(tokenizer.before) - len(tokenizer.after)

    def add(self, tokens: Ids) -> Iterator[Ids]:
        """The rows of one text."""
        self.dropped.empty += not tokens.size
        for start in range(0, len(tokens), self._room):
            piece = tokens[start : start + self._room]
            row = np.concatenate([self.tokenizer.before, piece, self.tokenizer.after])
            if len(row) < self.settings.shortest:
                self.dropped.short += 1
            elif _unknown(row, self.tokenizer) >= self.settings.unknown_share * len(row):
                self.dropped.unknown += 1
            else:
                yield row

    def finish(self) -> Iterator[Ids]:
        """Nothing: no row waits for another text."""
        return iter(())


class PackTexts:
    """Rows filled with consecutive texts: ``[CLS] text [SEP] text [SEP] ... [SEP]``.

    A text that does not fit is cut; its rest begins the next row. Every row but the last has `length` tokens, or one
    less where a single free place could hold no token and its ``[SEP]``. A text is judged by its share of unknown
    tokens before it is packed, as it would be on a row of its own; `shortest` can only concern the last row.
    RoBERTa packs likewise ("FULL-SENTENCES", Liu et al. 2019, arXiv 1907.11692, section 4.2).

    Args:
        settings: Lengths and limits.
        tokenizer: Gives the special tokens; the first one that it puts after a text separates texts.
    """

    def __init__(self, settings: CorpusSettings, tokenizer: CorpusTokenizer) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        self.dropped = Dropped()
        self._separator, self._end = tokenizer.after[:1], tokenizer.after[1:]
        self._room = settings.length - len(tokenizer.before) - len(self._end)
        self._parts: list[Ids] = []
        self._used = 0

    def add(self, tokens: Ids) -> Iterator[Ids]:
        """The rows that this text completes."""
        if not tokens.size:
            self.dropped.empty += 1
            return
        alone = len(tokens) + len(self.tokenizer.before) + len(self.tokenizer.after)
        if _unknown(tokens, self.tokenizer) >= self.settings.unknown_share * alone:
            self.dropped.unknown += 1
            return
        start = 0
        while start < len(tokens):
            piece = tokens[start : start + self._room - self._used - 1]
            self._parts += [piece, self._separator]
            self._used += len(piece) + 1
            start += len(piece)
            if self._room - self._used < 2:
                yield self._row()

    def finish(self) -> Iterator[Ids]:
        """The last row, if it is long enough."""
        if self._parts:
            row = self._row()
            if len(row) >= self.settings.shortest:
                yield row
            else:
                self.dropped.short += 1

    def _row(self) -> Ids:
        row = np.concatenate([self.tokenizer.before, *self._parts, self._end])
        self._parts, self._used = [], 0
        return row


def _unknown(ids: Ids, tokenizer: CorpusTokenizer) -> int:
    return 0 if tokenizer.unknown_id is None else int(np.count_nonzero(ids == tokenizer.unknown_id))
