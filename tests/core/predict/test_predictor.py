from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pocketbert.core.errors import InputError
from pocketbert.core.predict.predictor import (
    Arrays,
    Batching,
    _length_batches,
    feed,
    join_texts,
    run_rows,
    smallest_fitting_length,
)
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of


@given(st.lists(st.integers(1, 200), max_size=80), st.integers(1, 9), st.floats(0, 0.9))
def test_batches_hold_every_row_once_within_size_and_slack(lengths: list[int], rows: int, slack: float) -> None:
    batches = _length_batches(lengths, rows, slack)
    assert sorted(i for b in batches for i in b) == list(range(len(lengths)))
    for batch in batches:
        width = max(lengths[i] for i in batch)
        padded = width * len(batch) - sum(lengths[i] for i in batch)
        assert 1 <= len(batch) <= rows
        assert padded <= slack * width * len(batch) + 1e-9


def test_without_slack_only_equal_lengths_go_together() -> None:
    assert _length_batches([5, 3, 5, 3, 3], 2, 0.0) == [[1, 3], [4], [0, 2]]


class Echo:
    """Answers each row with its number of real tokens and its first id."""

    engine, engine_version = "echo", "1"
    inputs, outputs = ("input_ids", "attention_mask"), ("logits",)

    def __init__(self, lengths: tuple[int, ...] = ()) -> None:
        self.lengths = lengths
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        ids, mask = np.asarray(inputs["input_ids"]), np.asarray(inputs["attention_mask"])
        self.shapes.append(ids.shape)
        return {"logits": np.stack([mask.sum(1), (ids * mask).sum(1)], 1).astype(np.float32)}


@pytest.mark.parametrize(("rows", "slack", "side"), [(1, 0.0, "right"), (4, 0.0, "right"), (8, 0.5, "left")])
def test_results_come_back_in_order(
    tmp_path: Path, make_tokenizer: Callable[..., None], rows: int, slack: float, side: str
) -> None:
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 48, padding_side=side)
    encoded = tokenizer.encode(["good " * (i * 7 % 11 + 1) for i in range(25)])
    echo = Echo()
    out = join_texts(run_rows(echo, tokenizer, encoded, task_of("text-classification"), Batching(rows, slack)))
    assert out[:, 0].tolist() == [len(e) for e in encoded]
    assert out[:, 1].tolist() == [int(e.ids.sum()) for e in encoded]
    assert max(s[0] for s in echo.shapes) <= rows
    if rows == 1:
        assert len(echo.shapes) == 25


@pytest.mark.parametrize(
    ("lengths", "length", "expected"),
    [((), 7, 7), ((16, 32), 1, 16), ((16, 32), 16, 16), ((16, 32), 17, 32), ((16, 32), 32, 32)],
)
def test_the_smallest_length_that_fits(lengths: tuple[int, ...], length: int, expected: int) -> None:
    assert smallest_fitting_length(lengths, length) == expected


def test_a_text_longer_than_the_longest_is_refused() -> None:
    with pytest.raises(InputError, match=r"33 tokens; the file takes 16, 32\..*Cut the text to the longest"):
        smallest_fitting_length((16, 32), 33)


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_are_padded_to_what_the_predictor_takes(
    tmp_path: Path, make_tokenizer: Callable[..., None], side: str
) -> None:
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 48, padding_side=side)
    rows = tokenizer.encode(["good day", "good " * 11])
    assert [len(r) for r in rows] == [4, 13]
    free, fixed = Echo(), Echo((8, 16, 48))
    assert feed(free, tokenizer, rows)["input_ids"].shape == (2, 13)
    assert feed(free, tokenizer, rows, 20)["input_ids"].shape == (2, 20)
    assert feed(fixed, tokenizer, rows[:1])["input_ids"].shape == (1, 8)
    assert feed(fixed, tokenizer, rows[:1], 9)["input_ids"].shape == (1, 16)
    batch = feed(fixed, tokenizer, rows)
    assert {name: value.shape for name, value in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), (2, 16)
    )
    ours = batch["attention_mask"] == 1
    assert [batch["input_ids"][i][ours[i]].tolist() for i in range(2)] == [r.ids.tolist() for r in rows]
    assert ours[:, 0 if side == "right" else -1].all()
    with pytest.raises(InputError, match="49 tokens"):
        feed(fixed, tokenizer, rows, 49)


def test_a_predictor_with_fixed_lengths_is_fed_only_these(tmp_path: Path, make_tokenizer: Callable[..., None]) -> None:
    make_tokenizer(tmp_path)
    tokenizer, echo = TextTokenizer(tmp_path, 48), Echo((8, 16, 48))
    encoded = tokenizer.encode(["good " * n for n in range(1, 40, 3)])
    out = join_texts(run_rows(echo, tokenizer, encoded, task_of("text-classification"), Batching(2, 0.5)))
    assert out[:, 0].tolist() == [len(e) for e in encoded]
    assert out[:, 1].tolist() == [int(e.ids.sum()) for e in encoded]
    assert {s[1] for s in echo.shapes} == {8, 16, 48}
    assert len(echo.shapes) < len(encoded)
