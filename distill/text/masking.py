"""Masked-language modelling: which tokens of a batch are masked, and what replaces them.

`masking_of` builds the `MaskingScheme` that a recipe names:

- `Masking` draws from all tokens of a batch at once, with a preference for rare ones (XLM, DistilBERT);
- `_DynamicMasking`, `_WholeWordMasking`, `_SpanMasking`, `_NgramMasking` and `_SimilarMasking` mask a share of each row: single
  tokens, whole words, spans, n-grams, and n-grams that are replaced by similar words;
- `_NoMasking` leaves the text as it is.

All random choices are functions of (seed, purpose, step, row number), so that processes that share a batch mask the same tokens.
"""

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
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.tokenization import MASK_TOKENS, TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import MaskingKind
from pocketbert.distill.text.tokenizer import continues_word, word_starts, wordless_ids

_Ids = NDArray[np.int64]
_Noise = NDArray[np.float64]

_UNUSED_MASK_ID = 0
"""Mask id of tokenizers without a mask token, for maskings that do not use it."""


@dataclass(frozen=True)
class Masked:
    """Input ids of a batch after masking, and the labels to predict.

    Attributes:
        input_ids: The input of the models, [B, S] int64.
        labels: The original id where one is to be predicted, else `IGNORED_LABEL`; [B, S] int64.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]


class MaskingScheme(Protocol):
    """Interface of a masking scheme: it chooses the tokens of a batch that are masked, and what replaces them."""

    def apply(self, ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[int], step: int) -> Masked:
        """Mask tokens of a step's whole batch (only `Masking` needs it whole); return the new input ids and the labels.

        The choice depends on (seed, purpose, step, row number, place among the row's own tokens): neither how the batch
        is padded nor the order of its rows changes it.

        Args:
            ids: Original tokens, [B, S].
            mask: 1 at real tokens, [B, S].
            rows: Row number in the corpus of each of the B rows.
            step: Number of the optimiser step.

        Returns:
            New arrays of input ids and labels.
        """
        ...

    def estimate(self, lengths: NDArray[np.int64]) -> int:
        """Return about how many tokens will be masked in a batch whose rows have these numbers of tokens, [B]."""
        ...

    def key(self) -> list[Any]:
        """Return all settings that decide what is masked, as JSON values. A cache made with another key is stale."""
        ...


class SimilarWords(Protocol):
    """Interface that finds words similar to a word, both given as token ids; see `pocketbert.distill.word_vectors`."""

    def of(self, word: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
        """Return the token ids of words similar to `word`, each with as many tokens as it; empty if none is known."""
        ...

    def key(self) -> list[Any]:
        """Return all settings and data that decide which words are similar, as JSON values."""
        ...


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
    """Build the masking scheme of a stage, such as whole-word or span masking.

    Args:
        kind: How the masked tokens are chosen.
        counts: Occurrences of each token in the corpus, [V].
        tokenizer: The teacher's tokenizer.
        seed: Seed of the run.
        purpose: Name of the stage (``distill.0``): random choices depend on it, and errors name it.
        share: Share of the tokens to mask; unused by `none`.
        smoothing: Exponent of the token frequencies; used by the kind `frequency` only.
        similar: Source of similar words; used by the kind `similar` only, which needs it.

    Raises:
        InputError: If the kind needs a mask token and the tokenizer has none, or if it needs the beginnings of words
            and the vocabulary does not mark them.
    """
    if kind is MaskingKind.NONE:
        return _NoMasking()
    where, mask_id = f"{purpose}.masking", tokenizer.mask_id
    if kind is MaskingKind.SIMILAR and mask_id is None:
        mask_id = _UNUSED_MASK_ID
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
    if kind in (*_WORD_SCHEMES, MaskingKind.SIMILAR):
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
        return _DynamicMasking(len(counts), mask_id, wordless, seed, purpose, share)
    if kind is MaskingKind.SIMILAR:
        assert similar is not None, "masking: similar needs words"
        return _SimilarMasking(
            len(counts), mask_id, wordless, seed, purpose, share, continues=continues, similar=similar
        )
    return _WORD_SCHEMES[kind](len(counts), mask_id, wordless, seed, purpose, share, continues=continues)


# --- masking over the whole batch ---


@dataclass(frozen=True)
class Masking:
    """Masking over a whole batch with a preference for rare tokens, as in XLM (arXiv 1901.07291) and DistilBERT.

    In a batch with n tokens that are not padding, at most ``ceil(share * n)`` are predicted. They are drawn without
    replacement with weight ``max(count, 1) ** -smoothing`` each, special tokens 0, over all rows at once: a row of
    frequent words may get none. Each becomes the mask token (80 %), stays (10 %) or becomes a token drawn uniformly
    from the vocabulary (10 %).

    The batch is that of all processes. Noise is a function of (seed, purpose, step, row number, place in the row), so
    every process that masks the same rows masks the same tokens, however the batch is then split, ordered or padded.

    Attributes:
        counts: Occurrences of each token in the corpus, [V].
        mask_id: Id of the mask token.
        special_ids: Ids of tokens that are never predicted, the unknown token among them.
        seed: Seed of the run.
        purpose: Name of the stage (``distill.0``); random choices depend on it.
        share: Share of the tokens to predict. Special tokens count as tokens here too, as in the released code.
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
        """Mask tokens of a step's whole batch, rare tokens with a greater chance, and return input ids and labels.

        Arguments and result are those of `MaskingScheme.apply`. The number of masked tokens is fixed for the whole
        batch (see `estimate`); if fewer tokens than that are not special tokens, every one of them is masked.
        """
        real = mask.astype(bool)
        lengths = real.sum(1)
        # three uniform numbers for each real token, row after row
        noise = np.concatenate(
            [
                generator(self.seed, f"mask/{self.purpose}", step, int(row)).random((int(length), 3))
                for row, length in zip(rows, lengths, strict=True)
            ]
        )
        tokens = ids[real]
        chosen = _draw_weighted(self.weights()[tokens], noise[:, 0], self.estimate(lengths))
        random_tokens = (noise[chosen, 2] * len(self.counts)).astype(np.int64)
        read, labels = tokens.copy(), np.full_like(tokens, IGNORED_LABEL)
        labels[chosen] = tokens[chosen]
        read[chosen] = _replace_tokens(tokens[chosen], noise[chosen, 1], random_tokens, self.mask_id)
        masked = Masked(ids.copy(), np.full_like(ids, IGNORED_LABEL))
        masked.input_ids[real], masked.labels[real] = read, labels
        return masked

    def estimate(self, lengths: NDArray[np.int64]) -> int:
        """Return how many tokens at most are masked in a batch whose rows have these numbers of tokens, [B]."""
        # rounded first: 0.15 * 20 must stay 3, whatever the last bit of the product is
        return math.ceil(round(self.share * int(lengths.sum()), 9))

    def key(self) -> list[Any]:
        """Return the settings that decide the masks; see `MaskingScheme.key`."""
        counts = hashlib.sha256(np.asarray(self.counts, "<i8").tobytes()).hexdigest()
        special = sorted(self.special_ids)
        return [self.seed, self.purpose, self.share, self.smoothing, self.mask_id, special, counts]

    def weights(self) -> NDArray[np.float64]:
        """Return the relative chance that a token is masked, by token id, [V]. It is 0 for special tokens."""
        weights: NDArray[np.float64] = np.maximum(self.counts, 1).astype(np.float64) ** -self.smoothing
        weights[list(self.special_ids)] = 0.0
        return weights


def _draw_weighted(weights: NDArray[np.float64], noise: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Draw `count` positions without replacement, with chances in proportion to their weights.

    Each position gets a random time from an exponential distribution whose rate is its weight, and the positions with
    the earliest times are drawn. This has the distribution of drawing one after the other (Efraimidis and Spirakis
    2006), and each position needs only its own noise.

    Args:
        weights: Weight of each position, [n]; a position of weight 0 is never drawn.
        noise: A uniform number in [0, 1) for each position, [n].
        count: Number of positions to draw; if fewer have a weight, all of them are drawn.
    """
    possible = np.flatnonzero(weights)
    times = -np.log1p(-noise[possible]) / weights[possible]
    # the positions that a stable sort would put first, in less time
    last = np.partition(times, count)[count] if count < len(times) else np.inf
    earlier, equal = np.flatnonzero(times < last), np.flatnonzero(times == last)
    drawn: NDArray[np.int64] = possible[np.concatenate([earlier, equal[: count - len(earlier)]])]
    return drawn


def _replace_tokens(tokens: _Ids, action: _Noise, random_tokens: _Ids, mask_id: int) -> _Ids:
    """Return the tokens, [n], that are put in the places of masked ones.

    Each is the mask token (80 %), the token itself (10 %) or a random token (10 %), as in Devlin et al. 2019, arXiv
    1810.04805, section 3.1, task 1.

    Args:
        tokens: The tokens that are masked, [n].
        action: A uniform number in [0, 1) for each token, which decides what replaces it.
        random_tokens: The random token for each place, [n].
        mask_id: Id of the mask token.
    """
    masks = np.full_like(tokens, mask_id)
    replaced: NDArray[np.int64] = np.select([action < 0.8, action < 0.9], [masks, tokens], random_tokens)
    return replaced


# --- masking of each row ---


@dataclass(frozen=True)
class _NoMasking:
    """Masking scheme that leaves the text as it is, with nothing to predict, as for TinyBERT's general data.

    It needs no mask token.
    """

    def apply(self, ids: _Ids, mask: _Ids, rows: Sequence[int], step: int) -> Masked:
        """Return the batch as it is, with nothing to predict."""
        return Masked(ids.copy(), np.full_like(ids, IGNORED_LABEL))

    def estimate(self, lengths: _Ids) -> int:
        """Return 0, as no token is masked."""
        return 0

    def key(self) -> list[Any]:
        """Return the settings that decide the masks: there are none."""
        return ["none"]


@dataclass(frozen=True)
class _RowMasking(ABC):
    """Base of the schemes that mask a share of each row's tokens.

    In a row of n tokens, special ones counted, ``max(1, round(share * n))`` are to be masked, as in BERT's code
    (``create_pretraining_data.py``), or fewer if there are not as many that may be masked. Noise is a function of
    (seed, purpose, step, row number, place in the row).

    Attributes:
        vocabulary: V; random tokens are drawn uniformly from all of it.
        mask_id: Id of the mask token.
        wordless: Ids of tokens that are never masked: special and unknown ones.
        seed: Seed of the run.
        purpose: Name of the stage (``distill.0``); random choices depend on it.
        share: Share of the tokens to mask.
    """

    vocabulary: int
    mask_id: int
    wordless: Sequence[int]
    seed: int
    purpose: str
    share: float = 0.15

    def apply(self, ids: _Ids, mask: _Ids, rows: Sequence[int], step: int) -> Masked:
        """Mask `share` of the tokens of each row, and return the new input ids and the labels.

        Arguments and result are those of `MaskingScheme.apply`. Subclasses choose the tokens and what replaces them.
        """
        apart = np.zeros(self.vocabulary, np.bool_)
        apart[list(self.wordless)] = True
        real = mask.astype(bool)
        counts = self._mask_counts(real.sum(1)).tolist()
        places, actions, random_numbers = [], [], []
        for i, row in enumerate(rows):
            columns = np.flatnonzero(real[i])
            tokens = ids[i, columns]
            noise = generator(self.seed, f"mask/{self.purpose}", step, int(row)).random((len(columns), 4))
            chosen, action = self._choose(tokens, apart[tokens], counts[i], noise)
            places.append(columns[chosen] + i * ids.shape[1])
            actions.append(action)
            random_numbers.append(noise[chosen, 3])
        positions = np.unravel_index(np.concatenate(places), ids.shape)
        masked = Masked(ids.copy(), np.full_like(ids, IGNORED_LABEL))
        masked.labels[positions] = ids[positions]
        masked.input_ids[positions] = self._replace(
            ids, positions, np.concatenate(actions), np.concatenate(random_numbers)
        )
        return masked

    def estimate(self, lengths: _Ids) -> int:
        """Return an upper limit of the number of tokens masked in rows with these numbers of tokens, [B].

        It is exceeded only in rows in which every word is longer than the number of tokens to mask.
        """
        return int(self._mask_counts(lengths).sum())

    def key(self) -> list[Any]:
        """Return the settings that decide the masks; see `MaskingScheme.key`."""
        kind = type(self).__name__.removeprefix("_")  # stored in caches: keep the names of the classes
        wordless = sorted(self.wordless)
        return [kind, self.seed, self.purpose, self.share, self.vocabulary, self.mask_id, wordless]

    def _mask_counts(self, lengths: _Ids) -> _Ids:
        """Return how many tokens of each row are to be masked, given the rows' numbers of tokens, [B] both."""
        # rounded to 9 digits first: 0.15 * 30 must be 4.5, whatever the last bit of the product is
        return np.maximum(1, np.rint(np.round(self.share * lengths, 9))).astype(np.int64)

    @abstractmethod
    def _choose(self, tokens: _Ids, apart: NDArray[np.bool_], count: int, noise: _Noise) -> tuple[_Ids, _Noise]:
        """Choose the tokens of one row that are masked.

        Args:
            tokens: The row's n token ids.
            apart: True at tokens that may not be masked, [n].
            count: Number of tokens to mask, at least 1.
            noise: Uniform numbers in [0, 1), [n, 4], which decide the choice; the last column is for `_replace`.

        Returns:
            Positions of the masked tokens, [k], and a uniform number for each that decides what replaces it.
        """

    def _replace(self, ids: _Ids, positions: tuple[_Ids, ...], action: _Noise, random_number: _Noise) -> _Ids:
        """Return the tokens that are put in the places of the masked ones, [n].

        Args:
            ids: Original tokens, [B, S].
            positions: Rows and columns of the masked tokens, [n] each, the tokens of a word one after the other.
            action: A uniform number in [0, 1) for each masked token, which decides what replaces it, [n].
            random_number: A uniform number in [0, 1) for each, which decides the random token that may replace it, [n].
        """
        random_tokens = (random_number * self.vocabulary).astype(np.int64)
        return _replace_tokens(ids[positions], action, random_tokens, self.mask_id)


class _DynamicMasking(_RowMasking):
    """Masking of single tokens, all equally likely, drawn anew at every step.

    As in Devlin et al. 2019, arXiv 1810.04805, section 3.1; that the tokens are drawn anew at every step is from Liu et
    al. 2019, arXiv 1907.11692, section 4.1.
    """

    def _choose(self, tokens: _Ids, apart: NDArray[np.bool_], count: int, noise: _Noise) -> tuple[_Ids, _Noise]:
        """Choose `count` single tokens of a row at random; see `_RowMasking._choose`."""
        possible = np.flatnonzero(~apart)
        chosen = possible[np.argsort(noise[possible, 0], kind="stable")[:count]]
        return chosen, noise[chosen, 1]


@dataclass(frozen=True, kw_only=True)
class _WordMasking(_RowMasking):
    """Base of the schemes that mask words as a whole.

    Attributes:
        continues: Which tokens continue a word, [V]; `pocketbert.distill.text.tokenizer.continues_word`.
    """

    continues: NDArray[np.bool_]

    def key(self) -> list[Any]:
        """Return the settings that decide the masks, and a digest of the tokens that continue a word."""
        return [*super().key(), sha256_json(np.flatnonzero(self.continues).tolist())]

    def _words(self, tokens: _Ids, apart: NDArray[np.bool_]) -> tuple[_Ids, _Ids]:
        """Return where each maskable word of a row begins, and where it ends (exclusive), [W] each."""
        starts = np.flatnonzero(word_starts(self.continues[tokens], apart))
        ends = np.append(starts[1:], len(tokens))
        maskable = ~apart[starts]
        return starts[maskable], ends[maskable]


class _WholeWordMasking(_WordMasking):
    """Masking of whole words, all equally likely: either all pieces of a word are masked or none.

    Words are taken in random order. A word with more pieces than may still be masked is skipped, as in BERT's code
    (``do_whole_word_mask``; BERT-wwm, Cui et al. 2019, arXiv 1906.08101), so that the share is not exceeded and is
    reached as nearly as the words allow. If every word of a row has more pieces than may be masked, the shortest word
    is masked (in BERT's code none is). The replacement is decided for each token alone.
    """

    def _choose(self, tokens: _Ids, apart: NDArray[np.bool_], count: int, noise: _Noise) -> tuple[_Ids, _Noise]:
        """Choose whole words of a row at random until `count` tokens are masked; see `_RowMasking._choose`.

        A word with more tokens than may still be masked is skipped; if all words are too long, the shortest is masked.
        """
        firsts, ends = self._words(tokens, apart)
        order = np.argsort(noise[firsts, 0], kind="stable")
        sizes = ends - firsts
        if sizes.size and sizes.min() > count:
            count = int(sizes.min())
        words: list[int] = []
        for word, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
            if size <= count:
                words.append(word)
                count -= size
            if not count:
                break
        chosen = _join_ranges(firsts[words], ends[words])
        return chosen, noise[chosen, 1]


class _SpanMasking(_WordMasking):
    """Masking of spans of neighbouring words, drawn as SpanBERT does.

    The replacement is decided for each span: all its tokens become the mask token, or stay, or become random tokens.
    """

    def _choose(self, tokens: _Ids, apart: NDArray[np.bool_], count: int, noise: _Noise) -> tuple[_Ids, _Noise]:
        """Choose random spans of words, each with one random number for all its tokens; see `_RowMasking._choose`."""
        firsts, ends = self._words(tokens, apart)
        spans = np.array(_draw_spans(firsts, ends, count, noise[:, :2]), np.int64).reshape(-1, 2)
        starts, stops = firsts[spans[:, 0]], ends[spans[:, 1] - 1]
        return _join_ranges(starts, stops), np.repeat(noise[starts, 2], stops - starts)


class _NgramMasking(_WordMasking):
    """Masking of runs of 1 to 4 neighbouring words, with chances of 40, 30, 20 and 10 %.

    The chances are those of Cui et al. 2020 (MacBERT), arXiv 2004.13922, section 3; the words are drawn by
    `_draw_spans`. The replacement is decided for each word: all its tokens become the mask token, or stay, or become
    random tokens.
    """

    def _choose(self, tokens: _Ids, apart: NDArray[np.bool_], count: int, noise: _Noise) -> tuple[_Ids, _Noise]:
        """Choose random runs of words, each word with one number for all its tokens; see `_RowMasking._choose`."""
        firsts, ends = self._words(tokens, apart)
        spans = _draw_spans(firsts, ends, count, noise[:, :2], _NGRAM_CHANCES)
        words = [word for first, last in spans for word in range(first, last)]
        starts, stops = firsts[words], ends[words]
        return _join_ranges(starts, stops), np.repeat(noise[starts, 2], stops - starts)


@dataclass(frozen=True, kw_only=True)
class _SimilarMasking(_NgramMasking):
    """N-gram masking that replaces words by similar words where other schemes put the mask token ("MLM as correction").

    As in Cui et al. 2020 (MacBERT), arXiv 2004.13922, section 3, 80 % of the words become a similar word, each word of
    a run by itself; 10 % become a random one, 10 % stay. If no similar word is known, a random one is taken. A similar
    word has as many tokens as the word, so that every token keeps its place, and a random word is as many random
    tokens.

    Attributes:
        similar: Source of similar words.
    """

    similar: SimilarWords

    def key(self) -> list[Any]:
        """Return the settings that decide the masks and the similar words."""
        return [*super().key(), *self.similar.key()]

    def _replace(self, ids: _Ids, positions: tuple[_Ids, ...], action: _Noise, random_number: _Noise) -> _Ids:
        """Return the tokens that are put in the places of masked words, in most cases those of a similar word."""
        tokens, (rows, columns) = ids[positions], positions
        random_tokens = (random_number * self.vocabulary).astype(np.int64)
        # -1 stands for a similar word where other schemes have the mask token, and is filled in word by word
        replaced = _replace_tokens(tokens, action, random_tokens, -1)
        joined = (np.diff(rows, prepend=-1) == 0) & (np.diff(columns, prepend=-2) == 1) & self.continues[tokens]
        starts = np.flatnonzero(~joined)
        for start, end in zip(starts.tolist(), np.append(starts, len(tokens))[1:].tolist(), strict=True):
            if replaced[start] == -1:
                similar = self.similar.of(tuple(tokens[start:end].tolist()))
                replaced[start:end] = (
                    similar[int(random_number[start] * len(similar))] if similar else random_tokens[start:end]
                )
        return replaced


_WORD_SCHEMES: dict[MaskingKind, type[_WholeWordMasking | _SpanMasking | _NgramMasking]] = {
    MaskingKind.WHOLE_WORD: _WholeWordMasking,
    MaskingKind.SPAN: _SpanMasking,
    MaskingKind.NGRAM: _NgramMasking,
}


def _join_ranges(starts: _Ids, ends: _Ids) -> _Ids:
    """Return the positions from each start up to its end (exclusive), all ranges in one array."""
    sizes = ends - starts
    skipped = starts - np.cumsum(sizes) + sizes
    positions: _Ids = np.arange(sizes.sum()) + np.repeat(skipped, sizes)
    return positions


# --- spans ---

_LONGEST_SPAN = 10
_GEOMETRIC = 0.2 * (1 - 0.2) ** np.arange(_LONGEST_SPAN)
_SPAN_CHANCES: NDArray[np.float64] = _GEOMETRIC / _GEOMETRIC.sum()
"""Chance of a span of 1 to 10 words, [10]: Geo(0.2), of which lengths above 10 are left out; mean 3.8 words."""
_NGRAM_CHANCES: NDArray[np.float64] = np.array([0.4, 0.3, 0.2, 0.1])
"""Chance of a run of 1 to 4 words, [4]; Cui et al. 2020 (MacBERT), arXiv 2004.13922, section 3."""


def _draw_spans(
    firsts: NDArray[np.int64],
    ends: NDArray[np.int64],
    count: int,
    noise: NDArray[np.float64],
    chances: NDArray[np.float64] = _SPAN_CHANCES,
) -> list[tuple[int, int]]:
    """Draw random spans of neighbouring words of a row until about `count` tokens are in them.

    Repeatedly a length is drawn, by default from ``Geo(p = 0.2)``, at most 10 words, and a first word, uniformly among
    those not masked yet (Joshi et al. 2020, arXiv 1907.10529, section 3.1). A span ends early before a masked word,
    before a token that belongs to no word, and before a word with more tokens than may still be masked: the original
    code cuts that word in two. If every word of the row has more tokens than `count`, the shortest is masked.

    Args:
        firsts: Position of the first token of each word, ascending, [W].
        ends: Position after the last token of each word, [W]. Words are neighbours only if one's end is the next one's
            first.
        count: Number of tokens to mask, at least 1.
        noise: Uniform numbers in [0, 1), [n, 2] with n >= W, which decide the lengths and the first words.
        chances: Chance of each length from 1 on.

    Returns:
        For each span the index of its first word and the index after its last word. Spans do not overlap, and are in
        the order in which they were drawn.
    """
    sizes = ends - firsts
    joined = firsts[1:] == ends[:-1]
    if sizes.size and sizes.min() > count:
        count = int(sizes.min())
    free = np.ones(len(sizes), np.bool_)
    lengths = np.searchsorted(np.cumsum(chances)[:-1], noise[:, 0], "right") + 1
    spans: list[tuple[int, int]] = []
    for length, place in zip(lengths.tolist(), noise[:, 1].tolist(), strict=True):
        possible = np.flatnonzero(free & (sizes <= count))
        if not possible.size:
            break
        first = last = int(possible[int(place * len(possible))])
        count -= int(sizes[first])
        while (
            last - first + 1 < length
            and last < len(joined)
            and joined[last]
            and free[last + 1]
            and sizes[last + 1] <= count
        ):
            last += 1
            count -= int(sizes[last])
        free[first : last + 1] = False
        spans.append((first, last + 1))
    return spans
