"""Batches of unlabelled text: rows of a corpus with masked tokens, optionally as pairs of segments.

`GeneralSet` implements `TrainData` for the rows of a corpus. `pairs_of` builds the `Pairs` that cut each row into two
segments. About half of the second segments then come from another row, or change places with the first one.
"""

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
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import SecondSegment
from pocketbert.distill.text.corpus import TokenRows
from pocketbert.distill.text.masking import Masking, MaskingScheme
from pocketbert.distill.text.tokenizer import PROBES, continues_word, word_starts, wordless_ids
from pocketbert.distill.training.data import ROW_NUMBERS, STEP_NUMBERS, take_rows

NEXT_SENTENCE_LABEL = "next_sentence_label"
"""Name of the labels in a batch."""

_FOLLOWS, _ELSEWHERE = 0, 1
"""Values of ``next_sentence_label``, as in transformers' ``BertForPreTraining``; 1 also where both segments changed places, as
``sentence_order_label`` of ``AlbertForPreTraining``."""

_ELSEWHERE_SHARE, _SHORT_SHARE, _SHORTEST = 0.5, 0.1, 2
"""Share of the rows with a second segment from elsewhere; share of the rows that are shortened, and to how many tokens at least."""
_SHORT, _LENGTH, _CUT, _WHENCE, _OTHER, _START = range(6)  # columns of a row's noise

_Ids = NDArray[np.int64]


@dataclass(frozen=True)
class PairedRows:
    """Rows of a corpus as pairs of segments, with next-sentence labels.

    Attributes:
        encoded: B inputs with their segments.
        labels: 0 if the second segment follows the first, 1 if it is from another row or stood before the first,
            `IGNORED_LABEL` if the row stayed one segment; [B] int64.
    """

    encoded: list[Encoded]
    labels: _Ids


