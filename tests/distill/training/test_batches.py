from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.heads.head import IGNORED_LABEL, Prepared
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.training.data import ROW_NUMBERS, BatchOrder, TrainSet, split_batch, take_rows

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=150)


@given(LENGTHS, st.integers(1, 20), st.integers(0, 99), st.integers(0, 3))
def test_an_epoch_has_no_row_twice(lengths: list[int], batch: int, seed: int, epoch: int) -> None:
    order = BatchOrder(lengths, batch, seed, "distill.0")
    rows = np.concatenate([order.rows(epoch * order.per_epoch + i) for i in range(order.per_epoch)])
    assert len(set(rows.tolist())) == len(rows) == order.per_epoch * order.batch
    assert len(lengths) - len(rows) < order.batch
    assert {len(order.rows(i)) for i in range(3)} == {min(batch, len(lengths))}


@given(LENGTHS, st.integers(1, 20), st.integers(0, 99), st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_a_batch_is_a_function_of_the_step_alone(lengths: list[int], batch: int, seed: int, steps: list[int]) -> None:
    jumping = BatchOrder(lengths, batch, seed, "a")
    for step in steps:
        assert jumping.rows(step).tolist() == BatchOrder(lengths, batch, seed, "a").rows(step).tolist()


def whole(order: BatchOrder, epoch: int) -> list[list[int]]:
    return [order.rows(epoch * order.per_epoch + i).tolist() for i in range(order.per_epoch)]


def test_epochs_purposes_and_seeds_differ() -> None:
    lengths = [i % 40 + 1 for i in range(300)]
    order = BatchOrder(lengths, 8, 1, "a")
    others = [
        whole(order, 1),
        whole(BatchOrder(lengths, 8, 1, "b"), 0),
        whole(BatchOrder(lengths, 8, 2, "a"), 0),
    ]
    assert all(other != whole(order, 0) for other in others)


def test_rows_of_a_batch_have_about_the_same_length() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(4, 128, 4096)
    order = BatchOrder(lengths.tolist(), 16, 0, "a")
    batches = whole(order, 0)
    padded = sum(int(lengths[b].max()) * len(b) for b in batches)
    assert 1 - lengths[np.concatenate(batches)].sum() / padded < 0.05
    means = [lengths[b].mean() for b in batches]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.3


def test_a_batch_is_padded_to_its_longest_row(tmp_path: Path, make_tokenizer: Callable[..., None]) -> None:
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 32, padding_side="left")
    encoded = tokenizer.encode(["good", "a good film", "bad " * 50])
    data = TrainSet(Prepared([], encoded, np.arange(3), {"labels": np.array([2, 0, 1])}), tokenizer)
    batch = data.batch([1, 0], 0)
    assert batch["input_ids"].shape == (2, 5)
    assert batch["labels"].tolist() == [0, 2]
    assert batch["attention_mask"][1].tolist() == [0, 0, 1, 1, 1]
    assert batch[ROW_NUMBERS].tolist() == [1, 0]


@pytest.mark.parametrize("side", ["right", "left"])
def test_targets_of_tokens_stand_under_their_tokens(
    tmp_path: Path, make_tokenizer: Callable[..., None], side: str
) -> None:
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 32, padding_side=side)
    encoded = tokenizer.encode(["good", "a good film", "bad day"])
    targets = [np.arange(len(e)) + 10 * i for i, e in enumerate(encoded)]
    data = TrainSet(Prepared([], encoded, np.arange(3), {"labels": targets}), tokenizer)
    batch = data.batch([1, 2, 0], 0)
    real = batch["attention_mask"] == 1
    for place, number in enumerate([1, 2, 0]):
        assert batch["labels"][place][real[place]].tolist() == targets[number].tolist()
    assert set(batch["labels"][~real].tolist()) == {IGNORED_LABEL}
    assert data.lengths == [len(e) for e in encoded]


@given(st.integers(1, 40), st.integers(1, 9), st.none() | st.integers(1, 12))
def test_parts_are_the_batch_once_and_even(rows: int, world: int, most: int | None) -> None:
    shares = [split_batch(rows, rank, world, most) for rank in range(world)]
    assert [i for share in shares for part in share for i in range(rows)[part]] == list(range(rows))
    sizes = [sum(part.stop - part.start for part in share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "process 0 has rows wherever any has: it keeps the record"
    assert all(share for share in shares), "a process without rows still meets the others"
    assert most is None or all(part.stop - part.start <= most for share in shares for part in share)


def test_a_divided_batch_stays_as_wide() -> None:
    batch = {"input_ids": torch.arange(12).reshape(3, 4), "labels": torch.arange(3)}
    part = take_rows(batch, slice(1, 3))
    assert part["input_ids"].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert part["labels"].tolist() == [1, 2]
