from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.distill.text.masking import Masked, Masking

Ids = NDArray[np.int64]
PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, UNK, CLS, SEP, MASK)
VOCABULARY = 50
MASKING = Masking(np.arange(VOCABULARY) ** 2, MASK, SPECIAL, seed=3, purpose="distill.0")


def sentences(seed: int, lengths: list[int]) -> list[Ids]:
    random = np.random.default_rng(seed)
    return [np.r_[CLS, random.integers(5, VOCABULARY, n), SEP].astype(np.int64) for n in lengths]


def padded(rows: list[Ids], width: int, left: bool = False) -> tuple[Ids, Ids]:
    ids, mask = np.full((len(rows), width), PAD), np.zeros((len(rows), width), np.int64)
    for i, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, where], mask[i, where] = row, 1
    return ids, mask


def per_row(masked: Masked, mask: Ids) -> list[tuple[list[int], list[int]]]:
    real = mask.astype(bool)
    return [(i[m].tolist(), t[m].tolist()) for i, t, m in zip(masked.input_ids, masked.labels, real, strict=True)]


ROWS = st.lists(st.integers(1, 20), min_size=1, max_size=8)


@given(st.integers(0, 999), ROWS, st.randoms(use_true_random=False))
def test_neither_order_nor_padding_changes_what_is_hidden(seed: int, lengths: list[int], random: Any) -> None:
    rows = sentences(seed, lengths)
    order = list(range(len(rows)))
    random.shuffle(order)
    ids, mask = padded(rows, 22)
    plain = per_row(MASKING.apply(ids, mask, range(100, 100 + len(rows)), 7), mask)
    ids, mask = padded([rows[i] for i in order], 40, left=True)
    shuffled = per_row(MASKING.apply(ids, mask, [100 + i for i in order], 7), mask)
    assert [plain[i] for i in order] == shuffled


@given(st.integers(0, 999), ROWS)
def test_exactly_as_many_as_asked_and_never_a_special_token(seed: int, lengths: list[int]) -> None:
    ids, mask = padded(sentences(seed, lengths), 22)
    before = ids.copy()
    out = MASKING.apply(ids, mask, range(len(lengths)), seed)
    hidden = out.labels != IGNORED_LABEL
    wanted = math.ceil(Fraction(15, 100) * int(mask.sum()))
    assert hidden.sum() == min(wanted, sum(lengths))
    assert not np.isin(before[hidden], SPECIAL).any()
    assert (out.labels[hidden] == before[hidden]).all()
    assert (out.input_ids[~hidden] == before[~hidden]).all()
    assert (ids == before).all()


@given(st.integers(0, 100_000))
def test_the_number_is_the_exact_ceiling(tokens: int) -> None:
    assert MASKING.estimate(np.array([tokens])) == math.ceil(Fraction(15, 100) * tokens)


def test_where_too_few_tokens_may_be_hidden_all_are() -> None:
    ids, mask = padded([np.array([CLS, 9, SEP]), np.array([CLS, UNK, SEP])], 3)
    out = replace(MASKING, share=0.9).apply(ids, mask, [0, 1], 0)
    assert out.labels.tolist() == [[IGNORED_LABEL, 9, IGNORED_LABEL], [IGNORED_LABEL] * 3]


@pytest.mark.parametrize("change", [{"seed": 4}, {"purpose": "distill.1"}, {"step": 8}, {"first": 1000}])
def test_seed_purpose_step_and_row_each_change_the_masks(change: dict[str, Any]) -> None:
    ids, mask = padded(sentences(0, [60] * 4), 62)
    first, step = change.pop("first", 0), change.pop("step", 7)
    plain = MASKING.apply(ids, mask, range(4), 7)
    again = MASKING.apply(ids, mask, range(4), 7)
    other = replace(MASKING, **change).apply(ids, mask, range(first, first + 4), step)
    assert (plain.labels == again.labels).all() and (plain.input_ids == again.input_ids).all()
    assert (plain.labels != other.labels).any()


def test_eighty_ten_ten() -> None:
    ids, mask = padded(sentences(1, [200] * 60), 202)
    outs = [MASKING.apply(ids, mask, range(60), step) for step in range(8)]
    read = np.concatenate([o.input_ids[o.labels != IGNORED_LABEL] for o in outs])
    gold = np.concatenate([o.labels[o.labels != IGNORED_LABEL] for o in outs])
    n = len(read)
    assert n > 14_000
    as_mask, as_is = (read == MASK).mean(), (read == gold).mean()
    strangers = read[(read != MASK) & (read != gold)]
    # a random token is the mask or the original once in V times each
    share = 0.1 / VOCABULARY
    for found, wanted in (
        (as_mask, 0.8 + share),
        (as_is, 0.1 + share),
        (len(strangers) / n, 0.1 - 2 * share),
    ):
        assert found == pytest.approx(wanted, abs=4 * math.sqrt(wanted * (1 - wanted) / n))
    # uniform over the whole vocabulary, special tokens included
    often = np.bincount(strangers, minlength=VOCABULARY)
    expected = len(strangers) / VOCABULARY
    assert set(np.flatnonzero(often)) | {MASK} == set(range(VOCABULARY))
    assert abs(often - expected)[5:].max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.7])
def test_rare_tokens_are_drawn_as_often_as_their_weights_say(smoothing: float) -> None:
    counts = np.ones(VOCABULARY, np.int64)
    counts[[10, 11, 12, 13]] = [0, 20, 500, 10_000]
    tokens = [10, 11, 12, 13]
    ids, mask = padded([np.array([CLS, *tokens, SEP])], 6)
    masking = replace(MASKING, counts=counts, smoothing=smoothing, share=0.3)  # ceil(0.3 * 6): two of the four
    weights = {t: max(int(counts[t]), 1) ** -smoothing for t in tokens}
    exact = dict.fromkeys(tokens, 0.0)
    for first, second in permutations(tokens, 2):
        whole = sum(weights.values())
        chance = weights[first] / whole * weights[second] / (whole - weights[first])
        exact[first] += chance
        exact[second] += chance
    steps = 3000
    found = dict.fromkeys(tokens, 0)
    for step in range(steps):
        labels = masking.apply(ids, mask, [0], step).labels
        for token in labels[labels != IGNORED_LABEL]:
            found[int(token)] += 1
    for token in tokens:
        p = exact[token]
        assert found[token] / steps == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / steps) + 1e-9), token


def test_weights_are_the_smoothed_frequencies() -> None:
    weights = MASKING.weights()
    assert weights[list(SPECIAL)].tolist() == [0.0] * 5
    assert weights[20] == pytest.approx(400**-0.7)
    assert replace(MASKING, counts=np.zeros(VOCABULARY, np.int64)).weights()[5:].tolist() == [1.0] * 45
