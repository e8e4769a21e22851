"""Probes: a broken model is caught by padded, unpadded and drawn rows; the same model passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pocketbert.core.compare.parity import (
    Probe,
    build_probe,
    compare_with_probe,
    draw_rows,
    drawable_ids,
    measure_padding_effect,
)
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.predict.predictor import Arrays, TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from support.tiny_tokenizers import MAX_LENGTH, vocabulary, write_tokenizer

BOUND = 1e-4
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
NAMES = ("logits",)
ALL = len(vocabulary(0))
Right = tuple[TorchPredictor, TextTokenizer]


class Broken:
    """The reference with one fault: inputs or outputs are tampered with; it may take some lengths only, as TFLite does."""

    engine, engine_version = "broken", "1"
    outputs = ("logits",)

    def __init__(
        self, right: TorchPredictor, before: Any = None, after: Any = None, lengths: tuple[int, ...] = ()
    ) -> None:
        self.right, self.inputs, self.lengths = right, right.inputs, lengths
        self.before, self.after = before or (lambda x: x), after or (lambda x: x)
        self.seen: set[int] = set()

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        self.seen.add(inputs["input_ids"].shape[1])
        assert not self.lengths or self.seen <= set(self.lengths)
        return {"logits": self.after(self.right.run(self.before(dict(inputs)))["logits"])}


@pytest.fixture(scope="module")
def right(open_tiny: Callable[..., Any]) -> Right:
    model, folder, tokenizer = open_tiny("bert", 2)
    return TorchPredictor(model, TASK, folder.family.inputs), tokenizer


@pytest.fixture(scope="module")
def probe(right: Right) -> Probe:
    return build_probe(*right, SENTENCES, [16, 32, 500], TASK, NAMES)


def test_the_same_model_passes(right: Right, probe: Probe) -> None:
    found = compare_with_probe(right[0], "a", "b", probe, NAMES, BOUND)
    assert found.passed
    assert found.worst <= 1e-6
    assert found.mask_effect > 100 * BOUND


def with_nan(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    out = logits.copy()
    if len(out) > 1:
        out[1, 0] = np.nan
    return out


def mask_ignored(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}


def inputs_swapped(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "input_ids": inputs["attention_mask"]}


def segments_ignored(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "token_type_ids": np.zeros_like(inputs["token_type_ids"])}


@pytest.mark.parametrize(
    "fault",
    [
        {"before": mask_ignored},
        {"before": inputs_swapped},
        {"after": lambda x: x[:, [1, 0, 2]]},
        {"after": with_nan},
        {"after": lambda x: x * np.float32(1.01)},
        {"after": lambda x: x[:, :2]},
        {"after": lambda x: np.repeat(x[:1], len(x), 0)},
        {"after": np.zeros_like},
    ],
    ids=["mask", "inputs swapped", "labels swapped", "one NaN", "scaled", "label lost", "batch of one", "zeros"],
)
def test_a_broken_model_is_caught(right: Right, probe: Probe, fault: dict[str, Any]) -> None:
    found = compare_with_probe(Broken(right[0], **fault), "a", "b", probe, NAMES, BOUND)
    assert not found.passed
    assert math.isnan(found.worst) or fault.get("after") is not with_nan
    assert found.worst == pytest.approx(probe.mask_effect) or fault.get("before") is not mask_ignored


def unread_words_lost(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "input_ids": np.where(np.isin(inputs["input_ids"], UNREAD), 1, inputs["input_ids"])}


def last_position_lost(inputs: dict[str, Any]) -> dict[str, Any]:
    ids = inputs["input_ids"].copy()
    ids[:, MAX_LENGTH - 2 : MAX_LENGTH - 1] = 1
    return {**inputs, "input_ids": ids}


SHORT = [t for t in SENTENCES if len(t) < 40][:12]
UNREAD = [vocabulary(0).index(w) for w in ("evening", "week", "year", "sad", "poor", "night", "music")]


@pytest.fixture(scope="module")
def without_and_with_drawn_rows(right: Right) -> tuple[Probe, Probe]:
    reference, tokenizer = right
    drawn = draw_rows(tokenizer, ALL, MAX_LENGTH, [False, True] * 4)
    texts_only = build_probe(reference, tokenizer, SHORT, [16, 32], TASK, NAMES)
    return texts_only, build_probe(reference, tokenizer, SHORT, [16, 32], TASK, NAMES, drawn=drawn)


@pytest.mark.parametrize("before", [unread_words_lost, last_position_lost, segments_ignored])
def test_drawn_rows_read_what_texts_leave_out(
    right: Right, without_and_with_drawn_rows: tuple[Probe, Probe], before: Any
) -> None:
    texts_only, both = without_and_with_drawn_rows
    subject = Broken(right[0], before)
    assert compare_with_probe(subject, "a", "b", texts_only, NAMES, BOUND).passed
    assert not compare_with_probe(subject, "a", "b", both, NAMES, BOUND).passed
    assert compare_with_probe(right[0], "a", "b", both, NAMES, BOUND).worst < BOUND / 2


@pytest.mark.parametrize("lengths", [(16, 32, 40), (24,)])
def test_a_file_of_listed_lengths_is_asked_at_these(right: Right, lengths: tuple[int, ...]) -> None:
    subject, (reference, tokenizer) = Broken(right[0], lengths=lengths), right
    made = build_probe(reference, tokenizer, SENTENCES[:12], [16, 32, 128], TASK, NAMES, lengths)
    assert compare_with_probe(subject, "a", "b", made, NAMES, BOUND).passed
    assert subject.seen == set(lengths)
    masks = [row for b in made.batches for row in b["attention_mask"]]
    assert {len(m) for m in masks if m.all()} == {len(m) for m in masks if not m.all()} == set(lengths)
    ignoring = Broken(reference, mask_ignored, lengths=lengths)
    assert not compare_with_probe(ignoring, "a", "b", made, NAMES, BOUND).passed


@pytest.mark.parametrize(
    "lengths",
    [
        (),
        (16, 32, 40),
        (24,),
    ],
)
def test_a_lost_mask_shows_in_padding_even_where_there_is_one_length(right: Right, lengths: tuple[int, ...]) -> None:
    predictor, tokenizer = right
    rows = [r for r in tokenizer.encode(list(SENTENCES[:10])) if len(r) < max(lengths, default=99) - 2]
    assert len(rows) >= 2
    assert measure_padding_effect(Broken(predictor, lengths=lengths), tokenizer, rows, TASK) < 1e-5
    assert measure_padding_effect(Broken(predictor, mask_ignored, lengths=lengths), tokenizer, rows, TASK) > 0.1


# Rows of drawn ids: full length, special tokens in their places, every id of the vocabulary in turn


SINGLE, HALF = [False] * 8, [False, True] * 4
"""Texts alone; every second row a pair."""


@pytest.fixture
def wordpiece(tmp_path: Path) -> TextTokenizer:
    write_tokenizer(tmp_path)
    return TextTokenizer(tmp_path, MAX_LENGTH)


@pytest.fixture
def bpe(tmp_path: Path) -> TextTokenizer:
    """One segment, two separators between the texts of a pair, as RoBERTa has them."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<mask>", *letters])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<mask>"])
    made.save(str(tmp_path / "tokenizer.json"))
    return TextTokenizer(tmp_path, MAX_LENGTH, pad_id=1)


