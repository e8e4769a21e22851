from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pocketbert.core.compare.parity import Probe, build_probe, compare_with_probe, draw_rows, measure_padding_effect
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.predict.predictor import Arrays, TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from support.tiny_tokenizers import MAX_LENGTH, vocabulary

BOUND = 1e-4
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
NAMES = ("logits",)
Change = Callable[[Arrays, dict[str, NDArray[np.generic]]], Arrays]


class Broken:
    """The reference with one fault: inputs or outputs are tampered with."""

    engine, engine_version = "broken", "1"
    outputs = ("logits",)
    lengths: tuple[int, ...] = ()

    def __init__(self, right: TorchPredictor, before: Any = None, after: Any = None) -> None:
        self.right, self.inputs = right, right.inputs
        self.before, self.after = before or (lambda x: x), after or (lambda x: x)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        return {"logits": self.after(self.right.run(self.before(dict(inputs)))["logits"])}


@pytest.fixture(scope="module")
def right(open_tiny: Callable[..., Any]) -> tuple[TorchPredictor, TextTokenizer]:
    model, folder, tokenizer = open_tiny("bert", 2)
    return TorchPredictor(model, TASK, folder.family.inputs), tokenizer


@pytest.fixture(scope="module")
def probe(right: tuple[TorchPredictor, TextTokenizer]) -> Probe:
    return build_probe(*right, SENTENCES, [16, 32, 500], TASK, NAMES)


def test_the_same_model_passes(right: tuple[TorchPredictor, TextTokenizer], probe: Probe) -> None:
    found = compare_with_probe(right[0], "a", "b", probe, NAMES, BOUND)
    assert found.passed
    assert found.worst <= 1e-6
    assert found.mask_effect > 100 * BOUND


def test_the_probe_is_padded_and_unpadded_at_several_lengths(probe: Probe) -> None:
    lengths = {b["input_ids"].shape[1] for b in probe.batches}
    assert {13, 16, 32, 37, 48} <= lengths
    assert max(lengths) == 48
    shares = [float(b["attention_mask"].mean()) for b in probe.batches]
    assert min(shares) < 0.6
    assert shares.count(1.0) >= 4
    assert {b["input_ids"].shape[0] for b in probe.batches} >= {1, 4}


