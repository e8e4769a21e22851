"""What scores are compared with, and which folders are not opened at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from pocketbert.core.artefacts import Artefacts, FileRecord, Kind, ModelRecord, Processing, write_artefacts
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.predict.scores import Score
from pocketbert.core.recipe.recipe import VerifySection
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName
from pocketbert.core.types import Client, Format, Runtime, Scheme, Status
from pocketbert.pipeline.gates import verify
from pocketbert.pipeline.gates.checks import TorchScores
from pocketbert.pipeline.gates.verify import Evidence, verify_artefacts, verify_files
from pocketbert.pipeline.results import Gate, Subject, Verification


def subject(name: str, format: Format, scheme: Scheme, **more: Any) -> Subject:
    given: dict[str, Any] = {
        "path": Path(name), "client": None, "runtime": None, "predictor": None, "tokenizer": None, "labels": ["a", "b"],
        "task": TASKS[TaskName.TEXT_CLASSIFICATION], "folder": Path(),
    }  # fmt: skip
    return Subject(name=name, format=format, scheme=scheme, **{**given, **more})


def score(value: float, rows: int = 100_000) -> Score:
    return Score(metric="accuracy", value=value, others={}, rows=rows, chance=0.5, finite=True)


def evidence(**more: Any) -> Evidence:
    given: dict[str, Any] = {"golden": [], "golden_tokens": Path(), "vocabulary": None, "tokenizer": None}
    return Evidence(**{**given, **more})


SUBJECTS = [
    subject("onnx", Format.ONNX, Scheme.FP32),
    subject("onnx-int8", Format.ONNX, Scheme.INT8),
    subject("tflite", Format.TFLITE, Scheme.FP32),
    subject("mediapipe", Format.TFLITE, Scheme.FP32, client=Client.MEDIAPIPE),
    subject("tflite-int8", Format.TFLITE, Scheme.INT8),
    subject("mediapipe-int8", Format.TFLITE, Scheme.INT8, client=Client.MEDIAPIPE),
    subject("tflite-old", Format.TFLITE, Scheme.INT8, runtime=Runtime.TFLITE_2_16),
    subject("coreml", Format.COREML, Scheme.FP16),
    subject("coreml-w8", Format.COREML, Scheme.W8),
]
BY_NAME = {s.name: s for s in SUBJECTS}
VALUES = {s.name: 0.80 - i / 100 for i, s in enumerate(SUBJECTS)}


def against(name: str, rows: str = "eval", settings: VerifySection | None = None, **more: Any) -> list[Gate]:
    scores = {s: {rows: score(v)} for s, v in VALUES.items()}
    given = {"reference": score(0.9), **more}
    return verify._compare_scores(BY_NAME[name], rows, scores, SUBJECTS, evidence(**given), settings or VerifySection())


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("onnx-int8", "onnx"),
        ("tflite-int8", "tflite"),
        ("mediapipe-int8", "mediapipe"),
        ("tflite-old", "tflite"),
        ("coreml-w8", "coreml"),
    ],
)
def test_a_smaller_file_is_compared_with_what_it_was_made_from(name: str, base: str) -> None:
    for rows in ("eval", "holdout"):
        [gate] = against(name, rows, VerifySection(max_drop=0.02))
        assert gate.value == pytest.approx(VALUES[base] - VALUES[name])
        assert gate.bound == 0.02
        assert f"{BY_NAME[base].scheme} on {rows} has" in gate.detail


def with_torch(name: str, found: Score, rows: str = "eval", **more: Any) -> list[Gate]:
    given: dict[str, Any] = {"tokenizer": None, "known": score(0.9), "model": None, "absent": "", **more}
    return TorchScores(**given).gates(BY_NAME[name], EvalSet(rows, cast(Any, None), cast(Any, None)), found)


@pytest.mark.parametrize(
    ("name", "bound"), [("onnx", 0.001), ("tflite", 0.001), ("mediapipe", 0.001), ("coreml", 0.003)]
)
def test_an_exported_file_is_compared_with_torch_by_its_own_bound(name: str, bound: float) -> None:
    [gate] = with_torch(name, score(VALUES[name]))
    assert (gate.bound, gate.passed) == (bound, False)
    assert gate.value == pytest.approx(0.9 - VALUES[name])
    assert with_torch(name, score(0.1), "holdout") == [] == with_torch(name, score(0.1), known=None)
    assert against(name) == []


def test_of_few_rows_two_may_flip() -> None:
    [gate] = with_torch("onnx", score(0.87, rows=50))
    assert (gate.bound, gate.passed) == (0.04, True)


def test_where_torch_is_not_there_the_comparison_is_skipped_and_not_passed_in_silence() -> None:
    [gate] = with_torch("onnx", score(0.1), known=None, absent="torch cannot be found here.")
    assert gate.skipped
    assert gate.detail == "not compared with the torch model on eval: torch cannot be found here."
    assert with_torch("onnx-int8", score(0.1), absent="anything") == []


def test_the_share_of_the_teacher_is_asked_on_eval_and_where_wanted() -> None:
    wanted = VerifySection(min_kept=0.9)
    assert [g.name for g in against("onnx-int8", settings=wanted, teacher=score(0.95))] == ["drop", "kept"]
    assert [g.name for g in against("onnx-int8", teacher=score(0.95))] == ["drop"]
    assert [g.name for g in against("onnx-int8", "holdout", settings=wanted, teacher=score(0.95))] == ["drop"]


def test_a_tokenizer_with_more_tokens_than_the_model_stops_everything_else(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("x")

    class Wide:
        largest_id = 10

    given = evidence(tokenizer=Wide(), vocabulary=10, labels=["b", "a"], teacher=score(0.9))
    result = verify_files([subject("a", Format.ONNX, Scheme.FP32, path=file)], given, VerifySection())
    assert (result.status, [g.name for g in result.gates]) == (Status.FAILED, ["tokenizer", "labels"])
    assert result.files == {"a": sha256_file(file)}
    assert result.teacher == score(0.9)


def test_a_file_passed_where_its_own_gates_and_the_folder_s_did() -> None:
    gates = [Gate(name="golden", file="a", passed=False), Gate(name="golden", file="b", passed=True)]
    result = Verification(status=Status.FAILED, gates=gates)
    assert (result.passed("a"), result.passed("b")) == (False, True)
    broken = Verification(status=Status.FAILED, gates=[*gates, Gate(name="labels", file="config.json", passed=False)])
    assert not broken.passed("b")


# folders that are not opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of a few bytes that an engine would refuse."""
    return write(tmp_path / "phone", Status.PASSED)


