"""Inputs of timed inferences, and a device's answers to them against those of this machine."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pocketbert.benchmarks.inputs import choose_texts, compare_answers, join_to_length, make_feeds
from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of, register_family, table
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Provenance, Scheme


@pytest.fixture
def tokenizer(folder):
    return TextTokenizer(folder, 32)


@pytest.mark.parametrize("length", [3, 4, 17, 32])
def test_a_joined_row_has_the_wanted_length_and_real_tokens(tokenizer, texts, length):
    rows = tokenizer.encode(texts)
    row = join_to_length(rows, length)
    assert len(row) == len(row.type_ids) == length
    assert (row.ids[0], row.ids[-1]) == (2, 3)
    inner = np.concatenate([r.ids[1:-1] for r in rows])
    assert row.ids[1:-1].tolist() == np.resize(inner, length - 2).tolist()
    short = join_to_length(tokenizer.encode(["play music"]), 10)  # longer than all texts
    assert short.ids[1:9].tolist() == short.ids[1:3].tolist() * 4


def test_impossible_rows_are_refused(tokenizer, texts):
    with pytest.raises(InputError, match="allowed: 3 or more"):
        join_to_length(tokenizer.encode(texts), 2)
    with pytest.raises(InputError, match="no tokens except the special ones"):
        join_to_length([Encoded(np.array([2, 3]), np.zeros(2, np.int64), False)], 8)


def test_natural_texts_keep_their_own_lengths_and_a_fixed_length_is_one_input(tokenizer, texts):
    natural = make_feeds(tokenizer, texts, "text")
    assert [f["input_ids"].shape for f in natural] == [(1, len(e)) for e in tokenizer.encode(texts)]
    assert all(f["attention_mask"].all() for f in natural)
    (feed,) = make_feeds(tokenizer, texts, 20)
    names = ("input_ids", "attention_mask", "token_type_ids")
    assert {name: (a.shape, a.dtype) for name, a in feed.items()} == dict.fromkeys(names, ((1, 20), np.dtype(np.int64)))


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


# --- answers ---------------------------------------------------------------------------------------------------------------------

HERE = {
    "last_hidden_state": np.full((1, 3, 2), 6.0, np.float32),
    "sentence_embedding": np.full((1, 4), 0.35, np.float32),
}


def compare(answers, scheme=Scheme.INT8):
    predictor = SimpleNamespace(inputs=("input_ids",), lengths=(), run=lambda _: HERE)
    variant = SimpleNamespace(name="v", scheme=scheme, file=SimpleNamespace(open=lambda _: predictor))
    return compare_answers(variant, [{"input_ids": np.ones((1, 3))}], answers, Provenance.MEASURED)


@pytest.mark.parametrize(
    ("told", "equal", "passed"),
    [
        ({}, True, True),
        ({"sentence_embedding": HERE["sentence_embedding"].astype(np.float64)}, False, True),  # equal, of another type
        ({"sentence_embedding": np.nextafter(HERE["sentence_embedding"], np.float32(1))}, False, True),
        ({"sentence_embedding": HERE["sentence_embedding"] * 1.05}, False, True),
        ({"sentence_embedding": HERE["sentence_embedding"] * 2}, False, False),
    ],
)
def test_answers_are_equal_near_or_wrong(told, equal, passed):
    check = compare([{**HERE, **told}])
    assert (check.equal, check.passed, check.finite) == (equal, passed, True)
    assert ("equal bit for bit" in check.words) is equal
    assert "1 inputs compared with this machine" in check.words
    exact = compare([{**HERE, **told}], Scheme.FP32)
    assert exact.passed == (check.largest < 1e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("sentence_embedding", np.zeros((1, 4))), ("last_hidden_state", np.full((1, 3, 2), 5.0))],
)
def test_one_wrong_output_fails_beside_an_output_of_larger_numbers(name, value):
    check = compare([{**HERE, name: value}])
    assert not check.passed
    assert check.largest == pytest.approx(float(np.abs(HERE[name] - value).max()))
    assert check.tolerance == pytest.approx(0.1 * float(HERE[name].max()))


@pytest.mark.parametrize(
    "answers",
    [
        [{**HERE, "sentence_embedding": np.full((1, 4), np.nan)}],
        [{**HERE, "sentence_embedding": np.zeros((1, 5))}],
        [{"last_hidden_state": HERE["last_hidden_state"]}],
        [{}],
        [],
    ],
)
def test_what_is_no_answer_fails(answers):
    check = compare(answers)
    assert not (check.finite or check.passed or check.equal)
