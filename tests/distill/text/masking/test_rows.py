from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.distill.text.masking import (
    _LONGEST_SPAN,
    _NGRAM_CHANCES,
    _SPAN_CHANCES,
    Masked,
    _draw_spans,
    _DynamicMasking,
    _NgramMasking,
    _NoMasking,
    _RowMasking,
    _SimilarMasking,
    _SpanMasking,
    _WholeWordMasking,
    _WordMasking,
)

Ids = NDArray[np.int64]
PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, UNK, CLS, SEP, MASK)
VOCABULARY = 60
CONTINUES = np.arange(VOCABULARY) >= 40
"""Tokens from 40 on continue a word."""
COMMON: dict[str, Any] = {
    "vocabulary": VOCABULARY,
    "mask_id": MASK,
    "wordless": SPECIAL,
    "seed": 3,
    "purpose": "distill.0",
}


class Next:
    """The word whose first token is the next one; of words of two tokens that begin with an even number nothing is known."""

    def of(self, word: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [] if len(word) == 2 and word[0] % 2 == 0 else [(word[0] + 1, *word[1:])]

    def key(self) -> list[str]:
        return ["next"]


DYNAMIC = _DynamicMasking(**COMMON)
WORDS = _WholeWordMasking(**COMMON, continues=CONTINUES)
SPANS = _SpanMasking(**COMMON, continues=CONTINUES)
NGRAMS = _NgramMasking(**COMMON, continues=CONTINUES)
SIMILAR = _SimilarMasking(**COMMON, continues=CONTINUES, similar=Next())
ALL = [DYNAMIC, WORDS, SPANS, NGRAMS, SIMILAR]
BY_WORD: list[_WordMasking] = [WORDS, SPANS, NGRAMS, SIMILAR]
BODY = st.lists(st.sampled_from([UNK, *range(5, VOCABULARY)]), min_size=1, max_size=40)


def wrapped(body: list[int]) -> Ids:
    return np.array([CLS, *body, SEP], np.int64)


def padded(rows: list[Ids], width: int, left: bool = False) -> tuple[Ids, Ids]:
    ids, mask = np.full((len(rows), width), PAD), np.zeros((len(rows), width), np.int64)
    for i, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, where], mask[i, where] = row, 1
    return ids, mask


def per_row(masked: Masked, mask: Ids) -> list[tuple[list[int], list[int]]]:
    return [
        (i[m == 1].tolist(), t[m == 1].tolist()) for i, t, m in zip(masked.input_ids, masked.labels, mask, strict=True)
    ]


def words_of(row: Ids) -> list[list[int]]:
    """Places of the pieces of each word; by the definition, not as the code does it."""
    out: list[list[int]] = []
    for place, token in enumerate(row.tolist()):
        if token in SPECIAL:
            out.append([])
        elif token >= 40 and out and out[-1]:
            out[-1].append(place)
        else:
            out.append([place])
    return [word for word in out if word]


def hidden(masking: _RowMasking, row: Ids, step: int = 0, number: int = 0) -> list[int]:
    out = masking.apply(row[None], np.ones_like(row[None]), [number], step)
    return np.flatnonzero(out.labels[0] != IGNORED_LABEL).tolist()


@pytest.mark.parametrize("masking", ALL)
@given(st.lists(BODY, min_size=1, max_size=6), st.integers(0, 99), st.randoms(use_true_random=False))
def test_neither_order_padding_nor_division_changes_what_is_hidden(
    masking: _RowMasking, bodies: list[list[int]], step: int, random: Any
) -> None:
    rows = [wrapped(b) for b in bodies]
    numbers = list(range(100, 100 + len(rows)))
    ids, mask = padded(rows, 42)
    before = ids.copy()
    plain = per_row(masking.apply(ids, mask, numbers, step), mask)
    assert (ids == before).all()
    order = list(range(len(rows)))
    random.shuffle(order)
    ids, mask = padded([rows[i] for i in order], 50, left=True)
    assert [plain[i] for i in order] == per_row(masking.apply(ids, mask, [numbers[i] for i in order], step), mask)
    for row, number, expected in zip(rows, numbers, plain, strict=True):
        ids, mask = padded([row], len(row))
        assert per_row(masking.apply(ids, mask, [number], step), mask) == [expected]


