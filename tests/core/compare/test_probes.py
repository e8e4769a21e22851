"""Rows of drawn ids: full length, special tokens in their places, both segments, every id of the vocabulary in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pocketbert.core.compare.parity import count_drawn_rows, draw_rows, drawable_ids
from pocketbert.core.predict.tokenization import TextTokenizer
from support.tiny_tokenizers import vocabulary, write_tokenizer

LENGTH = 48
ALL = len(vocabulary(0))


def singles(count: int) -> list[bool]:
    return [False] * count


def half(count: int) -> list[bool]:
    """Every second row is a pair."""
    return [i % 2 == 1 for i in range(count)]


@pytest.fixture
def wordpiece(tmp_path: Path) -> TextTokenizer:
    write_tokenizer(tmp_path)
    return TextTokenizer(tmp_path, LENGTH)


@pytest.fixture
def bpe(tmp_path: Path) -> TextTokenizer:
    """One segment, two separators between the texts of a pair, as RoBERTa has them."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<mask>", *letters])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<mask>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return TextTokenizer(tmp_path, LENGTH, pad_id=1)


def test_rows_fill_the_length_between_the_special_tokens(wordpiece: TextTokenizer) -> None:
    single, pair = draw_rows(wordpiece, ALL, LENGTH, half(2))
    cls, sep = wordpiece.encode([""])[0].ids.tolist()
    for row, separators in ((single, [47]), (pair, [23, 47])):
        assert len(row) == LENGTH
        assert row.ids[0] == cls
        assert np.flatnonzero(row.ids == sep).tolist() == separators
        assert not set(row.ids[1:].tolist()) - {sep} & set(wordpiece.special_ids)
    assert set(single.type_ids) == {0}
    assert pair.type_ids[24:].all()
    assert not pair.type_ids[:24].any()
    assert all(not r.type_ids.any() for r in draw_rows(wordpiece, ALL, LENGTH, singles(4)))


def test_separators_of_another_template(bpe: TextTokenizer) -> None:
    _, pair = draw_rows(bpe, 30, 20, half(2))
    assert len(pair) == 20
    assert np.flatnonzero(pair.ids == 2).tolist() == [9, 10, 19]
    assert pair.ids[0] == 0
    assert set(np.delete(pair.ids, [0, 9, 10, 19])) <= set(range(4, 30))


def test_every_id_is_drawn_before_one_comes_again(wordpiece: TextTokenizer) -> None:
    pool = drawable_ids(wordpiece, ALL)
    assert sorted({*pool.tolist(), *wordpiece.special_ids}) == wordpiece.ids
    ids = np.concatenate([r.ids[1:-1] for r in draw_rows(wordpiece, ALL, LENGTH, singles(8))])
    assert set(ids[: pool.size]) == set(pool)
    assert set(ids[pool.size : 2 * pool.size]) == set(pool)
    assert not np.array_equal(ids[: pool.size], ids[pool.size : 2 * pool.size])


def test_ids_beyond_the_table_are_not_drawn(wordpiece: TextTokenizer) -> None:
    ids = np.concatenate([r.ids for r in draw_rows(wordpiece, 50, LENGTH, half(8))])
    assert ids.max() == 49


def test_masks_are_read_at_the_first_middle_and_last_token(wordpiece: TextTokenizer) -> None:
    [row] = draw_rows(wordpiece, ALL, LENGTH, singles(1), masked=True)
    assert np.flatnonzero(row.ids == wordpiece.mask_id).tolist() == [1, 24, 46]


def test_the_same_rows_every_time_and_fewer_are_the_first_of_more(wordpiece: TextTokenizer) -> None:
    more = draw_rows(wordpiece, ALL, LENGTH, half(5))
    for few, same in zip(draw_rows(wordpiece, ALL, LENGTH, half(3)), more, strict=False):
        np.testing.assert_array_equal(few.ids, same.ids)
    assert len(wordpiece.encode(["a " * 100])[0]) == LENGTH, "the tokenizer cuts where it did"


def test_a_vocabulary_of_special_tokens_gives_no_rows(tmp_path: Path) -> None:
    made = Tokenizer(models.BPE({"<s>": 0, "<pad>": 1}, []))
    made.add_special_tokens(["<s>", "<pad>"])
    made.save(str(tmp_path / "tokenizer.json"))
    assert draw_rows(TextTokenizer(tmp_path, LENGTH, pad_id=1), 2, LENGTH, half(4)) == []


def test_few_rows_at_great_lengths() -> None:
    assert [count_drawn_rows(n) for n in (16, 48, 128, 256, 512, 4096)] == [8, 8, 8, 4, 2, 2]
