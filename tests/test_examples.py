"""The examples run as they stand."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pocketbert

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_own_training_loop_learns() -> None:
    losses = runpy.run_path(str(EXAMPLES / "own_training_loop.py"))["main"](30)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_export_and_predict_from_python(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    phone = tmp_path / "phone"
    export = [sys.executable, str(EXAMPLES / "export_ready_model.py"), str(tiny_model("bert", 1)), str(phone)]
    made = subprocess.run(export, capture_output=True, text=True, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "Prediction(label=" in made.stdout
    assert "litert_torch" not in made.stderr
    models = {
        p.relative_to(phone).as_posix()
        for p in phone.rglob("*")
        if p.suffix in (".onnx", ".tflite", ".mlpackage")
    }
    assert models == {
        "onnx/model.onnx", "onnx/model_int8.onnx", "onnx/model_quantized.onnx", "tflite/model.tflite",
        "tflite/model_int8.tflite", "tflite/mediapipe.tflite", "tflite/mediapipe_int8.tflite", "coreml/Model.mlpackage",
        "coreml/Model_w8.mlpackage",
    }  # fmt: skip
    assert pocketbert.load(phone).record.path == "onnx/model_int8.onnx"  # the first format's smallest
    predict = [sys.executable, str(EXAMPLES / "predict.py"), str(phone), "a text", "another one"]
    answers = subprocess.run(predict, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert len(answers.splitlines()) == 2
    look = [sys.executable, str(EXAMPLES / "check_coreml_package.py"), str(phone), "a text", "another one"]
    seen = subprocess.run(look, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert seen.count("below fp16's end") == 2
    assert seen.count("rounding grows at") == 6


def test_export_example_tells_what_is_wrong(tmp_path: Path) -> None:
    script = [
        sys.executable,
        str(EXAMPLES / "export_ready_model.py"),
        str(tmp_path / "none"),
        str(tmp_path / "phone"),
    ]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "no model folder" in done.stderr
