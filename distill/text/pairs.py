"""Rows of a corpus as pairs of segments, of which every other second one is from elsewhere, or comes first in the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.predict.tokenization import Encoded, TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import SecondSegment
from pocketbert.distill.text.corpus import TokenRows
from pocketbert.distill.text.masking import MaskingScheme
from pocketbert.distill.text.tokenizer import PairLayout, continues_word, pair_layout, word_starts, wordless_ids
from pocketbert.distill.training.data import ROWS, STEPS

Ids = NDArray[np.int64]

FOLLOWS, ELSEWHERE = 0, 1
"""Values of ``next_sentence_label``, as in transformers' ``BertForPreTraining``; 1 also where both segments changed places, as
``sentence_order_label`` of ``AlbertForPreTraining``."""
NEXT_SENTENCE = "next_sentence_label"
"""Name of the labels in a batch."""

_ELSEWHERE_SHARE, _SHORT_SHARE, _SHORTEST = 0.5, 0.1, 2
_SHORT, _LENGTH, _CUT, _WHENCE, _OTHER, _START = range(6)  # columns of a row's noise


@dataclass(frozen=True)
class PairedRows:
    """Some rows as pairs.

    Attributes:
        encoded: B inputs with their segments.
        labels: `FOLLOWS`, `ELSEWHERE` (which pairs in the wrong order have too), or `IGNORED` where a row stayed one segment, [B] int64.
    """

    encoded: list[Encoded]
    labels: Ids


@dataclass(frozen=True)
class _Cut:
    """A row before its second segment is chosen: its tokens, and where they are cut; None to keep the row whole."""

    tokens: Ids
    place: int | None
    other: int | None


@dataclass(frozen=True)
class Pairs:
    """Two segments of each row, as for next-sentence prediction; `pairs_of` makes one.

    Devlin et al. 2019, arXiv 1810.04805, section 3.1, task 2, and the released ``create_pretraining_data.py``, with
    words in place of sentences, which ids do not show. A row is cut at a random word into A and B. With chance 1/2
    B is replaced by a piece of another row, all others alike, which begins at a word and is as long as B, or
    shorter where that row is. With chance 1/10 only the beginning of the row is used, of a length drawn uniformly.
    All of it is a function of (seed, purpose, step, row number).

    - No pair is longer than its row: where a pair needs more special tokens than the row has, the row's last
      tokens are left out. The corpus' lengths are upper bounds.
    - Of packed rows the separators between texts are left out, and no cut falls where one text ends.
    - A row without a place to cut stays one segment, as it is, with label `IGNORED`: one word, or two of RoBERTa.
    - Where a corpus has a single row, or the other row is empty, B always follows A.
    - With `SecondSegment.SWAPPED`, no row is read but its own: with chance 1/2, A and B change places. That is sentence-order
      prediction (Lan et al. 2020, ALBERT, arXiv 1909.11942, section 3.1; Cui et al. 2020, MacBERT, arXiv 2004.13922).

    Attributes:
        layout: Special tokens and segments of a pair.
        continues: Which tokens continue a word, [V]; all False cuts between any two tokens.
        wordless: Tokens that belong to no word.
        seed: Seed of the run.
        purpose: What is trained (``distill.0``); keys the noise.
        second: What the second segment is where it does not follow.
    """

    layout: PairLayout
    continues: NDArray[np.bool_]
    wordless: Sequence[int]
    seed: int
    purpose: str
    second: SecondSegment = SecondSegment.ELSEWHERE

    def build(self, corpus: TokenRows, rows: Sequence[int], step: int) -> PairedRows:
        """Pairs of some rows.

        Args:
            corpus: Where the rows are, and the others that second segments are taken from.
            rows: Row numbers, B of them.
            step: The optimiser step.
        """
        count = len(corpus.lengths)
        noises = [generator(self.seed, f"pairs/{self.purpose}", step, int(row)).random(6) for row in rows]
        found = corpus.ids(rows)
        cuts = [self._cut(*each, count) for each in zip(found, rows, noises, strict=True)]
        others = iter(corpus.ids([c.other for c in cuts if c.other is not None]))
        out = PairedRows([], np.full(len(rows), IGNORED))
        for i, (cut, ids, noise) in enumerate(zip(cuts, found, noises, strict=True)):
            if cut.place is None:
                out.encoded.append(Encoded(ids, np.zeros(len(ids), np.int64), truncated=False))
                continue
            first, second, label = cut.tokens[: cut.place], cut.tokens[cut.place :], FOLLOWS
            if self.second is SecondSegment.SWAPPED and noise[_WHENCE] < _ELSEWHERE_SHARE:
                first, second, label = second, first, ELSEWHERE
            if cut.other is not None:
                piece = self._piece(next(others), len(second), noise[_START])
                if piece.size:
                    second, label = piece, ELSEWHERE
            out.encoded.append(self.layout.join(first, second))
            out.labels[i] = label
        return out

    def key(self) -> list[Any]:
        """All that decides the pairs of a corpus, as JSON; see `pocketbert.distill.text.masking.MaskingScheme.key`."""
        layout, continues = self.layout, sha256_json(np.flatnonzero(self.continues).tolist())
        special = [part.tolist() for part in (layout.before, layout.between, layout.after)]
        segments = [np.asarray(part).tolist() for part in layout.segments]
        kind = "pairs" if self.second is SecondSegment.ELSEWHERE else f"pairs {self.second}"
        return [kind, self.seed, self.purpose, special, segments, continues, sorted(self.wordless)]

    def _cut(self, ids: Ids, row: int, noise: NDArray[np.float64], count: int) -> _Cut:
        tokens, starts, joints = self._text(ids)
        most = min(len(ids) - self.layout.special, len(tokens))
        if noise[_SHORT] < _SHORT_SHARE and most > _SHORTEST:
            most = _SHORTEST + int(noise[_LENGTH] * (most - _SHORTEST + 1))
        tokens = tokens[: max(most, 0)]
        possible = np.flatnonzero((starts & ~joints)[1 : len(tokens)]) + 1
        if not possible.size:
            return _Cut(tokens, None, None)
        other = None
        if self.second is SecondSegment.ELSEWHERE and noise[_WHENCE] < _ELSEWHERE_SHARE and count > 1:
            other = int(noise[_OTHER] * (count - 1))
            other += other >= row
        return _Cut(tokens, int(possible[int(noise[_CUT] * len(possible))]), other)

    def _piece(self, ids: Ids, length: int, noise: float) -> Ids:
        tokens, starts, _ = self._text(ids)
        if len(tokens) <= length:
            return tokens
        possible = np.flatnonzero(starts[: len(tokens) - length + 1])
        first = possible[int(noise * len(possible))]
        return tokens[first : first + length]

    def _text(self, ids: Ids) -> tuple[Ids, NDArray[np.bool_], NDArray[np.bool_]]:
        """Tokens without the special ones of the layout, where words begin, and where another text begins; [n] each."""
        frame, apart = self._tables
        own = np.flatnonzero(~frame[ids])
        starts = word_starts(self.continues[ids], apart[ids])[own]
        return ids[own], starts, np.diff(own, prepend=own[:1]) > 1

    @cached_property
    def _tables(self) -> NDArray[np.bool_]:
        """Which tokens frame texts, and which belong to no word, [2, V]."""
        out = np.zeros((2, len(self.continues)), np.bool_)
        out[:, np.concatenate([self.layout.before, self.layout.between, self.layout.after])] = True
        out[1, list(self.wordless)] = True
        return out


def pairs_of(
    tokenizer: TextTokenizer,
    vocabulary: int,
    seed: int,
    purpose: str,
    second: SecondSegment = SecondSegment.ELSEWHERE,
) -> Pairs:
    """Build the pairs of a corpus as a tokenizer writes them.

    Args:
        tokenizer: The teacher's. Where its vocabulary does not tell where words begin, rows are cut between any tokens.
        vocabulary: V of the corpus: its `counts` have so many entries.
        seed: Seed of the run.
        purpose: What is trained (``distill.0``): keys the noise, and names the stage in errors.
        second: What the second segment is where it does not follow.

    Raises:
        InputError: If the tokenizer has no layout for two texts.
    """
    continues = continues_word(tokenizer, vocabulary)
    if continues is None:
        continues = np.zeros(vocabulary, np.bool_)
    layout = pair_layout(tokenizer, f"{purpose}.pairs")
    return Pairs(layout, continues, wordless_ids(tokenizer, vocabulary), seed, purpose, second)


# --- general_set ---
# Unlabelled text to train on, paired and masked anew at every step.


@dataclass(frozen=True)
class GeneralSet:
    """Rows of a corpus, as pairs where asked for, with hidden tokens; satisfies `TrainData`.

    Attributes:
        corpus: Tokenized rows.
        tokenizer: Pads batches.
        masking: Chooses what is hidden.
        pairs: Makes two segments of each row, before tokens are hidden; None leaves rows as they are.
    """

    corpus: TokenRows
    tokenizer: TextTokenizer
    masking: MaskingScheme
    pairs: Pairs | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row; of pairs the most that they have."""
        lengths: list[int] = self.corpus.lengths.tolist()
        return lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of a *global* batch, a function of only (rows, step).

        Frequency-smoothed masking decides over all rows of the step: a process that trains on a part of them masks
        them all and takes its part of the result.

        Args:
            rows: Row numbers of all processes, B of them.
            step: The optimiser step.

        Returns:
            ``input_ids`` (masked), ``attention_mask``, ``token_type_ids`` (zeros unless paired) and ``labels`` (the
            original id where one is to be predicted, else -100), each [B, S] int64; ``rows`` and ``steps``, [B]
            int64; of pairs also ``next_sentence_label``, [B] int64: see `PairedRows`.
        """
        extra: dict[str, NDArray[np.int64]] = {}
        if self.pairs is None:
            found = self.corpus.ids(rows)
            encoded = [Encoded(np.asarray(i, np.int64), np.zeros(len(i), np.int64), truncated=False) for i in found]
        else:
            paired = self.pairs.build(self.corpus, rows, step)
            encoded, extra = paired.encoded, {NEXT_SENTENCE: paired.labels}
        padded = self.tokenizer.pad(encoded)
        masked = self.masking.apply(padded["input_ids"], padded["attention_mask"], rows, step)
        padded |= {"input_ids": masked.input_ids, "labels": masked.labels, **extra}
        out = {name: torch.from_numpy(value) for name, value in padded.items()}
        out[ROWS] = torch.from_numpy(np.array(rows, np.int64))
        out[STEPS] = torch.full((len(rows),), step)
        return out

    def key(self) -> list[Any]:
        """All that makes batches of the corpus' rows, as JSON: what was computed of one key's batches is stale for another's."""
        paired = [] if self.pairs is None else self.pairs.key()
        return [*self.masking.key(), self.tokenizer.padding_side, self.tokenizer.pad_id, *paired]