def test_rows_fill_the_length_between_the_special_tokens(wordpiece: TextTokenizer) -> None:
    single, pair = draw_rows(wordpiece, ALL, MAX_LENGTH, HALF[:2])
    cls, sep = wordpiece.encode([""])[0].ids.tolist()
    for row, separators in ((single, [47]), (pair, [23, 47])):
        assert len(row) == MAX_LENGTH
        assert row.ids[0] == cls
        assert np.flatnonzero(row.ids == sep).tolist() == separators
        assert not set(row.ids[1:].tolist()) - {sep} & set(wordpiece.special_ids)
    assert set(single.type_ids) == {0}
    assert pair.type_ids[24:].all()
    assert not pair.type_ids[:24].any()
    assert all(not r.type_ids.any() for r in draw_rows(wordpiece, ALL, MAX_LENGTH, SINGLE[:4]))


def test_separators_of_another_template(bpe: TextTokenizer) -> None:
    _, pair = draw_rows(bpe, 30, 20, HALF[:2])
    assert len(pair) == 20
    assert np.flatnonzero(pair.ids == 2).tolist() == [9, 10, 19]
    assert pair.ids[0] == 0
    assert set(np.delete(pair.ids, [0, 9, 10, 19])) <= set(range(4, 30))


def test_every_id_is_drawn_before_one_comes_again_and_always_the_same_rows(wordpiece: TextTokenizer) -> None:
    pool = drawable_ids(wordpiece, ALL)
    assert sorted({*pool.tolist(), *wordpiece.special_ids}) == wordpiece.ids
    ids = np.concatenate([r.ids[1:-1] for r in draw_rows(wordpiece, ALL, MAX_LENGTH, SINGLE)])
    assert set(ids[: pool.size]) == set(pool)
    assert set(ids[pool.size : 2 * pool.size]) == set(pool)
    assert not np.array_equal(ids[: pool.size], ids[pool.size : 2 * pool.size])
    more = draw_rows(wordpiece, ALL, MAX_LENGTH, HALF[:5])
    for few, same in zip(draw_rows(wordpiece, ALL, MAX_LENGTH, HALF[:3]), more, strict=False):
        np.testing.assert_array_equal(few.ids, same.ids)
    assert max(row.ids.max() for row in draw_rows(wordpiece, 50, MAX_LENGTH, HALF)) == 49
    [row] = draw_rows(wordpiece, ALL, MAX_LENGTH, SINGLE[:1], masked=True)
    assert np.flatnonzero(row.ids == wordpiece.mask_id).tolist() == [1, 24, 46], "first, middle and last token"


def test_a_vocabulary_of_special_tokens_gives_no_rows(tmp_path: Path) -> None:
    made = Tokenizer(models.BPE({"<s>": 0, "<pad>": 1}, []))
    made.add_special_tokens(["<s>", "<pad>"])
    made.save(str(tmp_path / "tokenizer.json"))
    assert draw_rows(TextTokenizer(tmp_path, MAX_LENGTH, pad_id=1), 2, MAX_LENGTH, HALF[:4]) == []
