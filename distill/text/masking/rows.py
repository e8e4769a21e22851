"""Masking that decides about each row separately: single tokens, whole words, spans; and none at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.seeds import generator
from pocketbert.distill.text.masking.masking import Masked, stand_ins
from pocketbert.distill.text.masking.similar import SimilarWords
from pocketbert.distill.text.masking.spans import NGRAM_CHANCES, draw_spans
from pocketbert.distill.text.masking.words import word_starts

Ids = NDArray[np.int64]
Noise = NDArray[np.float64]
_TO_FILL = -1


@dataclass(frozen=True)
class NoMasking:
    """Text as it is, nothing to predict; TinyBERT's general data. Needs no mask token."""

    def apply(self, ids: Ids, mask: Ids, rows: Sequence[int], step: int) -> Masked:
        """The ids themselves, and `IGNORED` everywhere, [B, S] each."""
        return Masked(ids.copy(), np.full_like(ids, IGNORED))

    def estimate(self, lengths: Ids) -> int:
        """None, whatever the lengths."""
        return 0

    def key(self) -> list[Any]:
        """See `pocketbert.distill.text.masking.masking.MaskingScheme`."""
        return ["none"]


@dataclass(frozen=True)
class RowMasking(ABC):
    """Hides a share of the tokens of each row, at least one where any may be hidden.

    Of a row of n tokens, special ones counted, ``max(1, round(share * n))`` are to be hidden, as in BERT's code
    (``create_pretraining_data.py``). Noise is a function of (seed, purpose, step, row number, place in the row).

    Attributes:
        vocabulary: V; random tokens are drawn uniformly from all of it.
        mask_id: The mask token.
        wordless: Tokens that are never hidden: special and unknown ones.
        seed: Seed of the run.
        purpose: What is trained (``distill.0``); keys the noise.
        share: Share of the tokens to hide.
    """

    vocabulary: int
    mask_id: int
    wordless: Sequence[int]
    seed: int
    purpose: str
    share: float = 0.15

    def apply(self, ids: Ids, mask: Ids, rows: Sequence[int], step: int) -> Masked:
        """Hide tokens; see `pocketbert.distill.text.masking.masking.MaskingScheme`."""
        apart = np.zeros(self.vocabulary, np.bool_)
        apart[list(self.wordless)] = True
        real = mask.astype(bool)
        wanted = self.wanted(real.sum(1)).tolist()
        places, actions, strangers = [], [], []
        for i, row in enumerate(rows):
            own = np.flatnonzero(real[i])
            tokens = ids[i, own]
            noise = generator(self.seed, f"mask/{self.purpose}", step, int(row)).random((len(own), 4))
            chosen, action = self._choose(tokens, apart[tokens], wanted[i], noise)
            places.append(own[chosen] + i * ids.shape[1])
            actions.append(action)
            strangers.append(noise[chosen, 3])
        hidden = np.unravel_index(np.concatenate(places), ids.shape)
        out = Masked(ids.copy(), np.full_like(ids, IGNORED))
        out.labels[hidden] = ids[hidden]
        out.input_ids[hidden] = self._read(ids, hidden, np.concatenate(actions), np.concatenate(strangers))
        return out

    def _read(self, ids: Ids, hidden: tuple[Ids, ...], action: Noise, stranger: Noise) -> Ids:
        """What is read in place of the hidden tokens, [n].

        Args:
            ids: Original tokens, [B, S].
            hidden: Rows and columns of the hidden ones, [n] each, the tokens of a word one after the other.
            action: A uniform number in [0, 1) for each, that decides what stands in for it, [n].
            stranger: Another one, that decides which random token it is, [n].
        """
        return stand_ins(ids[hidden], action, (stranger * self.vocabulary).astype(np.int64), self.mask_id)

    def wanted(self, lengths: Ids) -> Ids:
        """How many tokens of rows of such lengths are to be hidden, [B] both."""
        # rounded to 9 digits first: 0.15 * 30 must be 4.5, whatever the last bit of the product says
        return np.maximum(1, np.rint(np.round(self.share * lengths, 9))).astype(np.int64)

    def estimate(self, lengths: Ids) -> int:
        """The largest number of hidden tokens in rows of these lengths, [B], except where all words of a row are too long."""
        return int(self.wanted(lengths).sum())

    def key(self) -> list[Any]:
        """See `pocketbert.distill.text.masking.masking.MaskingScheme`."""
        kind = type(self).__name__
        return [
            kind,
            self.seed,
            self.purpose,
            self.share,
            self.vocabulary,
            self.mask_id,
            sorted(self.wordless),
        ]

    @abstractmethod
    def _choose(self, tokens: Ids, apart: NDArray[np.bool_], wanted: int, noise: Noise) -> tuple[Ids, Noise]:
        """Choose what is hidden of one row.

        Args:
            tokens: Its n tokens.
            apart: Those that may not be hidden, [n].
            wanted: How many are to be hidden, at least 1.
            noise: Uniform numbers in [0, 1), [n, 4]; the last column is taken.

        Returns:
            Places of the hidden tokens, [k], and a uniform number for each that decides what stands in for it.
        """


class DynamicMasking(RowMasking):
    """Single tokens, all alike, anew at every step.

    Devlin et al. 2019, arXiv 1810.04805, section 3.1; anew at every step as in Liu et al. 2019, arXiv 1907.11692,
    section 4.1.
    """

    def _choose(self, tokens: Ids, apart: NDArray[np.bool_], wanted: int, noise: Noise) -> tuple[Ids, Noise]:
        possible = np.flatnonzero(~apart)
        hidden = possible[np.argsort(noise[possible, 0], kind="stable")[:wanted]]
        return hidden, noise[hidden, 1]


