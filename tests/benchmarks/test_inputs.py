import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from pocketbert.benchmarks.inputs import choose_texts, join_to_length, make_feeds
from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of, register_family, table
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer


@pytest.fixture
def tokenizer(folder):
    return TextTokenizer(folder, 32)


@pytest.mark.parametrize("length", [3, 4, 17, 32])
def test_a_row_has_the_wanted_length_and_real_tokens(tokenizer, texts, length):
    rows = tokenizer.encode(texts)
    row = join_to_length(rows, length)
    assert len(row) == len(row.type_ids) == length
    assert (row.ids[0], row.ids[-1]) == (2, 3)
    inner = np.concatenate([r.ids[1:-1] for r in rows])
    assert row.ids[1:-1].tolist() == np.resize(inner, length - 2).tolist()
    assert not {2, 3} & set(row.ids[1:-1].tolist())


def test_a_row_longer_than_all_texts_repeats_them(tokenizer):
    row = join_to_length(tokenizer.encode(["play music"]), 10)
    assert row.ids[1:9].tolist() == row.ids[1:3].tolist() * 4


def test_natural_texts_keep_their_own_lengths_without_padding(tokenizer, texts):
    made = make_feeds(tokenizer, texts, "text")
    assert [f["input_ids"].shape for f in made] == [(1, len(e)) for e in tokenizer.encode(texts)]
    assert all(f["attention_mask"].all() for f in made)


def test_a_fixed_length_is_one_input(tokenizer, texts):
    (feed,) = make_feeds(tokenizer, texts, 20)
    assert {name: (a.shape, a.dtype) for name, a in feed.items()} == {
        name: ((1, 20), np.dtype(np.int64)) for name in ("input_ids", "attention_mask", "token_type_ids")
    }


def test_a_model_that_pads_on_the_left_is_timed_on_such_rows(folder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "_FAMILIES", dict(table._FAMILIES))
    register_family(replace(family_of("bert"), name="left", model_types=("left-bert",), padding_side="left"))
    shutil.copy(folder / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "left-bert", "pad_token_id": 7}))
    tokenizer = TextTokenizer(tmp_path, 32)
    row = join_to_length(tokenizer.encode(texts), 20)
    (feed,) = make_feeds(tokenizer, texts, 20, fixed=(16, 24, 32))
    assert feed["attention_mask"][0].tolist() == [0] * 4 + [1] * 20
    assert feed["input_ids"][0].tolist() == [7] * 4 + row.ids.tolist()


def test_texts_are_taken_evenly():
    assert choose_texts([str(i) for i in range(1000)], 4) == ["0", "250", "500", "750"]
    assert choose_texts(["a"], 4) == ["a"]
    with pytest.raises(InputError, match="none given"):
        choose_texts([])


def test_impossible_rows_are_refused(tokenizer, texts):
    with pytest.raises(InputError, match="allowed: 3 or more"):
        join_to_length(tokenizer.encode(texts), 2)
    bare = Encoded(np.array([2, 3]), np.zeros(2, np.int64), False)
    with pytest.raises(InputError, match="no tokens except the special ones"):
        join_to_length([bare], 8)
