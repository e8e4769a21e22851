"""Golden rows are run before a file is first used: wrong engines are refused, a pass is remembered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.artefacts import ModelRecord
from pocketbert.core.compare.golden import GoldenRow, read_golden, write_golden
from pocketbert.core.errors import GateError
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Client, Format, Runtime, Scheme
from pocketbert.runtime.model import load
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.selftest import result_cache_file, self_test

FILE = "onnx/model_int8.onnx"
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
ROWS = 4


def shift_expected(folder: Path, shift: float) -> None:
    """Move the expected logits of the first golden row."""
    first, *rows = read_golden(folder / "golden.jsonl")
    outputs = {**first.outputs, FILE: [v + shift for v in first.outputs[FILE]]}
    write_golden(folder / "golden.jsonl", [first.model_copy(update={"outputs": outputs}), *rows])


def read_marks(cache: Path) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in (cache / "selftest").glob("*.json")]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The ids of all rows that were run on ONNX files."""
    run, ids = OnnxPredictor.run, list[list[int]]()

    def noting(self: OnnxPredictor, inputs: Any) -> Any:
        ids.extend(inputs["input_ids"].tolist())
        return run(self, inputs)

    monkeypatch.setattr(OnnxPredictor, "run", noting)
    return ids


def test_a_runtime_that_computes_otherwise_is_refused(phone: Path, own_cache: Path) -> None:
    shift_expected(phone, 5.0)
    said = f"{FILE}: onnxruntime .* computes this file wrongly on this machine: golden row 1 differs by 5"
    with pytest.raises(GateError, match=said):
        load(phone)
    assert read_marks(own_cache) == []
    assert load(phone, "fp32").predict("good")


def test_a_small_difference_is_allowed(phone: Path) -> None:
    shift_expected(phone, 0.5 * read_golden(phone / "golden.jsonl")[0].tolerance[FILE])
    assert load(phone).predict("good")


class Fake:
    """An engine that answers what it is told to."""

    inputs, outputs, lengths = ("input_ids",), ("logits",), ()

    def __init__(self, engine: str = "onnxruntime", answer: Callable[[list[int]], list[float]] = lambda _: [0.0] * 3):
        self.engine, self.engine_version, self.answer = engine, "2.14.0", answer

    def run(self, inputs: Any) -> Any:
        return {"logits": np.array([self.answer(row) for row in inputs["input_ids"].tolist()], np.float32)}


def record_of(**more: Any) -> ModelRecord:
    return ModelRecord(path=FILE, sha256="", bytes=0, **{"format": Format.ONNX, "scheme": Scheme.INT8, **more})