@dataclass(frozen=True)
class GeneralSet:
    """Rows of a corpus as training batches with masked tokens, optionally as pairs of segments; implements `TrainData`.

    Attributes:
        corpus: Tokenized rows.
        tokenizer: Tokenizer that pads batches.
        masking: Scheme that chooses the masked tokens.
        pairs: Cuts each row into two segments, before tokens are masked; None leaves rows as they are.
    """

    corpus: TokenRows
    tokenizer: TextTokenizer
    masking: MaskingScheme
    pairs: Pairs | None = None

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row; if rows are made into pairs, the largest number that a row can have."""
        lengths: list[int] = self.corpus.lengths.tolist()
        return lengths

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return the tensors of a step's whole batch (of all processes), which depend only on the rows and the step.

        Frequency-smoothed masking decides over all rows of the step: a process that trains on a part of the rows masks
        them all and takes its part of the result.

        Args:
            rows: Row numbers of all processes, B of them.
            step: Number of the optimiser step.

        Returns:
            ``input_ids`` (masked), ``attention_mask``, ``token_type_ids`` (zeros unless paired) and ``labels`` (the
            original id where one is to be predicted, else -100), each [B, S] int64; ``rows`` and ``steps``, [B] int64;
            for pairs also ``next_sentence_label``, [B] int64: see `PairedRows`.
        """
        return self._stack(rows, step, self._pair(rows, step), 0)

    def part(self, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
        """Return the rows `own` of a step's batch of `rows`, padded as in the whole batch; see `batch`.

        With `Masking`, which draws from the tokens of the whole batch, the whole batch is made first.
        """
        if isinstance(self.masking, Masking):
            return take_rows(self.batch(rows, step), own)
        paired = self._pair(rows[own], step)
        longest, lengths = max(map(len, paired.encoded)), self.corpus.lengths[np.asarray(rows)]
        for i in np.argsort(-lengths, kind="stable").tolist():
            if lengths[i] <= longest:  # so are all that follow, and pairs are no longer than their rows
                break
            others = self._pair([rows[i]], step).encoded
            longest = max(longest, *map(len, others))
        return self._stack(rows[own], step, paired, longest)

    def _pair(self, rows: Sequence[int], step: int) -> PairedRows:
        """Return the given rows of the corpus as pairs, or as single segments without `pairs`."""
        if self.pairs is not None:
            return self.pairs.build(self.corpus, rows, step)
        encoded = [_one_segment(np.asarray(ids, np.int64)) for ids in self.corpus.ids(rows)]
        return PairedRows(encoded, np.full(len(rows), IGNORED_LABEL))

    def _stack(self, rows: Sequence[int], step: int, paired: PairedRows, width: int) -> dict[str, Tensor]:
        """Mask tokens of the rows in `paired`, and return the batch's tensors, at least `width` tokens wide."""
        padded = self.tokenizer.pad(paired.encoded, max(width, *map(len, paired.encoded)))
        next_sentence = {} if self.pairs is None else {NEXT_SENTENCE_LABEL: paired.labels}
        masked = self.masking.apply(padded["input_ids"], padded["attention_mask"], rows, step)
        padded |= {"input_ids": masked.input_ids, "labels": masked.labels, **next_sentence}
        tensors = {name: torch.from_numpy(value) for name, value in padded.items()}
        tensors[ROW_NUMBERS] = torch.from_numpy(np.array(rows, np.int64))
        tensors[STEP_NUMBERS] = torch.full((len(rows),), step)
        return tensors

    def key(self) -> list[Any]:
        """Return all settings that decide the batches, as JSON values. A cache made with another key is stale."""
        pairs = [] if self.pairs is None else self.pairs.key()
        return [*self.masking.key(), self.tokenizer.padding_side, self.tokenizer.pad_id, *pairs]


@dataclass(frozen=True)
class PairLayout:
    """Special tokens that a tokenizer puts around a pair of texts, ``[CLS] A [SEP] B [SEP]``, and all segment ids.

    Attributes:
        before: Special tokens before the first text, [b].
        between: Special tokens between the texts, [m].
        after: Special tokens after the second text, [a].
        segments: Segment ids of `before`, the first text, `between`, the second text and `after`.
    """

    before: _Ids
    between: _Ids
    after: _Ids
    segments: tuple[_Ids, int, _Ids, int, _Ids]

    @property
    def special(self) -> int:
        """Number of special tokens in a pair."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, first: _Ids, second: _Ids) -> Encoded:
        """Join the token ids of two texts, [n] and [k], and the special tokens to one encoded pair."""
        before, first_segment, between, second_segment, after = self.segments
        ids = np.concatenate([self.before, first, self.between, second, self.after])
        types = [before, np.full(len(first), first_segment), between, np.full(len(second), second_segment), after]
        return Encoded(ids, np.concatenate(types).astype(np.int64), truncated=False)


@dataclass(frozen=True)
class Pairs:
    """Cuts each row of a corpus into two segments, as for next-sentence prediction; see `pairs_of`.

    This follows Devlin et al. 2019, arXiv 1810.04805, section 3.1, task 2, and the released
    ``create_pretraining_data.py``, with words in place of sentences, because ids do not show where sentences begin. A
    row is cut at a random word into A and B. With chance 1/2, B is replaced by a piece of another row. That row is
    drawn uniformly; the piece begins at a word and is as long as B, or shorter if the row is. With chance 1/10 only the
    beginning of the row is used, of a length drawn uniformly. All of it is a function of (seed, purpose, step, row
    number).

    - No pair is longer than its row: if a pair needs more special tokens than the row has, the row's last tokens are
      left out. The corpus' lengths are upper bounds.
    - In packed rows, the separators between texts are left out, and no cut falls where one text ends.
    - A row that cannot be cut stays one segment, as it is, with label `IGNORED_LABEL`. This is a row of one word, or of
      two words with RoBERTa.
    - If a corpus has a single row, or the other row is empty, B always follows A.
    - With `SecondSegment.SWAPPED`, no other row is used: with chance 1/2, A and B change places. That is sentence-order
      prediction (Lan et al. 2020, ALBERT, arXiv 1909.11942, section 3.1; Cui et al. 2020, MacBERT, arXiv 2004.13922).

    Attributes:
        layout: Special tokens and segments of a pair.
        continues: Which tokens continue a word, [V]; with all False, rows are cut between any two tokens.
        wordless: Ids of tokens that belong to no word.
        seed: Seed of the run.
        purpose: Name of the stage (``distill.0``); random choices depend on it.
        second: What the second segment is if it does not follow the first: from another row, or swapped with the first.
    """

    layout: PairLayout
    continues: NDArray[np.bool_]
    wordless: Sequence[int]
    seed: int
    purpose: str
    second: SecondSegment = SecondSegment.ELSEWHERE

    def build(self, corpus: TokenRows, rows: Sequence[int], step: int) -> PairedRows:
        """Return the given rows as pairs of segments with their next-sentence labels.

        Args:
            corpus: The corpus of the rows; some second segments are taken from its other rows.
            rows: Row numbers, B of them.
            step: Number of the optimiser step.
        """
        count = len(corpus.lengths)
        noises = [generator(self.seed, f"pairs/{self.purpose}", step, int(row)).random(6) for row in rows]
        row_ids = corpus.ids(rows)
        cuts = [self._cut_row(*each, count) for each in zip(row_ids, rows, noises, strict=True)]
        other_ids = iter(corpus.ids([other_row for _, _, other_row in cuts if other_row is not None]))
        encoded, labels = [], np.full(len(rows), IGNORED_LABEL)
        for i, ((tokens, place, other_row), ids, noise) in enumerate(zip(cuts, row_ids, noises, strict=True)):
            if place is None:
                encoded.append(_one_segment(ids))
                continue
            first, second, label = tokens[:place], tokens[place:], _FOLLOWS
            if self.second is SecondSegment.SWAPPED and noise[_WHENCE] < _ELSEWHERE_SHARE:
                first, second, label = second, first, _ELSEWHERE
            if other_row is not None:
                piece = self._random_piece(next(other_ids), len(second), noise[_START])
                if piece.size:
                    second, label = piece, _ELSEWHERE
            encoded.append(self.layout.join(first, second))
            labels[i] = label
        return PairedRows(encoded, labels)

    def key(self) -> list[Any]:
        """Return all settings that decide how pairs are made, as JSON values; see `MaskingScheme.key`."""
        layout, continues = self.layout, sha256_json(np.flatnonzero(self.continues).tolist())
        special = [part.tolist() for part in (layout.before, layout.between, layout.after)]
        segments = [np.asarray(part).tolist() for part in layout.segments]
        kind = "pairs" if self.second is SecondSegment.ELSEWHERE else f"pairs {self.second}"
        return [kind, self.seed, self.purpose, special, segments, continues, sorted(self.wordless)]

    def _cut_row(
        self, ids: _Ids, row: int, noise: NDArray[np.float64], row_count: int
    ) -> tuple[_Ids, int | None, int | None]:
        """Choose a row's length, where it is cut into two segments, and the row that its second segment is taken from.

        Args:
            ids: Token ids of the row.
            row: Number of the row.
            noise: Uniform random numbers, which decide all choices.
            row_count: Number of rows of the corpus.

        Returns:
            The row's tokens without special ones, [n]; the index of the second segment's first token, None to keep the
            row as one segment; and the number of the other row, None if the second segment is from the same row.
        """
        tokens, starts, text_starts = self._read_row(ids)
        most = min(len(ids) - self.layout.special, len(tokens))
        if noise[_SHORT] < _SHORT_SHARE and most > _SHORTEST:
            most = _SHORTEST + int(noise[_LENGTH] * (most - _SHORTEST + 1))
        tokens = tokens[: max(most, 0)]
        possible = np.flatnonzero((starts & ~text_starts)[1 : len(tokens)]) + 1
        if not possible.size:
            return tokens, None, None
        other_row = None
        if self.second is SecondSegment.ELSEWHERE and noise[_WHENCE] < _ELSEWHERE_SHARE and row_count > 1:
            other_row = int(noise[_OTHER] * (row_count - 1))
            other_row += other_row >= row
        return tokens, int(possible[int(noise[_CUT] * len(possible))]), other_row

    def _random_piece(self, ids: _Ids, length: int, noise: float) -> _Ids:
        """Return `length` tokens of a row, beginning at a random word, or all its tokens if there are no more."""
        tokens, starts, _ = self._read_row(ids)
        if len(tokens) <= length:
            return tokens
        possible = np.flatnonzero(starts[: len(tokens) - length + 1])
        first = possible[int(noise * len(possible))]
        return tokens[first : first + length]

    def _read_row(self, ids: _Ids) -> tuple[_Ids, NDArray[np.bool_], NDArray[np.bool_]]:
        """Return a row's tokens without special tokens, and two flags for each of them, [n] each.

        The flags tell whether a word begins at the token, and whether another text does.
        """
        is_special, is_apart = self._token_tables
        kept = np.flatnonzero(~is_special[ids])
        starts = word_starts(self.continues[ids], is_apart[ids])[kept]
        return ids[kept], starts, np.diff(kept, prepend=kept[:1]) > 1

    @cached_property
    def _token_tables(self) -> NDArray[np.bool_]:
        """For each token id, whether it is a special token of the layout, and whether it belongs to no word, [2, V]."""
        tables = np.zeros((2, len(self.continues)), np.bool_)
        tables[:, np.concatenate([self.layout.before, self.layout.between, self.layout.after])] = True
        tables[1, list(self.wordless)] = True
        return tables


def _one_segment(ids: _Ids) -> Encoded:
    """Return token ids as an encoded row of one segment."""
    return Encoded(ids, np.zeros(len(ids), np.int64), truncated=False)


def pairs_of(
    tokenizer: TextTokenizer,
    vocabulary: int,
    seed: int,
    purpose: str,
    second: SecondSegment = SecondSegment.ELSEWHERE,
) -> Pairs:
    """Return the `Pairs` of a stage, which cut a corpus' rows in two with the tokenizer's special tokens for pairs.

    Args:
        tokenizer: The teacher's tokenizer. If its vocabulary does not mark the beginnings of words, rows are cut
            between any two tokens.
        vocabulary: Vocabulary size V of the corpus, the length of its `counts`.
        seed: Seed of the run.
        purpose: Name of the stage (``distill.0``): random choices depend on it, and errors name it.
        second: What the second segment is if it does not follow the first: from another row, or swapped with the first.

    Raises:
        InputError: If the tokenizer has no special token between two texts, or its longest input has no room for two
            texts.
    """
    continues = continues_word(tokenizer, vocabulary)
    if continues is None:
        continues = np.zeros(vocabulary, np.bool_)
    layout = _pair_layout(tokenizer, f"{purpose}.pairs")
    return Pairs(layout, continues, wordless_ids(tokenizer, vocabulary), seed, purpose, second)


def _pair_layout(tokenizer: TextTokenizer, where: str) -> PairLayout:
    """Return the special tokens and segment ids that a tokenizer gives a pair of texts, found by tokenizing one.

    BERT's are ``[CLS] A [SEP] B [SEP]`` with segments 0 and 1, RoBERTa's ``<s> A </s></s> B </s>`` with segment 0
    alone.

    Args:
        tokenizer: Tokenizer of any family.
        where: Recipe key that error messages name.

    Raises:
        InputError: If the longest input has no room for two texts, or the tokenizer puts no token between them.
    """
    for probe in PROBES:
        (pair,) = tokenizer.encode([(probe, probe)], places=True)
        assert pair.places is not None
        positions = [np.flatnonzero(pair.places.parts == part) for part in (0, 1)]
        if positions[0].size and positions[1].size:
            break
    else:
        reason = f"inputs of {tokenizer.max_length} tokens have no room for two texts."
        raise InputError(Problem(where, reason, "Raise data.corpus.length, or set pairs: false."))
    cuts = [positions[0][0], positions[0][-1] + 1, positions[1][0], positions[1][-1] + 1]
    before, _, between, _, after = np.split(pair.ids, cuts)
    if not between.size:
        reason = "the tokenizer puts no special token between two texts: where the first one ends could not be seen."
        raise InputError(Problem(where, reason, "Set pairs: false."))
    types = np.split(pair.type_ids, cuts)
    return PairLayout(before, between, after, (types[0], int(types[1][0]), types[2], int(types[3][0]), types[4]))
