"""Laws of cutting and packing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.recipe.data import CorpusSettings
from pocketbert.distill.text.writer import _CutTexts, _PackTexts, _RowBuilder

CLS, SEP, SEP2, UNK = 1, 2, 3, 4


@dataclass
class Wrapping:
    """What the builders ask of a tokenizer."""

    before: np.ndarray
    after: np.ndarray
    unknown_id: int | None = UNK


BERT = Wrapping(np.array([CLS]), np.array([SEP]))
ROBERTA = Wrapping(np.array([CLS]), np.array([SEP]), None)
XLNET = Wrapping(np.array([], np.int64), np.array([SEP, SEP2]))
WRAPPINGS = st.sampled_from([BERT, ROBERTA, XLNET])

TEXTS = st.lists(st.lists(st.integers(10, 99), max_size=40), max_size=12)
Maker = Callable[..., _RowBuilder]


def build(
    maker: Maker, texts: Sequence[Sequence[int]], wrapping: Wrapping, **settings: object
) -> tuple[list[list[int]], _RowBuilder]:
    builder = maker(CorpusSettings.model_validate({"shortest": 1, **settings}), wrapping)
    rows = [row for text in texts for row in builder.add(np.array(text, np.int64))]
    rows += list(builder.finish())
    return [row.tolist() for row in rows], builder


def own(rows: Sequence[Sequence[int]]) -> list[int]:
    return [i for row in rows for i in row if i >= 10]


@given(texts=TEXTS, wrapping=WRAPPINGS, length=st.integers(4, 24))
def test_cut_rows_are_wrapped_pieces_that_lose_nothing(texts: list[list[int]], wrapping: Wrapping, length: int) -> None:
    rows, builder = build(_CutTexts, texts, wrapping, length=length)
    b, a = len(wrapping.before), len(wrapping.after)
    for row in rows:
        assert b + a < len(row) <= length
        assert row[:b] == wrapping.before.tolist() and row[-a:] == wrapping.after.tolist()
        assert all(i >= 10 for i in row[b:-a])
    assert own(rows) == [i for text in texts for i in text]
    assert builder.dropped.empty == texts.count([])
    # a text is cut no more often than it must be
    assert len(rows) == sum(-(-len(text) // (length - a - b)) for text in texts)


@given(texts=TEXTS, wrapping=WRAPPINGS, length=st.integers(4, 24))
def test_packed_rows_are_full_and_lose_nothing(texts: list[list[int]], wrapping: Wrapping, length: int) -> None:
    rows, builder = build(_PackTexts, texts, wrapping, length=length, packed=True)
    b, a = len(wrapping.before), len(wrapping.after)
    for row in rows:
        assert len(row) <= length
        assert row[:b] == wrapping.before.tolist() and row[-a:] == wrapping.after.tolist()
        assert SEP not in [i for i, j in pairwise(row[b:]) if i == j], "every separator follows a token"
    assert all(len(row) >= length - 1 for row in rows[:-1])
    assert own(rows) == [i for text in texts for i in text]
    assert builder.dropped.empty == texts.count([])


def test_packed_texts_are_separated_and_cut_at_the_end_of_a_row() -> None:
    rows, _ = build(_PackTexts, [[10, 11], [12], [13, 14, 15]], BERT, length=8, packed=True)
    assert rows == [[CLS, 10, 11, SEP, 12, SEP, 13, SEP], [CLS, 14, 15, SEP]]


def test_a_place_for_a_separator_alone_stays_free() -> None:
    rows, _ = build(_PackTexts, [[10, 11], [12, 13]], BERT, length=5, packed=True)
    assert rows == [[CLS, 10, 11, SEP], [CLS, 12, 13, SEP]]


def test_tokens_around_xlnet_texts_all_come_behind() -> None:
    assert build(_PackTexts, [[10], [11]], XLNET, length=8, packed=True)[0] == [[10, SEP, 11, SEP, SEP2]]
    assert build(_CutTexts, [[10], [11, 12, 13]], XLNET, length=4)[0] == [
        [10, SEP, SEP2],
        [11, 12, SEP, SEP2],
        [13, SEP, SEP2],
    ]


def test_short_rows_are_dropped_from_the_limit_down() -> None:
    texts = [[10] * 9, [11] * 10, [12] * 22]  # the last is cut at 20, which leaves 2
    rows, builder = build(_CutTexts, texts, BERT, length=22, shortest=12)
    assert [len(row) for row in rows] == [12, 22]
    assert builder.dropped.short == 2
    rows, builder = build(_PackTexts, [[10] * 20, [11] * 3], BERT, length=22, shortest=12, packed=True)
    assert [len(row) for row in rows] == [22]
    assert builder.dropped.short == 1


@pytest.mark.parametrize("maker", [_CutTexts, _PackTexts])
@pytest.mark.parametrize(("unknown", "kept"), [(3, True), (4, False)])
def test_rows_of_too_many_unknown_tokens_are_dropped(maker: Maker, unknown: int, kept: bool) -> None:
    text = [UNK] * unknown + [10] * (6 - unknown)  # 8 tokens with [CLS] and [SEP]
    rows, builder = build(maker, [text], BERT, length=16, packed=maker is _PackTexts)
    assert (len(rows), builder.dropped.unknown) == (int(kept), int(not kept))


def test_a_vocabulary_without_unknown_token_drops_nothing() -> None:
    assert len(build(_CutTexts, [[UNK] * 20], ROBERTA, length=32)[0]) == 1