@pytest.mark.parametrize(
    ("lengths", "chosen"),
    [
        ([9, 5, 7, 30, 20, 25, 40, 6, 8, 3, 50, 4], [10, 2, 8, 5]),  # the shortest of each three, the shortest first
        ([(10, 10), 15], [2, 1]),  # both texts of a pair count
        *(([5] * n, [1 + n * i // min(n, ROWS) for i in range(min(n, ROWS))]) for n in (1, 3, 4, 5, 36)),
    ],
)
def test_rows_are_spread_over_the_file_and_short_ones_come_first(
    lengths: list[Any], chosen: list[int], phone: Path, own_cache: Path
) -> None:
    texts = [tuple("x" * n for n in size) if isinstance(size, tuple) else "x" * size for size in lengths]
    same = {"label": "a", "reference": [0.0] * 3, "outputs": {FILE: [0.0] * 3}, "tolerance": {FILE: 0.1}}
    write_golden(phone / "golden.jsonl", [GoldenRow.model_validate({"text": text, **same}) for text in texts])
    self_test(Fake(), TextTokenizer(phone, 32), phone, record_of(), TASK)
    [mark] = read_marks(own_cache)
    assert [row["row"] for row in mark["rows"]] == chosen


@pytest.mark.parametrize("number", range(ROWS))
def test_an_engine_that_is_wrong_on_one_row_only_is_refused(phone: Path, own_cache: Path, number: int) -> None:
    tokenizer, rows = TextTokenizer(phone, 32), read_golden(phone / "golden.jsonl")
    right = {tuple(tokenizer.encode([r.input])[0].ids.tolist()): r.outputs[FILE] for r in rows}
    asked = list[tuple[int, ...]]()

    def answer(ids: list[int], wrong: tuple[int, ...] = ()) -> list[float]:
        asked.append(tuple(ids))
        return [v + 9 for v in right[tuple(ids)]] if tuple(ids) == wrong else right[tuple(ids)]

    self_test(Fake("right", answer), tokenizer, phone, record_of(), TASK)
    assert len(asked) == ROWS
    wrong = asked[number]
    asked.clear()
    line = list(right).index(wrong) + 1
    with pytest.raises(GateError, match=f"golden row {line} differs by 9"):
        self_test(Fake("wrong", lambda ids: answer(ids, wrong)), tokenizer, phone, record_of(), TASK)
    assert len(asked) == number + 1  # the first wrong row ends it
    assert len(read_marks(own_cache)) == 1  # that of the right one


LITERT = "ai-edge-litert >= 2.3"
OWN_FILE = "Use the file for tflite216 "
TFLITE = {"format": Format.TFLITE}


@pytest.mark.parametrize(
    ("engine", "record", "said", "unsaid"),
    [
        ("tflite_runtime", TFLITE, (OWN_FILE, "--runtime tflite216", LITERT), ()),
        ("tensorflow", TFLITE, (OWN_FILE, LITERT), ()),
        ("tensorflow", {**TFLITE, "scheme": Scheme.FP32}, (LITERT, "another file"), (OWN_FILE,)),
        ("tensorflow", {**TFLITE, "client": Client.MEDIAPIPE}, (LITERT,), (OWN_FILE,)),
        ("tensorflow", {**TFLITE, "runtime": Runtime.TFLITE_2_16}, (LITERT,), (OWN_FILE,)),
        ("litert", TFLITE, ("another engine or version",), (OWN_FILE, LITERT)),
        ("onnxruntime", {}, ("another engine or version",), (OWN_FILE, LITERT)),
    ],
)
def test_the_error_names_engine_version_and_what_to_do(
    phone: Path, engine: str, record: dict[str, Any], said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    with pytest.raises(GateError) as caught:
        self_test(Fake(engine), TextTokenizer(phone, 32), phone, record_of(**record), TASK)
    [message] = caught.value.failures
    assert message.startswith(f"{FILE}: {engine} 2.14.0 computes this file wrongly on this machine: golden row ")
    assert all(part in message for part in said), message
    assert not any(part in message for part in unsaid), message


@pytest.mark.parametrize("answer", [[0, np.nan, 0], [0, np.inf, 0], [0, 0]], ids=["NaN", "infinite", "two logits"])
def test_answers_that_are_not_finite_or_of_another_shape_are_refused(phone: Path, answer: list[float]) -> None:
    with pytest.raises(GateError, match="computes this file wrongly"):
        self_test(Fake(answer=lambda _: answer), TextTokenizer(phone, 32), phone, record_of(), TASK)


def test_few_rows_are_run_of_many_and_a_pass_is_remembered_per_file_and_engine(
    phone: Path, own_cache: Path, ran: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_golden(phone / "golden.jsonl", read_golden(phone / "golden.jsonl") * 20)
    for _ in range(2):
        load(phone)
        assert len(ran) == ROWS
    [mark] = read_marks(own_cache)
    assert len(mark["rows"]) == ROWS
    assert all(r["difference"] <= r["allowed"] for r in mark["rows"])
    load(phone, "fp32")
    assert len(ran) == 2 * ROWS
    monkeypatch.setattr(OnnxPredictor, "engine_version", "0.0.1")
    load(phone)
    assert len(ran) == 3 * ROWS


def test_a_cache_that_cannot_be_written_does_not_matter(phone: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")
    assert load(phone).predict("good")


def test_a_folder_without_golden_rows_of_the_file_is_opened(phone: Path, own_cache: Path) -> None:
    rows, other = read_golden(phone / "golden.jsonl"), "tflite/model.tflite"
    only = [r.model_copy(update={"outputs": {other: [0.0] * 3}, "tolerance": {other: 0.1}}) for r in rows]
    write_golden(phone / "golden.jsonl", only)
    assert load(phone).predict("good")
    (phone / "golden.jsonl").unlink()
    assert load(phone).predict("good")
    assert read_marks(own_cache) == []


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    monkeypatch.setenv("POCKETBERT_CACHE", str(tmp_path / "a"))
    assert result_cache_file("selftest", "k") == tmp_path / "a/selftest/k.json"
    monkeypatch.delenv("POCKETBERT_CACHE")
    assert result_cache_file("selftest", "k") == tmp_path / "b/pocketbert/selftest/k.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert result_cache_file("fastest", "k") == Path.home() / ".cache/pocketbert/fastest/k.json"
