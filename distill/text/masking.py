"""Which tokens a masked-language-model batch hides, and behind what: the interface, and masking over a whole batch."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import sha256_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.predict.tokenization import MASK_TOKENS, TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import MaskingKind
from pocketbert.distill.text.tokenizer import continues_word, word_starts, wordless_ids

# --- similar ---
# Words that may replace others: what a masking asks of the code that knows them.


class SimilarWords(Protocol):
    """Knows similar words by their tokens."""

    def of(self, word: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
        """Words like one, each as many tokens and none the word itself; empty where none is known.

        Args:
            word: Its tokens.
        """
        ...

    def key(self) -> list[Any]:
        """All that decides which words are similar, as JSON."""
        ...


_KEEP, _MASK_BELOW = 0.9, 0.8


@dataclass(frozen=True)
class Masked:
    """A batch with hidden tokens.

    Attributes:
        input_ids: What the models read, [B, S] int64.
        labels: The original id where one is to be predicted, else `IGNORED`; [B, S] int64.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]


class MaskingScheme(Protocol):
    """Hides tokens of batches; `pocketbert.distill.text.masking.masking_of` makes one."""

    def apply(self, ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[int], step: int) -> Masked:
        """Hide tokens of a global batch.

        Which ones depends on (seed, purpose, step, row number, place among the row's own tokens): neither how the
        batch is padded nor the order of its rows changes it.

        Args:
            ids: Original tokens, [B, S].
            mask: 1 at real tokens, [B, S].
            rows: Row number of each row in the corpus, B of them.
            step: The optimiser step.

        Returns:
            New arrays.
        """
        ...

    def estimate(self, lengths: NDArray[np.int64]) -> int:
        """How many tokens will be hidden in a batch of rows of such lengths, [B]: to plan room for them."""
        ...

    def key(self) -> list[Any]:
        """All that decides what is hidden, as JSON: what was computed of one key's batches is stale for another's."""
        ...


@dataclass(frozen=True)
class Masking:
    """Frequency-smoothed masking over a whole batch, as XLM (arXiv 1901.07291, section 3.2) and DistilBERT do it.

    Of a batch with n tokens that are not padding, ``ceil(share * n)`` are predicted. They are drawn without
    replacement with weight ``max(count, 1) ** -smoothing`` each, special tokens 0, over all rows at once: a row of
    frequent words may get none. Each becomes the mask token (80 %), stays (10 %) or becomes a token drawn
    uniformly from the vocabulary (10 %).

    The batch is the *global* one. Noise is a function of (seed, purpose, step, row number, place in the row), so
    every process that masks the same rows hides the same tokens, however the batch is then split, ordered or padded.

    Attributes:
        counts: How often each token stands in the corpus, [V].
        mask_id: The mask token.
        special_ids: Tokens that are never predicted, the unknown token among them.
        seed: Seed of the run.
        purpose: What is trained (``distill.0``); keys the noise.
        share: Share of the tokens to predict; special ones count here too, as in the released code.
        smoothing: Exponent of the frequency; 0 makes all tokens equally likely.
    """

    counts: NDArray[np.int64]
    mask_id: int
    special_ids: Sequence[int]
    seed: int
    purpose: str
    share: float = 0.15
    smoothing: float = 0.7

    def apply(self, ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[int], step: int) -> Masked:
        """Hide tokens; see `MaskingScheme`. Where fewer tokens than asked for may be hidden, all of them are."""
        real = mask.astype(bool)
        noise = self._noise(real, rows, step)
        tokens = ids[real]
        chosen = _race(self.weights()[tokens], noise[:, 0], self.wanted(len(tokens)))
        strangers = (noise[chosen, 2] * len(self.counts)).astype(np.int64)
        read, labels = tokens.copy(), np.full_like(tokens, IGNORED)
        labels[chosen] = tokens[chosen]
        read[chosen] = stand_ins(tokens[chosen], noise[chosen, 1], strangers, self.mask_id)
        out = Masked(ids.copy(), np.full_like(ids, IGNORED))
        out.input_ids[real], out.labels[real] = read, labels
        return out

    def wanted(self, tokens: int) -> int:
        """How many of this number of tokens are predicted."""
        # rounded first: 0.15 * 20 must stay 3, whatever the last bit of the product says
        return math.ceil(round(self.share * tokens, 9))

    def estimate(self, lengths: NDArray[np.int64]) -> int:
        """How many tokens are predicted in a batch of rows of such lengths, [B]; see `MaskingScheme`."""
        return self.wanted(int(lengths.sum()))

    def key(self) -> list[Any]:
        """See `MaskingScheme`."""
        counts = hashlib.sha256(np.asarray(self.counts, "<i8").tobytes()).hexdigest()
        special = sorted(self.special_ids)
        return [self.seed, self.purpose, self.share, self.smoothing, self.mask_id, special, counts]

    def weights(self) -> NDArray[np.float64]:
        """Relative chance of each vocabulary entry to be drawn, [V]."""
        out: NDArray[np.float64] = np.maximum(self.counts, 1).astype(np.float64) ** -self.smoothing
        out[list(self.special_ids)] = 0.0
        return out

    def _noise(self, real: NDArray[np.bool_], rows: Sequence[int], step: int) -> NDArray[np.float64]:
        """Three uniform numbers for each real token, row after row, [tokens, 3]."""
        purpose = f"mask/{self.purpose}"
        return np.concatenate(
            [
                generator(self.seed, purpose, step, int(row)).random((int(length), 3))
                for row, length in zip(rows, real.sum(1), strict=True)
            ]
        )


