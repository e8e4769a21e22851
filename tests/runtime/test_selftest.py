from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.errors import GateError
from pocketbert.core.golden import read_golden, write_golden
from pocketbert.core.tokenization import TextTokenizer
from pocketbert.runtime import selftest
from pocketbert.runtime.cache import cache_folder
from pocketbert.runtime.model import load
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.selftest import golden_difference

FILE = "onnx/model_int8.onnx"


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


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(
    phone: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
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
    write_golden(phone / "golden.jsonl", [rows[0].model_copy(update={"outputs": {FILE: [0.0, 1.0]}})])
    with pytest.raises(GateError, match="computes this file wrongly"):
        load(phone)


def test_a_passed_test_is_remembered_per_file_and_engine(
    phone: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(phone)
    assert len(marks(own_cache)) == 1
    assert marks(own_cache)[0]["difference"] <= marks(own_cache)[0]["allowed"]

    def never(*_: object) -> float:
        raise AssertionError("tested again")

    with monkeypatch.context() as patch:
        patch.setattr(selftest, "golden_difference", never)
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
    rows = read_golden(phone / "golden.jsonl")
    write_golden(
        phone / "golden.jsonl",
        [r.model_copy(update={"outputs": {"tflite/model.tflite": [9.0]}}) for r in rows],
    )
    assert load(phone).predict("good")
    assert marks(own_cache) == []


def test_a_golden_row_is_reproduced(phone: Path) -> None:
    predictor, tokenizer = OnnxPredictor(phone / "onnx" / "model.onnx"), TextTokenizer(phone, 32)
    for row in read_golden(phone / "golden.jsonl"):
        assert golden_difference(predictor, tokenizer, row, "onnx/model.onnx") < 1e-5
        moved = row.model_copy(
            update={"outputs": {"onnx/model.onnx": (np.array(row.reference) + 0.5).tolist()}}
        )
        assert golden_difference(predictor, tokenizer, moved, "onnx/model.onnx") == pytest.approx(
            0.5, abs=1e-4
        )


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POCKETBERT_CACHE", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    monkeypatch.delenv("POCKETBERT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_folder() == tmp_path / "b" / "pocketbert"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "pocketbert"
