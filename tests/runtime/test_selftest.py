from __future__ import annotations

import json
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
from pocketbert.runtime import selftest
from pocketbert.runtime.model import load
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.selftest import _ROWS, _choose_rows, _golden_difference, result_cache_file, self_test

FILE = "onnx/model_int8.onnx"
TASK = TASKS[TaskName.TEXT_CLASSIFICATION]


def tamper(folder: Path, number: int, shift: float) -> None:
    """Move the expected logits of one golden row."""
    rows = read_golden(folder / "golden.jsonl")
    row = rows[number]
    moved = {**row.outputs, FILE: [v + shift for v in row.outputs[FILE]]}
    rows[number] = row.model_copy(update={"outputs": moved})
    write_golden(folder / "golden.jsonl", rows)


def marks(cache: Path) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in cache.rglob("*.json")]


def test_a_runtime_that_computes_otherwise_is_refused(phone: Path, own_cache: Path) -> None:
    tamper(phone, 0, 5.0)
    with pytest.raises(
        GateError, match=f"{FILE}: onnxruntime .* computes this file wrongly on this machine.*differs by 5"
    ):
        load(phone)
    assert marks(own_cache) == []
    assert load(phone, "fp32").predict("good")


def test_a_small_difference_is_allowed(phone: Path) -> None:
    tolerance = read_golden(phone / "golden.jsonl")[0].tolerance[FILE]
    tamper(phone, 0, 0.5 * tolerance)
    assert load(phone).predict("good")


def row(text: str | tuple[str, str], **more: Any) -> GoldenRow:
    return GoldenRow.model_validate(
        {"text": text, "label": "a", "reference": [0.0], "outputs": {}, "tolerance": {}, **more}
    )