@pytest.mark.parametrize("masking", ALL)
@given(BODY, st.integers(0, 99), st.sampled_from([0.15, 0.5, 1.0]))
def test_what_is_not_hidden_stays_and_special_tokens_are_never_hidden(
    masking: _RowMasking, body: list[int], step: int, share: float
) -> None:
    row = wrapped(body)
    ids, mask = padded([row], 45)
    out = replace(masking, share=share).apply(ids, mask, [0], step)
    chosen = out.labels != IGNORED_LABEL
    assert not np.isin(ids[chosen], SPECIAL).any()
    assert (out.labels[chosen] == ids[chosen]).all()
    assert (out.input_ids[~chosen] == ids[~chosen]).all()
    assert chosen.any() == bool(words_of(row))


@given(BODY, st.integers(0, 99), st.sampled_from([0.1, 0.15, 0.5, 1.0]))
def test_of_single_tokens_the_share_is_hidden(body: list[int], step: int, share: float) -> None:
    row = wrapped(body)
    possible = sum(token not in SPECIAL for token in body)
    wanted = max(1, round(round(share * len(row), 9)))  # as BERT's code rounds
    assert len(hidden(replace(DYNAMIC, share=share), row, step)) == min(wanted, possible)


@pytest.mark.parametrize("masking", BY_WORD)
@given(BODY, st.integers(0, 99), st.sampled_from([0.15, 0.5, 1.0]))
def test_words_are_hidden_whole_and_no_more_than_the_share(
    masking: _RowMasking, body: list[int], step: int, share: float
) -> None:
    row = wrapped(body)
    found = set(hidden(replace(masking, share=share), row, step))
    words = words_of(row)
    assert all(found.issuperset(word) or found.isdisjoint(word) for word in words)
    sizes = sorted(len(word) for word in words)
    if not sizes:
        return
    wanted = max(1, round(round(share * len(row), 9)))
    assert len(found) <= max(wanted, sizes[0])
    left = max(wanted, sizes[0]) - len(found)
    assert all(len(word) > left for word in words if found.isdisjoint(word)), "another word would have fitted"


@pytest.mark.parametrize("masking", ALL)
@pytest.mark.parametrize("change", [{"seed": 4}, {"purpose": "distill.1"}, {"step": 8}, {"number": 1000}])
def test_seed_purpose_step_and_row_each_change_the_masks(masking: _RowMasking, change: dict[str, Any]) -> None:
    row = wrapped(np.random.default_rng(0).integers(5, VOCABULARY, 200).tolist())
    where = {"step": change.get("step", 7), "number": change.get("number", 0)}
    other = replace(masking, **{k: v for k, v in change.items() if k not in where})
    assert hidden(masking, row, 7) == hidden(masking, row, 7) != hidden(other, row, **where)


@pytest.mark.parametrize("masking", [m for m in ALL if m is not SIMILAR])
def test_eighty_ten_ten(masking: _RowMasking) -> None:
    rows = np.random.default_rng(1).integers(5, 40, (40, 300))
    mask = np.ones_like(rows)
    outs = [masking.apply(rows, mask, range(40), step) for step in range(10)]
    read = np.concatenate([o.input_ids[o.labels != IGNORED_LABEL] for o in outs])
    gold = np.concatenate([o.labels[o.labels != IGNORED_LABEL] for o in outs])
    stranger = (read != MASK) & (read != gold)
    share = 0.1 / VOCABULARY  # a random token is the mask or the original once in V times each
    # tokens of a span share their fate: n of them are worth n * E[L] / E[L^2] = n / 5.6 independent ones
    n = len(read) / (6 if masking is SPANS else 1)
    for found, wanted in (
        ((read == MASK).mean(), 0.8 + share),
        ((read == gold).mean(), 0.1 + share),
        (stranger.mean(), 0.1 - 2 * share),
    ):
        assert found == pytest.approx(wanted, abs=4 * math.sqrt(wanted * (1 - wanted) / n))
    assert set(np.unique(read[stranger])) | {MASK} == set(range(VOCABULARY))


def test_a_span_shares_its_fate() -> None:
    row = np.random.default_rng(2).integers(5, 40, (1, 400))
    masking = replace(SPANS, share=0.02)  # few spans, far apart
    kinds = set()
    for step in range(200):
        out = masking.apply(row, np.ones_like(row), [0], step)
        places = np.flatnonzero(out.labels[0] != IGNORED_LABEL)
        runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        if len(runs) > 1 and any(len(run) > 2 for run in runs):
            run = max(runs, key=len)
            masks = (out.input_ids[0, run] == MASK).sum()
            same = (out.input_ids[0, run] == row[0, run]).sum()
            # chance strangers: a random token may be the mask or the original
            kinds.add("mask" if masks == len(run) else "same" if same == len(run) else "random")
            assert masks == len(run) or masks <= 2
    assert kinds == {"mask", "same", "random"}