@dataclass(frozen=True, kw_only=True)
class WordMasking(RowMasking):
    """Masking that hides words as a whole.

    Attributes:
        continues: Which tokens continue a word, [V]; `pocketbert.distill.text.masking.words.continues_word`.
    """

    continues: NDArray[np.bool_]

    def key(self) -> list[Any]:
        """See `pocketbert.distill.text.masking.masking.MaskingScheme`."""
        return [*super().key(), sha256_json(np.flatnonzero(self.continues).tolist())]

    def _words(self, tokens: Ids, apart: NDArray[np.bool_]) -> tuple[Ids, Ids]:
        """First and behind-last token of each word that may be hidden, [W] each."""
        starts = np.flatnonzero(word_starts(self.continues[tokens], apart))
        ends = np.append(starts[1:], len(tokens))
        own = ~apart[starts]
        return starts[own], ends[own]


class WholeWordMasking(WordMasking):
    """Whole words, all alike: all pieces of a word, or none of them.

    Words are taken in random order; one with more pieces than may still be hidden is passed over, as in BERT's code
    (``do_whole_word_mask``; BERT-wwm, Cui et al. 2019, arXiv 1906.08101), so that the share is never exceeded and
    reached as nearly as those words allow. Where no word of a row fits, its shortest is hidden (BERT: none). What
    stands in is decided for each token alone.
    """

    def _choose(self, tokens: Ids, apart: NDArray[np.bool_], wanted: int, noise: Noise) -> tuple[Ids, Noise]:
        firsts, ends = self._words(tokens, apart)
        order = np.argsort(noise[firsts, 0], kind="stable")
        sizes = ends - firsts
        if sizes.size and sizes.min() > wanted:
            wanted = int(sizes.min())
        chosen: list[int] = []
        for word, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
            if size <= wanted:
                chosen.append(word)
                wanted -= size
            if not wanted:
                break
        hidden = _places(firsts[chosen], ends[chosen])
        return hidden, noise[hidden, 1]


class NgramMasking(WordMasking):
    """Runs of 1 to 4 neighbouring words, with chances of 40, 30, 20 and 10 %.

    Cui et al. 2020 (MacBERT), arXiv 2004.13922, section 3; the words are drawn as `draw_spans` does it. What stands in is
    decided for each word: all its tokens become the mask token, or stay, or become random tokens.
    """

    def _choose(self, tokens: Ids, apart: NDArray[np.bool_], wanted: int, noise: Noise) -> tuple[Ids, Noise]:
        firsts, ends = self._words(tokens, apart)
        spans = draw_spans(firsts, ends, wanted, noise[:, :2], NGRAM_CHANCES)
        words = [word for first, last in spans for word in range(first, last)]
        starts, stops = firsts[words], ends[words]
        return _places(starts, stops), np.repeat(noise[starts, 2], stops - starts)


@dataclass(frozen=True, kw_only=True)
class SimilarMasking(NgramMasking):
    """The same runs, in which a word is replaced by a similar one where others have the mask token: "MLM as correction".

    Cui et al. 2020 (MacBERT), arXiv 2004.13922, section 3: 80 % of the words become a similar word, each of a run by itself,
    10 % a random one, 10 % stay; where no similar word is known, a random one is taken. A similar word has as many tokens as
    the word, so that every token keeps its place, and a random word is as many random tokens.

    Attributes:
        similar: Knows the words.
    """

    similar: SimilarWords

    def key(self) -> list[Any]:
        """See `pocketbert.distill.text.masking.masking.MaskingScheme`."""
        return [*super().key(), *self.similar.key()]

    def _read(self, ids: Ids, hidden: tuple[Ids, ...], action: Noise, stranger: Noise) -> Ids:
        tokens, (rows, places) = ids[hidden], hidden
        # "the mask token" of these draws stands for a similar word: marked, and filled in word by word
        read = stand_ins(tokens, action, (stranger * self.vocabulary).astype(np.int64), _TO_FILL)
        joined = (np.diff(rows, prepend=-1) == 0) & (np.diff(places, prepend=-2) == 1) & self.continues[tokens]
        starts = np.flatnonzero(~joined)
        for start, end in zip(starts.tolist(), np.append(starts, len(tokens))[1:].tolist(), strict=True):
            if read[start] == _TO_FILL:
                known = self.similar.of(tuple(tokens[start:end].tolist()))
                random = (stranger[start:end] * self.vocabulary).astype(np.int64)
                read[start:end] = known[int(stranger[start] * len(known))] if known else random
        return read


class SpanMasking(WordMasking):
    """Runs of neighbouring words; see `pocketbert.distill.text.masking.spans.draw_spans`.

    What stands in is decided for each span: all its tokens become the mask token, or stay, or become random tokens.
    """

    def _choose(self, tokens: Ids, apart: NDArray[np.bool_], wanted: int, noise: Noise) -> tuple[Ids, Noise]:
        firsts, ends = self._words(tokens, apart)
        spans = np.array(draw_spans(firsts, ends, wanted, noise[:, :2]), np.int64).reshape(-1, 2)
        starts, stops = firsts[spans[:, 0]], ends[spans[:, 1] - 1]
        return _places(starts, stops), np.repeat(noise[starts, 2], stops - starts)


def _places(firsts: Ids, ends: Ids) -> Ids:
    """All places from each first to before its end, part after part."""
    sizes = ends - firsts
    skipped = firsts - np.cumsum(sizes) + sizes
    places: Ids = np.arange(sizes.sum()) + np.repeat(skipped, sizes)
    return places
