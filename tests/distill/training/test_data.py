import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.heads.head import IGNORED_LABEL, LABELLED_ROWS, Prepared
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.teacher.signals import TwoTokenizerSet, select_teacher_inputs
from pocketbert.distill.training.data import (
    ROW_NUMBERS,
    BatchOrder,
    FixedLengthSet,
    Lookahead,
    MixedPart,
    MixedSet,
    PackedSet,
    TrainData,
    TrainSet,
    make_part,
    row_shares,
    rows_per_pass,
    rows_together,
    split_batch,
    take_rows,
)

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=150)
laws = settings(max_examples=25)


@laws
@given(LENGTHS, st.integers(1, 20), st.integers(0, 99), st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_an_epoch_has_no_row_twice_and_a_batch_is_a_function_of_the_step_alone(lengths, batch, seed, steps):
    order = BatchOrder(lengths, batch, seed, "distill.0")
    assert order.batch == min(batch, len(lengths))
    for epoch in (0, 2):
        rows = np.concatenate([order.rows(epoch * order.per_epoch + i) for i in range(order.per_epoch)])
        assert len(set(rows.tolist())) == len(rows) == order.per_epoch * order.batch
        assert len(lengths) - len(rows) < order.batch
    for step in steps:
        assert order.rows(step).tolist() == BatchOrder(lengths, batch, seed, "distill.0").rows(step).tolist()


def batches_of(order: BatchOrder, epoch: int) -> list[list[int]]:
    return [order.rows(epoch * order.per_epoch + i).tolist() for i in range(order.per_epoch)]


def test_epochs_purposes_and_seeds_differ():
    lengths = [i % 40 + 1 for i in range(300)]
    order = BatchOrder(lengths, 8, 1, "a")
    others = [(order, 1), (BatchOrder(lengths, 8, 1, "b"), 0), (BatchOrder(lengths, 8, 2, "a"), 0)]
    assert all(batches_of(*other) != batches_of(order, 0) for other in others)


def test_rows_of_a_batch_have_about_the_same_length_and_batches_come_in_no_order_of_it():
    lengths = np.random.default_rng(0).integers(4, 128, 4096)
    batches = batches_of(BatchOrder(lengths.tolist(), 16, 0, "a"), 0)
    padded = sum(int(lengths[b].max()) * len(b) for b in batches)
    assert 1 - lengths[np.concatenate(batches)].sum() / padded < 0.05
    means = [lengths[b].mean() for b in batches]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.3


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_of_one_length_are_those_of_the_rows_with_more_padding(tmp_path, make_tokenizer, side):
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 32, pad_id=3, padding_side=side)
    encoded = tokenizer.encode(["good", "a good film", "bad day"])
    words, classes = [np.arange(len(e)) for e in encoded], np.eye(3, 5, dtype=np.int64)
    plain = TrainSet(Prepared([], encoded, np.arange(3), {"labels": words}), tokenizer)
    other = TrainSet(Prepared([], encoded, np.arange(3), {"labels": classes[:, :4]}), tokenizer, together=3)
    for rows in (
        plain,
        other,
        PackedSet([plain.rows], tokenizer),
        MixedSet([MixedPart(plain, 1), MixedPart(plain, 2)]),
    ):
        padded, count = FixedLengthSet(rows), len(rows.lengths)
        assert padded.lengths == [32] * count
        assert (padded.together, padded.shares) == (rows_together(rows), row_shares(rows))
        short, long = rows.batch(range(count), 0), padded.batch(range(count), 0)
        for name, fill in {"input_ids": 3, "attention_mask": 0, "token_type_ids": 0, "labels": IGNORED_LABEL}.items():
            if rows is other and name == "labels":
                assert long[name].tolist() == classes[:, :4].tolist()
                continue
            own = tokenizer.span(short[name].shape[1], 32)
            assert long[name].shape == (count, 32) and torch.equal(long[name][:, own], short[name])
            assert (long[name] == fill).sum() - (short[name] == fill).sum() == count * (32 - short[name].shape[1])
        assert torch.equal(long[ROW_NUMBERS], short[ROW_NUMBERS])


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_is_padded_to_its_longest_row_and_targets_stand_under_their_tokens(tmp_path, make_tokenizer, side):
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 32, padding_side=side)
    encoded = tokenizer.encode(["good", "a good film", "bad day", "bad " * 50])
    targets = [np.arange(len(e)) + 10 * i for i, e in enumerate(encoded)]
    data = TrainSet(Prepared([], encoded, np.arange(4), {"labels": targets, "scores": np.arange(4) / 2}), tokenizer)
    assert data.lengths == [len(e) for e in encoded]
    batch = data.batch([1, 2, 0], 0)
    real = batch["attention_mask"] == 1
    assert real.shape == (3, 5)
    assert real[:, -1].tolist() == ([True, False, False] if side == "right" else [True] * 3)
    for place, number in enumerate([1, 2, 0]):
        assert batch["input_ids"][place][real[place]].tolist() == encoded[number].ids.tolist()
        assert batch["labels"][place][real[place]].tolist() == targets[number].tolist()
    assert set(batch["labels"][~real].tolist()) == {IGNORED_LABEL}
    assert batch["scores"].tolist() == [0.5, 1.0, 0.0]
    assert batch[ROW_NUMBERS].tolist() == [1, 2, 0]