def swapped(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return logits[:, [1, 0, 2]]


def with_nan(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    out = logits.copy()
    if len(out) > 1:
        out[1, 0] = np.nan
    return out


def mask_ignored(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}


def segments_ignored(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "token_type_ids": np.zeros_like(inputs["token_type_ids"])}


@pytest.mark.parametrize(
    "fault",
    [
        {"before": mask_ignored},
        {"after": swapped},
        {"after": with_nan},
        {"after": lambda x: x * np.float32(1.01)},
        {"after": lambda x: x[:, :2]},
        {"after": lambda x: np.repeat(x[:1], len(x), 0)},
        {"after": np.zeros_like},
    ],
    ids=["mask", "labels swapped", "one NaN", "scaled", "label lost", "batch of one", "zeros"],
)
def test_a_broken_model_is_caught(
    right: tuple[TorchPredictor, TextTokenizer], probe: Probe, fault: dict[str, Any]
) -> None:
    found = compare_with_probe(Broken(right[0], **fault), "a", "b", probe, NAMES, BOUND)
    assert not found.passed


def test_a_nan_is_reported_as_nan(right: tuple[TorchPredictor, TextTokenizer], probe: Probe) -> None:
    assert math.isnan(compare_with_probe(Broken(right[0], after=with_nan), "a", "b", probe, NAMES, BOUND).worst)


def test_a_lost_mask_moves_the_logits_by_the_mask_effect(
    right: tuple[TorchPredictor, TextTokenizer], probe: Probe
) -> None:
    found = compare_with_probe(Broken(right[0], before=mask_ignored), "a", "b", probe, NAMES, BOUND)
    assert found.worst == pytest.approx(probe.mask_effect)


def test_lost_segments_are_caught_where_the_probe_has_pairs(
    right: tuple[TorchPredictor, TextTokenizer],
) -> None:
    pairs = list(zip(SENTENCES[:16], SENTENCES[16:], strict=True))
    made = build_probe(*right, pairs, [32], TASK, NAMES)
    assert not compare_with_probe(Broken(right[0], before=segments_ignored), "a", "b", made, NAMES, BOUND).passed


def unread_words_lost(inputs: dict[str, Any]) -> dict[str, Any]:
    return {**inputs, "input_ids": np.where(np.isin(inputs["input_ids"], UNREAD), 1, inputs["input_ids"])}


def last_position_lost(inputs: dict[str, Any]) -> dict[str, Any]:
    ids = inputs["input_ids"].copy()
    ids[:, MAX_LENGTH - 2 : MAX_LENGTH - 1] = 1
    return {**inputs, "input_ids": ids}


SHORT = [t for t in SENTENCES if len(t) < 40][:12]
UNREAD = [vocabulary(0).index(w) for w in ("evening", "week", "year", "sad", "poor", "night", "music")]


@pytest.mark.parametrize("before", [unread_words_lost, last_position_lost, segments_ignored])
def test_drawn_rows_read_what_texts_leave_out(right: tuple[TorchPredictor, TextTokenizer], before: Any) -> None:
    reference, tokenizer = right
    drawn = draw_rows(tokenizer, len(vocabulary(0)), MAX_LENGTH, [False, True] * 4)
    texts_only = build_probe(reference, tokenizer, SHORT, [16, 32], TASK, NAMES)
    both = build_probe(reference, tokenizer, SHORT, [16, 32], TASK, NAMES, drawn=drawn)
    subject = Broken(reference, before)
    assert compare_with_probe(subject, "a", "b", texts_only, NAMES, BOUND).passed
    assert not compare_with_probe(subject, "a", "b", both, NAMES, BOUND).passed
    assert compare_with_probe(reference, "a", "b", both, NAMES, BOUND).worst < BOUND / 2


def test_padding_moves_a_right_model_by_rounding_only(right: tuple[TorchPredictor, TextTokenizer]) -> None:
    predictor, tokenizer = right
    rows = tokenizer.encode(list(SENTENCES[:10]))
    assert measure_padding_effect(predictor, tokenizer, rows, TASK) < 1e-5
    assert measure_padding_effect(Broken(predictor, before=mask_ignored), tokenizer, rows, TASK) > 0.1


class Listed(Broken):
    """A file that takes some lengths only, as TFLite does."""

    def __init__(self, right: TorchPredictor, lengths: tuple[int, ...], before: Any = None) -> None:
        super().__init__(right, before)
        self.lengths = lengths
        self.seen: set[int] = set()

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        assert inputs["input_ids"].shape[1] in self.lengths
        self.seen.add(inputs["input_ids"].shape[1])
        return super().run(inputs)


@pytest.mark.parametrize("lengths", [(16, 32, 40), (24,)])
def test_a_file_of_listed_lengths_is_asked_at_these(
    right: tuple[TorchPredictor, TextTokenizer], lengths: tuple[int, ...]
) -> None:
    subject, (reference, tokenizer) = Listed(right[0], lengths), right
    made = build_probe(reference, tokenizer, SENTENCES, [16, 32, 128], TASK, NAMES, lengths)
    assert compare_with_probe(subject, "a", "b", made, NAMES, BOUND).passed
    assert subject.seen == set(lengths)
    masks = [row for b in made.batches for row in b["attention_mask"]]
    assert {len(m) for m in masks if m.all()} == {len(m) for m in masks if not m.all()} == set(lengths)
    ignoring = Listed(reference, lengths, mask_ignored)
    assert not compare_with_probe(ignoring, "a", "b", made, NAMES, BOUND).passed


@pytest.mark.parametrize("lengths", [(16, 32, 40), (24,), (40,)])
def test_a_lost_mask_shows_in_padding_even_where_there_is_one_length(
    right: tuple[TorchPredictor, TextTokenizer], lengths: tuple[int, ...]
) -> None:
    predictor, tokenizer = right
    rows = [r for r in tokenizer.encode(list(SENTENCES)) if len(r) < max(lengths) - 2]
    assert len(rows) >= 2
    subject = Listed(predictor, lengths)
    assert measure_padding_effect(subject, tokenizer, rows, TASK) < 1e-5
    broken = Listed(predictor, lengths, mask_ignored)
    assert measure_padding_effect(broken, tokenizer, rows, TASK) > 0.1