def test_each_single_token_is_hidden_as_often() -> None:
    row = wrapped(list(range(5, 25)))  # 22 tokens: 3 hidden
    steps = 3000
    often = np.zeros(22)
    for step in range(steps):
        often[hidden(DYNAMIC, row, step)] += 1
    p = 3 / 20
    assert often[[0, 21]].tolist() == [0, 0]
    assert np.abs(often[1:21] / steps - p).max() < 4.5 * math.sqrt(p * (1 - p) / steps)


def test_each_word_is_hidden_as_often_when_all_have_as_many_pieces() -> None:
    row = wrapped([*[5, 40] * 10])  # 22 tokens, 10 words of two: share 0.2 hides 4
    steps = 2000
    often = np.zeros(22)
    for step in range(steps):
        often[hidden(replace(WORDS, share=0.2), row, step)] += 1
    p = 2 / 10
    assert (often[1:21:2] == often[2:21:2]).all()
    assert np.abs(often[1:21] / steps - p).max() < 4.5 * math.sqrt(p * (1 - p) / steps)


def test_where_no_word_fits_the_shortest_is_hidden() -> None:
    row = wrapped([5, 40, 40, 6, 40])  # 7 tokens: 1 wanted
    assert all(hidden(m, row, step) == [4, 5] for m in BY_WORD for step in range(20))


def noise(n: int, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random((n, 2))


def drawn(sizes: list[int], wanted: int, seed: int) -> list[tuple[int, int]]:
    ends = np.cumsum(sizes)
    return _draw_spans(ends - sizes, ends, wanted, noise(len(sizes), seed))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.integers(1, 40), st.integers(0, 999))
def test_spans_are_at_most_ten_words_and_do_not_overlap(sizes: list[int], wanted: int, seed: int) -> None:
    spans = drawn(sizes, wanted, seed)
    assert all(1 <= end - first <= _LONGEST_SPAN for first, end in spans)
    words = [w for first, end in spans for w in range(first, end)]
    assert len(words) == len(set(words)) and set(words) <= set(range(len(sizes)))


def test_no_span_reaches_over_a_token_that_belongs_to_no_word() -> None:
    row = np.array([CLS, *[5] * 6, SEP, *[6] * 6, SEP])
    masking = replace(SPANS, share=0.4)
    for step in range(200):
        found = hidden(masking, row, step)
        assert not {0, 7, 14} & set(found)
    firsts = np.array([1, 2, 4, 5])
    for seed in range(200):
        spans = _draw_spans(firsts, firsts + 1, 4, noise(4, seed))
        assert not any(first < 2 < end for first, end in spans)


def test_lengths_of_spans_are_geometric() -> None:
    assert _SPAN_CHANCES.sum() == pytest.approx(1)
    assert _SPAN_CHANCES[1:] / _SPAN_CHANCES[:-1] == pytest.approx(0.8)
    assert (_SPAN_CHANCES * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.05)  # the paper's figure 2
    # the first span of a long row with room for any length is as long as it was drawn unless the row ends
    words, draws = 300, 4000
    ends = np.arange(1, words + 1)
    found = np.zeros(_LONGEST_SPAN)
    for seed in range(draws):
        first, end = _draw_spans(ends - 1, ends, _LONGEST_SPAN, noise(words, seed))[0]
        if first < words - _LONGEST_SPAN:
            found[end - first - 1] += 1
    share = found / found.sum()
    assert (np.abs(share - _SPAN_CHANCES) < 4 * np.sqrt(_SPAN_CHANCES * (1 - _SPAN_CHANCES) / draws)).all()


def test_spans_begin_anywhere() -> None:
    often = np.bincount([drawn([1] * 20, 1, seed)[0][0] for seed in range(4000)], minlength=20)
    assert np.abs(often / 4000 - 0.05).max() < 4.5 * math.sqrt(0.05 * 0.95 / 4000)


def test_none_hides_nothing() -> None:
    ids, mask = padded([wrapped([5, 6, 7]), wrapped([8])], 6)
    out = _NoMasking().apply(ids, mask, [0, 1], 3)
    assert (out.input_ids == ids).all() and out.input_ids is not ids
    assert (out.labels == IGNORED_LABEL).all()
    assert _NoMasking().estimate(mask.sum(1)) == 0


