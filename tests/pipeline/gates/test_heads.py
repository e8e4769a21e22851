"""Gates of a model with several heads: one whose numbers differ little is measured by its own spread, not by that of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pocketbert.core.artefacts import ModelRecord
from pocketbert.core.compare.golden import GOLDEN_FILE, GoldenRow, LibraryAnswers, LibraryRow, write_golden
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import GateError
from pocketbert.core.heads import make_head
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import several_task
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.base import ModelFile, bounds_of
from pocketbert.pipeline.gates.checks import check_golden_rows, check_padding
from pocketbert.pipeline.gates.library import check_library_answers
from pocketbert.pipeline.make.golden import blank_row
from pocketbert.pipeline.results import Subject
from pocketbert.runtime.selftest import self_test

FILE = "onnx/model_int8.onnx"
FORM = (Format.ONNX, Scheme.INT8, None, None)
Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def squash(mood: NDArray[np.float32]) -> NDArray[np.float32]:
    """A fifth of the head's spread around its mean, as a wrong scale of its weights would leave."""
    return (0.94 + 0.2 * (mood - 0.94)).astype(np.float32)


class TwoHeads:
    """An engine with a head of large logits and one of small numbers; `mood` may be changed, or read its padding."""

    engine, engine_version = "fake", "1"
    inputs = ("input_ids", "attention_mask")
    lengths: tuple[int, ...] = ()

    def __init__(self, names: tuple[str, ...], change: Change = lambda mood: mood, masked: bool = True) -> None:
        self.outputs, self.change, self.masked = names, change, masked
        self.table = np.random.default_rng(7).normal(size=(2000, 4))

    def run(self, inputs: Any) -> Any:
        mask = np.asarray(inputs["attention_mask"], np.float64)[..., None]
        states = self.table[np.asarray(inputs["input_ids"])]
        means = [(states * m).sum(1) / m.sum(1) for m in (mask, mask if self.masked else np.ones_like(mask))]
        values = [8 * means[0][:, :3], 0.94 + 1.0 * means[1][:, 3:]]
        values = values if self.outputs[0] == "intent_logits" else values[::-1]
        arrays = {name: v.astype(np.float32) for name, v in zip(self.outputs, values, strict=True)}
        return {**arrays, "mood_logits": self.change(arrays["mood_logits"])}


@pytest.fixture(params=["intent first", "mood first"])
def case(
    request: pytest.FixtureRequest, tiny_model: Callable[..., Path], tmp_path: Path
) -> tuple[Subject, list[GoldenRow], LibraryAnswers]:
    """A sound file with its golden rows and library's answers, as they are recorded."""
    labels = ("intent: a", "intent: b", "intent: c", "mood: number")
    labels = labels if request.param == "intent first" else (labels[3], *labels[:3])
    task = several_task({"intent": "text-classification", "mood": "regression"}, labels)
    weights = tiny_model("bert", 2, ("a", "b"))
    (tmp_path / "tokenizer.json").write_bytes((weights / "tokenizer.json").read_bytes())
    tokenizer, right = TextTokenizer(weights, 40), TwoHeads(task.outputs)
    texts = list(SENTENCES[:30])
    encoded = tokenizer.encode(texts)
    matrices = run_rows(right, tokenizer, encoded, task)
    joined = join_texts(matrices)
    big, small = (float(joined[:, h.columns].std(0).max()) for h in sorted(task.heads, key=lambda h: h.name))
    assert big > 5 * small, "or the joint spread would do"
    file = ModelFile(FILE, FILE, Format.ONNX, Scheme.INT8)
    tolerance = {FILE: bounds_of(file).golden * float(joined.std(0).max())}
    rows = []
    for text, matrix in zip(texts, matrices, strict=True):
        values = [float(v) for v in matrix.ravel()]
        made = {"reference": values, "padded": values, "outputs": {FILE: values}, "tolerance": tolerance}
        rows.append(blank_row(text, matrix, task, labels).model_copy(update=made))
    answers = [
        LibraryRow(text=text, ids=e.ids.tolist(), type_ids=e.type_ids.tolist(), values=row.reference)
        for text, e, row in zip(texts, encoded, rows, strict=True)
    ]
    subject = Subject(FILE, tmp_path, *FORM, right, tokenizer, list(labels), task, weights, simulated=0.01)
    return subject, rows, LibraryAnswers(library="transformers", rows=answers)


def with_engine(subject: Subject, **fault: Any) -> Subject:
    return replace(subject, predictor=TwoHeads(subject.task.outputs, **fault))


def test_a_small_head_that_lost_its_spread_fails_golden_and_answer(case: Any) -> None:
    subject, rows, library = case
    head = make_head(subject.task, Labels(tuple(subject.labels)))
    for change, passes in ((lambda mood: mood, True), (lambda mood: mood + np.float32(1e-3), True), (squash, False)):
        broken = with_engine(subject, change=change)
        gates = {g.name: g for g in check_golden_rows(broken, rows)}
        assert gates["golden"].passed == passes
        [answer] = check_library_answers(library, head, len(subject.labels), broken)
        assert answer.passed == passes, answer.detail
    assert "head 'mood' of " in answer.detail
    exported = replace(with_engine(subject, change=lambda mood: mood + np.float32(0.01)), scheme=Scheme.FP32)
    [answer] = check_library_answers(library, head, len(subject.labels), exported)
    assert not answer.passed, "a hundredth of this head's range, a fortieth of a hundredth of all"


def test_a_head_that_is_no_number_fails_answer(case: Any) -> None:
    subject, _, library = case
    head = make_head(subject.task, Labels(tuple(subject.labels)))
    for scheme in (Scheme.INT8, Scheme.FP32):
        broken = replace(with_engine(subject, change=lambda mood: mood * np.float32(np.nan)), scheme=scheme)
        [answer] = check_library_answers(library, head, len(subject.labels), broken)
        assert not answer.passed


def test_a_small_head_that_ignores_the_mask_fails_padding(case: Any) -> None:
    subject, rows, _ = case
    assert check_padding(subject, rows).passed
    assert not check_padding(with_engine(subject, masked=False), rows).passed


def test_the_self_test_refuses_an_engine_that_computes_a_small_head_wrongly(case: Any, own_cache: Path) -> None:
    subject, rows, _ = case
    write_golden(subject.path / GOLDEN_FILE, rows)
    record = ModelRecord(path=FILE, sha256="", bytes=0, format=Format.ONNX, scheme=Scheme.INT8)

    def load(**fault: Any) -> None:
        engine = TwoHeads(subject.task.outputs, **fault)
        self_test(engine, subject.tokenizer, subject.path, record, subject.task, "digest")

    with pytest.raises(GateError, match="computes this file wrongly on this machine"):
        load(change=squash)
    load(change=lambda mood: mood + np.float32(1e-3))