def stand_ins(
    tokens: NDArray[np.int64], action: NDArray[np.float64], strangers: NDArray[np.int64], mask_id: int
) -> NDArray[np.int64]:
    """What is read in place of hidden tokens: the mask token (80 %), the token itself (10 %) or a stranger (10 %).

    Devlin et al. 2019, arXiv 1810.04805, section 3.1, task 1.

    Args:
        tokens: The hidden tokens, [n].
        action: A uniform number in [0, 1) for each, [n].
        strangers: A random token for each, [n].
        mask_id: The mask token.
    """
    masks = np.full_like(tokens, mask_id)
    out: NDArray[np.int64] = np.select([action < _MASK_BELOW, action < _KEEP], [masks, tokens], strangers)
    return out


def _race(weights: NDArray[np.float64], noise: NDArray[np.float64], wanted: int) -> NDArray[np.int64]:
    """Positions drawn without replacement in proportion to their weights.

    Exponential clocks of rate w: the order in which they ring is the order of such draws (Efraimidis and
    Spirakis 2006), and each position needs only its own noise.

    Args:
        weights: Weight of each position, [n]; those of weight 0 are never drawn.
        noise: A uniform number in [0, 1) for each, [n].
        wanted: How many.
    """
    possible = np.flatnonzero(weights)
    rings = -np.log1p(-noise[possible]) / weights[possible]
    return possible[np.argsort(rings, kind="stable")[:wanted]]


# --- spans ---
# Spans of neighbouring words, drawn as SpanBERT draws them.


P, LONGEST = 0.2, 10
_CHANCES = P * (1 - P) ** np.arange(LONGEST)
SPAN_CHANCES: NDArray[np.float64] = _CHANCES / _CHANCES.sum()
"""Chance of a span of 1 to 10 words, [10]: Geo(0.2), of which lengths above 10 are left out; mean 3.8 words."""
NGRAM_CHANCES: NDArray[np.float64] = np.array([0.4, 0.3, 0.2, 0.1])
"""Chance of a run of 1 to 4 words, [4]; Cui et al. 2020 (MacBERT), arXiv 2004.13922, section 3."""


def draw_spans(
    firsts: NDArray[np.int64],
    ends: NDArray[np.int64],
    wanted: int,
    noise: NDArray[np.float64],
    chances: NDArray[np.float64] = SPAN_CHANCES,
) -> list[tuple[int, int]]:
    """Draw spans of whole words until enough tokens are hidden.

    Again and again a length is drawn, by default from ``Geo(p = 0.2)``, at most 10 words, and a first word, uniformly among those
    not hidden yet (Joshi et al. 2020, arXiv 1907.10529, section 3.1). A span ends early before a hidden word, before
    a token that belongs to no word, and before a word with more tokens than may still be hidden: the original code
    cuts that word in two. Where no word of the row fits, the shortest is hidden.

    Args:
        firsts: First token of each word, ascending, [W].
        ends: Behind its last token, [W]; words whose end is not the next one's first are not neighbours.
        wanted: How many tokens to hide, at least 1.
        noise: Uniform numbers in [0, 1), [n, 2] with n >= W.
        chances: Chance of each length from 1 on.

    Returns:
        First and behind-last *word* of each span, none of which overlap, in the order in which they were drawn.
    """
    sizes = ends - firsts
    joined = firsts[1:] == ends[:-1]
    if sizes.size and sizes.min() > wanted:
        wanted = int(sizes.min())
    free = np.ones(len(sizes), np.bool_)
    lengths = np.searchsorted(np.cumsum(chances)[:-1], noise[:, 0], "right") + 1
    spans: list[tuple[int, int]] = []
    for length, place in zip(lengths.tolist(), noise[:, 1].tolist(), strict=True):
        possible = np.flatnonzero(free & (sizes <= wanted))
        if not possible.size:
            break
        first = last = int(possible[int(place * len(possible))])
        wanted -= int(sizes[first])
        while (
            last - first + 1 < length
            and last < len(joined)
            and joined[last]
            and free[last + 1]
            and sizes[last + 1] <= wanted
        ):
            last += 1
            wanted -= int(sizes[last])
        free[first : last + 1] = False
        spans.append((first, last + 1))
    return spans