@pytest.mark.parametrize("masking", ALL)
def test_an_estimate_is_what_single_pieces_make_exact(masking: _RowMasking) -> None:
    rows = [wrapped([5] * n) for n in (1, 7, 30)]
    ids, mask = padded(rows, 32)
    out = masking.apply(ids, mask, range(3), 0)
    assert masking.estimate(mask.sum(1)) == (out.labels != IGNORED_LABEL).sum()


def test_keys_tell_maskings_apart() -> None:
    other = CONTINUES.copy()
    other[39] = True
    every = [
        *ALL,
        _NoMasking(),
        replace(DYNAMIC, seed=4),
        replace(DYNAMIC, share=0.2),
        replace(WORDS, continues=other),
        replace(DYNAMIC, purpose="distill.1"),
    ]
    keys = [str(m.key()) for m in every]
    assert len(set(keys)) == len(keys)
    assert keys[0] == str(_DynamicMasking(**COMMON).key())


def test_runs_of_words_have_the_published_lengths() -> None:
    """The first run of a row, where nothing cuts it short but the row's own end."""
    firsts = np.arange(200)
    drawn: list[int] = []
    for seed in range(3000):
        noise = np.random.default_rng(seed).random((200, 2))
        noise[0, 1] *= 0.9
        (first, last), *_ = _draw_spans(firsts, firsts + 1, 30, noise, _NGRAM_CHANCES)
        drawn.append(last - first)
    shares = np.bincount(drawn, minlength=5)[1:] / len(drawn)
    assert _NGRAM_CHANCES.tolist() == [0.4, 0.3, 0.2, 0.1]
    np.testing.assert_allclose(shares, _NGRAM_CHANCES, atol=0.03)


def test_four_of_five_hidden_words_become_a_similar_one_and_none_the_mask_token() -> None:
    body = np.random.default_rng(1).choice([*range(5, 40, 2), *range(41, 59, 2)], 3000).tolist()
    row = wrapped(body)
    found = replace(SIMILAR, share=0.5).apply(row[None], np.ones((1, len(row)), np.int64), [0], 4)
    labels, read = found.labels[0], found.input_ids[0]
    starts = np.flatnonzero((labels != IGNORED_LABEL) & ~CONTINUES[row])
    whole = [i for i in starts if i + 1 == len(row) or not CONTINUES[row[i + 1]]]
    kinds = [int(read[i]) - int(row[i]) for i in whole]
    assert np.mean([k == 1 for k in kinds]) == pytest.approx(0.8 + 0.1 / VOCABULARY, abs=0.03)
    assert np.mean([k == 0 for k in kinds]) == pytest.approx(0.1 + 0.1 / VOCABULARY, abs=0.03)
    assert (read[labels != IGNORED_LABEL] == MASK).mean() < 0.03, "only as a random token"


def test_a_word_without_a_similar_one_becomes_as_many_random_tokens() -> None:
    row = wrapped([6, 40] * 1500)
    found = replace(SIMILAR, share=0.5).apply(row[None], np.ones((1, len(row)), np.int64), [0], 4)
    hidden = found.labels[0] != IGNORED_LABEL
    pairs = found.input_ids[0][1:-1].reshape(-1, 2)[hidden[1:-1].reshape(-1, 2)[:, 0]]
    kept = (pairs == [6, 40]).all(1)
    assert kept.mean() == pytest.approx(0.1, abs=0.03)
    assert len(np.unique(pairs[~kept][:, 0])) > VOCABULARY * 0.9
    known = wrapped([7, 40] * 1500)
    found = replace(SIMILAR, share=0.5).apply(known[None], np.ones((1, len(row)), np.int64), [0], 4)
    hidden = found.labels[0] != IGNORED_LABEL
    pairs = found.input_ids[0][1:-1].reshape(-1, 2)[hidden[1:-1].reshape(-1, 2)[:, 0]]
    assert (pairs == [8, 40]).all(1).mean() == pytest.approx(0.8, abs=0.03)


def test_other_similar_words_are_another_key() -> None:
    class Others(Next):
        def key(self) -> list[str]:
            return ["others"]

    assert replace(SIMILAR, similar=Others()).key() != SIMILAR.key()
    assert NGRAMS.key() != SPANS.key()
