"""The examples run as they stand."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.predict import answers as kinds
from pocketbert.core.predict.answers import Answer
from pocketbert.core.tasks import TASKS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ANSWERS: list[tuple[Answer, str]] = [
    (kinds.Prediction("lamp", 0.75, {"lamp": 0.75, "timer": 0.25}, False), "lamp (75.0%)"),
    (kinds.Labelling(("film",), {"film": 0.5, "dog": 0.1}, False), "film (50.0%)"),
    (kinds.Labelling((), {"film": 0.1}, False), "no label"),
    (kinds.Value(-1.25, False), "-1.25"),
    (kinds.Spans((kinds.FoundSpan(3, 6, "time", "six", 0.9),), False), "time at 3: 'six'"),
    (kinds.Spans((), False), "nothing found"),
    (kinds.Excerpt("at six", 4, 10, 0.5), "'at six' at 4 (50.0%)"),
    (kinds.Excerpt("", 0, 0, 0.5), "no answer"),
    (
        kinds.Choice(1, "at six", 0.75, (0.25, 0.75), (0.0, 1.1), ("at five", "at six"), False),
        "choice 2: 'at six' (75.0%)",
    ),
    (kinds.Filled(((kinds.Guess("##s", "s", 0.25),),), False), "s (25.0%)"),
    (kinds.Embedding(np.zeros(384, np.float32)), "a vector of 384 numbers"),
]


@pytest.mark.parametrize("loop", ["with_pure_losses", "with_an_objective"])
def test_own_training_loop_learns(loop: str) -> None:
    losses = runpy.run_path(str(EXAMPLES / "own_training_loop.py"))[loop](30)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize(("answer", "shown"), ANSWERS, ids=[type(a).__name__ for a, _ in ANSWERS])
def test_the_prediction_example_reads_every_kind_of_answer(answer: Answer, shown: str) -> None:
    assert runpy.run_path(str(EXAMPLES / "predict.py"))["shown"](answer) == shown


def test_there_is_an_answer_above_for_every_task() -> None:
    assert len({type(a) for a, _ in ANSWERS}) == len(TASKS)


def test_predict_from_python_with_pairs(
    tmp_path: Path,
    make_classifier: Callable[..., Any],
    make_tokenizer: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tmp_path / "model"
    make_classifier("bert", 1, ("no", "yes"), auto_class="AutoModelForQuestionAnswering").save_pretrained(model)
    make_tokenizer(model)
    api.export(str(model), tmp_path / "phone", ExportOptions(formats=["onnx"], schemes=["fp32"]))
    context = "set an alarm for half past six"
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / "predict.py"))["main"](str(tmp_path / "phone"), ["what is it", context])
    answer, row = capsys.readouterr().out.rstrip("\n").split("\t")
    assert row == f"what is it | {context}"
    assert answer.split("'")[1] in context


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """`example(name, *arguments)`: run a script as the command line does; what it wrote to stdout and stderr."""

    def run(name: str, *arguments: object) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        capfd.readouterr()
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return tuple(capfd.readouterr())

    return run


def test_export_and_predict_from_python(
    tmp_path: Path, tiny_model: Callable[..., Path], example: Callable[..., tuple[str, str]]
) -> None:
    phone = tmp_path / "phone"
    out, err = example("export_ready_model", tiny_model("bert", 1), phone)
    assert "Prediction(label=" in out
    assert "litert_torch" not in err
    suffixes = (".onnx", ".tflite", ".mlpackage")
    models = {p.relative_to(phone).as_posix() for p in phone.rglob("*") if p.suffix in suffixes}
    assert models == {
        *("onnx/model.onnx", "onnx/model_int8.onnx", "onnx/model_quantized.onnx"),
        *("tflite/model.tflite", "tflite/model_int8.tflite", "tflite/mediapipe.tflite", "tflite/mediapipe_int8.tflite"),
        *("coreml/Model.mlpackage", "coreml/Model_w8.mlpackage"),
    }
    assert pocketbert.load(phone).record.path == "onnx/model_int8.onnx"  # the first format's smallest
    answers, _ = example("predict", phone, "a text", "another one")
    assert len(answers.splitlines()) == 2
    seen, _ = example("check_coreml_package", phone, "a text", "another one")
    assert seen.count("below the largest fp16 number") == 2
    assert seen.count("rounding grows at") == 6


def test_export_example_tells_what_is_wrong(tmp_path: Path, example: Callable[..., tuple[str, str]]) -> None:
    with pytest.raises(SystemExit, match="no model folder"):
        example("export_ready_model", tmp_path / "none", tmp_path / "phone")