# --- rows ---
# Masking that decides about each row separately: single tokens, whole words, spans; and none at all.


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
        """See `pocketbert.distill.text.masking.MaskingScheme`."""
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
        """Hide tokens; see `pocketbert.distill.text.masking.MaskingScheme`."""
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
        """See `pocketbert.distill.text.masking.MaskingScheme`."""
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
        continues: Which tokens continue a word, [V]; `pocketbert.distill.text.tokenizer.continues_word`.
    """

    continues: NDArray[np.bool_]

    def key(self) -> list[Any]:
        """See `pocketbert.distill.text.masking.MaskingScheme`."""
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
        """See `pocketbert.distill.text.masking.MaskingScheme`."""
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
    """Runs of neighbouring words; see `pocketbert.distill.text.masking.draw_spans`.

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


# --- kinds ---
# The masking that a recipe names.


_BY_WORD: dict[MaskingKind, type[WholeWordMasking | SpanMasking | NgramMasking]] = {
    MaskingKind.WHOLE_WORD: WholeWordMasking,
    MaskingKind.SPAN: SpanMasking,
    MaskingKind.NGRAM: NgramMasking,
}
_UNREAD = 0
"""In place of a mask token that the tokenizer does not have and the masking does not use."""


def masking_of(
    kind: MaskingKind,
    counts: NDArray[np.int64],
    tokenizer: TextTokenizer,
    seed: int,
    purpose: str,
    share: float = 0.15,
    smoothing: float = 0.7,
    similar: SimilarWords | None = None,
) -> MaskingScheme:
    """Build the masking of one stage.

    Args:
        kind: How tokens to hide are chosen.
        counts: How often each token stands in the corpus, [V].
        tokenizer: The teacher's.
        seed: Seed of the run.
        purpose: What is trained (``distill.0``): keys the noise, and names the stage in errors.
        share: Share of the tokens to hide; unused by `none`.
        smoothing: Exponent of the frequency; of `frequency` only.
        similar: Knows similar words; needed by `similar`, and by nothing else.

    Raises:
        InputError: If the tokenizer has no mask token, or its vocabulary does not tell where words begin, and the
            kind needs it.
    """
    if kind is MaskingKind.NONE:
        return NoMasking()
    where, mask_id = f"{purpose}.masking", tokenizer.mask_id
    if kind is MaskingKind.SIMILAR and mask_id is None:
        mask_id = _UNREAD
    problems = []
    if mask_id is None:
        problems.append(
            Problem(
                where,
                f"{kind}, and the tokenizer has no mask token ({' or '.join(MASK_TOKENS)}).",
                "Set masking: none, or take a teacher whose tokenizer has one.",
            )
        )
    continues = None
    if kind in (*_BY_WORD, MaskingKind.SIMILAR):
        continues = continues_word(tokenizer, len(counts))
        if continues is None:
            problems.append(
                Problem(
                    where,
                    f"{kind}, and the vocabulary does not tell where words begin: no token starts with ##, Ġ or ▁.",
                    "Set masking: dynamic.",
                )
            )
    if problems or mask_id is None:
        raise InputError(problems)
    wordless = wordless_ids(tokenizer, len(counts))
    if kind is MaskingKind.FREQUENCY:
        return Masking(counts, mask_id, wordless, seed, purpose, share, smoothing)
    if continues is None:
        return DynamicMasking(len(counts), mask_id, wordless, seed, purpose, share)
    if kind is MaskingKind.SIMILAR:
        assert similar is not None, "masking: similar needs words"
        return SimilarMasking(
            len(counts), mask_id, wordless, seed, purpose, share, continues=continues, similar=similar
        )
    return _BY_WORD[kind](len(counts), mask_id, wordless, seed, purpose, share, continues=continues)