def write(made: Path, status: Status) -> Path:
    names = {"onnx/model.onnx": Kind.MODEL, "tokenizer.json": Kind.TOKENIZER, "config.json": Kind.CONFIG}
    records = []
    for name, kind in {**names, "golden.jsonl": Kind.GOLDEN, "golden_tokens.jsonl": Kind.GOLDEN}.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(json.dumps({"of": name}))
        base = {"path": name, "sha256": sha256_file(made / name), "bytes": (made / name).stat().st_size}
        model = {"format": Format.ONNX, "scheme": Scheme.FP32, "status": status}
        records.append(ModelRecord(**base, **model) if kind is Kind.MODEL else FileRecord(**base, kind=kind))
    settings = Processing(max_length=32, score=ScoreFunction.SOFTMAX)
    listed = Artefacts(
        name="a", task="text-classification", family="bert", labels=["a"], processing=settings, files=records
    )
    write_artefacts(made, listed)
    return made


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(verify, "open_file", opened)


def failed(folder: Path) -> dict[str, str]:
    result = verify_artefacts(folder)
    assert result.status is Status.FAILED
    return {g.name: g.detail for g in result.gates if not g.passed}


def test_a_changed_file_is_not_opened(folder: Path) -> None:
    (folder / "onnx/model.onnx").write_text(json.dumps({"of": "onnx/model.onnX"}))
    assert failed(folder) == {"integrity": "onnx/model.onnx: changed since it was packed (sha256 differs)"}


@pytest.mark.parametrize("name", ["onnx/model.onnx", "golden.jsonl", "golden_tokens.jsonl", "tokenizer.json"])
def test_what_verification_needs_is_asked_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert failed(folder) == {
        "integrity": f"{name}: listed, but not there",
        "complete": f"cannot be verified without {name}.",
    }


def test_a_file_that_is_marked_failed_is_not_opened(tmp_path: Path) -> None:
    assert failed(write(tmp_path / "phone", Status.FAILED)) == {
        "status": "onnx/model.onnx: marked failed in artifacts.json."
    }


def test_a_whole_folder_is_opened(folder: Path) -> None:
    with pytest.raises(AssertionError, match="a file was opened"):
        verify_artefacts(folder)