def test_rows_are_spread_over_the_file_and_short_ones_come_first() -> None:
    lengths = [9, 5, 7, 30, 20, 25, 40, 6, 8, 3, 50, 4]  # three to a stretch
    chosen = _choose_rows([(n, row("x" * length)) for n, length in enumerate(lengths, 1)])
    assert [n for n, _ in chosen] == [10, 2, 8, 5]
    pairs = _choose_rows([(1, row(("x" * 10, "y" * 10))), (2, row("x" * 15))])
    assert [n for n, _ in pairs] == [2, 1]
    for count in (*range(1, 10), 36, 4096):
        rows = [(n, row("x")) for n in range(count)]
        numbers = [n for n, _ in _choose_rows(rows)]
        assert len(set(numbers)) == min(count, _ROWS)
        assert numbers == [count * i // len(numbers) for i in range(len(numbers))]


@pytest.mark.parametrize("number", range(_ROWS))
def test_an_engine_that_is_wrong_on_one_row_only_is_refused(
    phone: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    rows = list(enumerate(read_golden(phone / "golden.jsonl"), 1))
    line, wrong = _choose_rows(rows)[number]
    [encoded] = TextTokenizer(phone, 32).encode([wrong.input])
    run, calls = OnnxPredictor.run, []

    def wrong_once(self: OnnxPredictor, inputs: Any) -> Any:
        out = run(self, inputs)
        calls.append(inputs["input_ids"].shape)
        if np.array_equal(inputs["input_ids"][0], encoded.ids):
            out["logits"] = out["logits"][:, ::-1] + 1
        return out

    monkeypatch.setattr(OnnxPredictor, "run", wrong_once)
    with pytest.raises(GateError, match=f"computes this file wrongly on this machine: golden row {line} differs"):
        load(phone)
    assert len(calls) == number + 1  # the first wrong row ends it
    assert marks(own_cache) == []


def test_few_rows_are_run_of_many(phone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = read_golden(phone / "golden.jsonl")
    write_golden(phone / "golden.jsonl", rows * 20)
    run, calls = OnnxPredictor.run, []

    def counted(self: OnnxPredictor, inputs: Any) -> Any:
        calls.append(inputs["input_ids"].shape)
        return run(self, inputs)

    monkeypatch.setattr(OnnxPredictor, "run", counted)
    load(phone)
    assert len(calls) == _ROWS
    load(phone)
    assert len(calls) == _ROWS


class Fake:
    """An engine that answers nothing but zeros."""

    engine_version = "2.14.0"
    inputs, outputs, lengths = ("input_ids",), ("logits",), ()

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def run(self, inputs: Any) -> Any:
        return {"logits": np.zeros((len(inputs["input_ids"]), 3), np.float32)}


LITERT = "ai-edge-litert >= 2.3"
OWN_FILE = "Use the file for tflite216 "


@pytest.mark.parametrize(("engine", "record", "said", "unsaid"), [
    ("tflite_runtime", {"format": Format.TFLITE, "scheme": Scheme.INT8}, (OWN_FILE, LITERT), ()),
    ("tensorflow", {"format": Format.TFLITE, "scheme": Scheme.INT8}, (OWN_FILE, "--runtime tflite216", LITERT), ()),
    ("tensorflow", {"format": Format.TFLITE, "scheme": Scheme.FP32}, (LITERT, "another file"), (OWN_FILE,)),
    ("tensorflow", {"format": Format.TFLITE, "scheme": Scheme.INT8, "client": Client.MEDIAPIPE}, (LITERT,), (OWN_FILE,)),
    ("tensorflow", {"format": Format.TFLITE, "scheme": Scheme.INT8, "runtime": Runtime.TFLITE_2_16}, (LITERT,), (OWN_FILE,)),
    ("litert", {"format": Format.TFLITE, "scheme": Scheme.INT8}, ("another engine or version",), (OWN_FILE, LITERT)),
    ("onnxruntime", {"format": Format.ONNX, "scheme": Scheme.INT8}, ("another engine or version",), (OWN_FILE, LITERT)),
])  # fmt: skip
def test_the_error_names_engine_version_and_what_to_do(
    phone: Path, engine: str, record: dict[str, Any], said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    listed = ModelRecord(path=FILE, sha256="", bytes=0, **record)
    with pytest.raises(GateError) as caught:
        self_test(Fake(engine), TextTokenizer(phone, 32), phone, listed, TASK)
    [message] = caught.value.failures
    assert message.startswith(f"{FILE}: {engine} 2.14.0 computes this file wrongly on this machine: golden row ")
    assert all(part in message for part in said), message
    assert not any(part in message for part in unsaid), message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(phone: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    run = OnnxPredictor.run

    def broken(self: OnnxPredictor, inputs: Any) -> Any:
        out = run(self, inputs)
        out["logits"][0, 1] = value
        return out

    monkeypatch.setattr(OnnxPredictor, "run", broken)
    with pytest.raises(GateError, match="computes this file wrongly"):
        load(phone)


def test_logits_of_another_shape_are_refused(phone: Path) -> None:
    rows = read_golden(phone / "golden.jsonl")
    two = {"reference": [0.0, 1.0], "padded": [], "outputs": {FILE: [0.0, 1.0]}, "tolerance": {FILE: 0.1}}
    write_golden(phone / "golden.jsonl", [rows[0].model_copy(update=two)])
    with pytest.raises(GateError, match="computes this file wrongly"):
        load(phone)


def test_a_passed_test_is_remembered_per_file_and_engine(
    phone: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(phone)
    assert len(marks(own_cache)) == 1
    assert len(marks(own_cache)[0]["rows"]) == _ROWS
    assert all(r["difference"] <= r["allowed"] for r in marks(own_cache)[0]["rows"])

    def never(*_: object) -> float:
        raise AssertionError("tested again")

    with monkeypatch.context() as patch:
        patch.setattr(selftest, "_golden_difference", never)
        load(phone)
        with pytest.raises(AssertionError, match="tested again"):
            load(phone, "fp32")
        patch.setattr(OnnxPredictor, "engine_version", "0.0.1")
        with pytest.raises(AssertionError, match="tested again"):
            load(phone)


def test_a_cache_that_cannot_be_written_does_not_matter(phone: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")
    assert load(phone).predict("good")


def test_a_folder_without_golden_rows_is_opened(phone: Path, own_cache: Path) -> None:
    (phone / "golden.jsonl").unlink()
    assert load(phone).predict("good")
    assert marks(own_cache) == []


def test_golden_rows_of_other_files_are_not_used(phone: Path, own_cache: Path) -> None:
    other = "tflite/model.tflite"
    rows = read_golden(phone / "golden.jsonl")
    write_golden(
        phone / "golden.jsonl",
        [r.model_copy(update={"outputs": {other: r.reference}, "tolerance": {other: 0.1}}) for r in rows],
    )
    assert load(phone).predict("good")
    assert marks(own_cache) == []


def test_a_golden_row_is_reproduced(phone: Path) -> None:
    predictor, tokenizer = OnnxPredictor(phone / "onnx" / "model.onnx"), TextTokenizer(phone, 32)
    for row in read_golden(phone / "golden.jsonl"):
        assert _golden_difference(predictor, tokenizer, row, "onnx/model.onnx", TASK) < 1e-5
        moved = row.model_copy(update={"outputs": {"onnx/model.onnx": (np.array(row.reference) + 0.5).tolist()}})
        assert _golden_difference(predictor, tokenizer, moved, "onnx/model.onnx", TASK) == pytest.approx(0.5, abs=1e-4)


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POCKETBERT_CACHE", str(tmp_path / "a"))
    assert result_cache_file("selftest", "k") == tmp_path / "a/selftest/k.json"
    monkeypatch.delenv("POCKETBERT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert result_cache_file("selftest", "k") == tmp_path / "b/pocketbert/selftest/k.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert result_cache_file("fastest", "k") == Path.home() / ".cache/pocketbert/fastest/k.json"