@pytest.mark.parametrize("kind", ["of rows", "of tokens"])
def test_packed_rows_give_the_same_batches(kind, tmp_path, make_tokenizer):
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 32)
    encoded = tokenizer.encode(["good", "a good film", "bad day"])
    marks = [np.where(np.arange(len(e)) == 1, 3, IGNORED_LABEL) for e in encoded]
    labels: Any = marks if kind == "of tokens" else np.array([2, 0, 1])
    plain = TrainSet(Prepared([], encoded, np.arange(3), {"labels": labels}), tokenizer)
    parts = (slice(2), slice(2, 3))
    portions = [Prepared([], encoded[part], np.arange(3)[part], {"labels": labels[part]}) for part in parts]
    packed = PackedSet(portions, tokenizer)
    assert packed.lengths == plain.lengths
    ours, theirs = packed.batch([2, 0], 0), plain.batch([2, 0], 0)
    assert ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


@laws
@given(st.integers(1, 40), st.integers(1, 9), st.none() | st.integers(1, 12))
def test_parts_are_the_batch_once_and_even(rows, world, most):
    shares = [split_batch(rows, rank, world, most) for rank in range(world)]
    assert [i for share in shares for part in share for i in range(rows)[part]] == list(range(rows))
    sizes = [sum(part.stop - part.start for part in share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "process 0 has rows wherever any has: it keeps the record"
    assert all(share for share in shares), "a process without rows still meets the others"
    assert most is None or all(part.stop - part.start <= most for share in shares for part in share)


@laws
@given(st.integers(1, 30), st.integers(2, 5), st.integers(1, 20), st.integers(1, 4), st.none() | st.integers(1, 12))
def test_rows_that_belong_together_are_in_one_portion(groups, together, batch, world, most):
    order = BatchOrder([i % 7 + 1 for i in range(groups * together)], batch, 0, "a", together)
    for step in range(order.per_epoch):
        rows = order.rows(step).reshape(-1, together)
        assert (rows == rows[:, :1] + np.arange(together)).all() and (rows[:, 0] % together == 0).all()
    portions = [part for rank in range(world) for part in split_batch(order.batch, rank, world, most, together)]
    assert [i for part in portions for i in range(order.batch)[part]] == list(range(order.batch))
    assert all(part.start % together == part.stop % together == 0 for part in portions)


def test_a_divided_batch_stays_as_wide_and_the_teacher_may_read_other_tokens():
    batch = {
        "input_ids": torch.arange(12).reshape(3, 4),
        "teacher.input_ids": torch.zeros(3, 6),
        "labels": torch.arange(3),
    }
    part = take_rows(batch, slice(1, 3))
    assert part["input_ids"].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert part["labels"].tolist() == [1, 2]
    taught = select_teacher_inputs(part)
    assert taught.keys() == {"input_ids", "labels"} and taught["input_ids"].shape == (2, 6)
    with pytest.raises(ValueError, match="the student has 2 rows, the teacher 3"):
        TwoTokenizerSet(SimpleNamespace(lengths=[4, 5]), SimpleNamespace(lengths=[4, 5, 6]), ["input_ids"])


# --- rows of several kinds ---


@laws
@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0.05, 9)), min_size=1, max_size=4),
    st.integers(1, 20),
    st.integers(0, 99),
    st.integers(0, 3),
)
def test_each_part_has_its_share_of_the_rows_and_passes_of_its_own(shares, batch, seed, window):
    sizes = [rows for rows, _ in shares]
    lengths = [i % 7 + 1 for i in range(sum(sizes))]
    order = BatchOrder(lengths, batch, seed, "distill.0", shares=shares)
    steps = (window + 1) * order.per_epoch
    rows = np.concatenate([order.rows(step) for step in range(steps)])
    total, start = sum(weight for _, weight in shares), 0
    for size, weight in shares:
        counts = np.bincount(rows[(rows >= start) & (rows < start + size)] - start, minlength=size)
        assert abs(counts.sum() - len(rows) * weight / total) < 1, "to a row exactly"
        assert counts.max() - counts.min() <= 1, "no row is repeated before all were seen"
        start += size
    again = BatchOrder(lengths, batch, seed, "distill.0", shares=shares)
    assert all(again.rows(step).tolist() == order.rows(step).tolist() for step in (steps - 1, 0))


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_mixed_batch_has_the_rows_of_its_parts_in_order_and_marks_those_with_labels(side, tiny_model):
    tokenizer = TextTokenizer(tiny_model("bert", 2), 20, padding_side=side)
    encoded = tokenizer.encode(["a good film", "not bad", "the day was far better than that", "ok", "no never"])
    first = Prepared([], encoded[:2], np.arange(2), {"labels": np.array([1, 2])})
    second = Prepared([], encoded[2:], np.arange(3))
    packed = PackedSet([second], tokenizer)
    mixed = MixedSet([MixedPart(TrainSet(first, tokenizer), 1.0), MixedPart(packed, 2.0, labelled=False)])
    assert (mixed.lengths, row_shares(mixed)) == ([len(e) for e in encoded], [(2, 1.0), (3, 2.0)])
    assert (rows_per_pass(mixed), rows_per_pass(packed)) == (6, 3)
    batch = mixed.batch([4, 1, 2, 0], 0)
    whole = TrainSet(Prepared([], encoded, np.arange(5), {"labels": np.array([1, 2, 0, 0, 0])}), tokenizer)
    wanted = whole.batch([4, 1, 2, 0], 0)
    assert batch.pop(LABELLED_ROWS).tolist() == [False, True, False, True]
    assert set(batch) == set(wanted)
    assert all(torch.equal(batch[name], value) for name, value in wanted.items())
    assert mixed.batch([3], 0)["labels"].tolist() == [0], "a batch of one part has all targets"
    labelled = MixedSet([MixedPart(TrainSet(first, tokenizer), 1.0)])
    assert LABELLED_ROWS not in labelled.batch([0], 0)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_part_of_a_batch_is_made_as_the_whole_batch_has_it(side, tiny_model):
    tokenizer = TextTokenizer(tiny_model("bert", 2), 20, padding_side=side)
    encoded = tokenizer.encode(["a good film", "not bad", "the day was far better than that", "ok", "no never"])
    marks = [np.arange(len(e)) for e in encoded]
    labelled = Prepared([], encoded, np.arange(5), {"labels": marks, "scores": np.arange(5) / 2})
    texts = PackedSet([Prepared([], encoded[2:], np.arange(3))], tokenizer)
    plain = TrainSet(Prepared([], encoded[:2], np.arange(2), {"labels": np.array([1, 2])}), tokenizer)
    mixed = MixedSet([MixedPart(plain, 1.0), MixedPart(texts, 2.0, labelled=False)])
    numbers = [4, 1, 2, 0]
    sets: list[TrainData] = [TrainSet(labelled, tokenizer), PackedSet([labelled], tokenizer), mixed]
    sets += [FixedLengthSet(rows) for rows in sets]
    for data in sets:
        whole = data.batch(numbers, 3)
        for own in (slice(0, 1), slice(1, 4), slice(2, 2), slice(0, 4)):
            part = make_part(data, numbers, 3, own)
            assert part.keys() == whole.keys()
            assert all(torch.equal(part[name], value[own]) for name, value in whole.items())


def test_the_next_step_is_prepared_in_a_thread_while_the_present_one_is_computed():
    begun, calls = [threading.Event() for _ in range(4)], list[tuple[int, str]]()

    def prepare(step: int) -> int:
        calls.append((step, threading.current_thread().name))
        begun[step].set()
        if step == 2:
            raise ValueError("row 7 cannot be read")
        return step * 10

    batches = Lookahead(prepare, 3)
    assert batches.take(0) == 0
    assert begun[1].wait(10), "without being asked for"
    assert (batches.take(0), batches.take(1)) == (0, 10)
    with pytest.raises(ValueError, match="row 7"):
        batches.take(2)
    assert [step for step, _ in calls] == [0, 1, 2], "each step once, none beyond the last"
    assert threading.current_thread().name not in {name for _, name in calls}
