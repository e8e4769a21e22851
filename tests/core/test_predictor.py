from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pocketbert.core.predictor import Arrays, length_batches, run_encoded
from pocketbert.core.tokenization import TextTokenizer


@given(st.lists(st.integers(1, 200), max_size=80), st.integers(1, 9), st.floats(0, 0.9))
def test_batches_hold_every_row_once_within_size_and_slack(
    lengths: list[int], rows: int, slack: float
) -> None:
    batches = length_batches(lengths, rows, slack)
    assert sorted(i for b in batches for i in b) == list(range(len(lengths)))
    for batch in batches:
        width = max(lengths[i] for i in batch)
        padded = width * len(batch) - sum(lengths[i] for i in batch)
        assert 1 <= len(batch) <= rows
        assert padded <= slack * width * len(batch) + 1e-9


def test_without_slack_only_equal_lengths_go_together() -> None:
    assert length_batches([5, 3, 5, 3, 3], 2, 0.0) == [[1, 3], [4], [0, 2]]


class Echo:
    """Answers each row with its number of real tokens and its first id."""

    engine, engine_version = "echo", "1"
    inputs, outputs = ("input_ids", "attention_mask"), ("logits",)
    lengths: tuple[int, ...] = ()

    def __init__(self) -> None:
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
    tokenizer = TextTokenizer(tmp_path, 48)
    encoded = tokenizer.encode(["good " * (i * 7 % 11 + 1) for i in range(25)])
    echo = Echo()
    out = run_encoded(echo, tokenizer, encoded, rows, slack, side)
    assert out["logits"][:, 0].tolist() == [len(e) for e in encoded]
    assert out["logits"][:, 1].tolist() == [int(e.ids.sum()) for e in encoded]
    assert max(s[0] for s in echo.shapes) <= rows
    if rows == 1:
        assert len(echo.shapes) == 25
