"""Artefact folders: their list is read strictly, every difference is found, and no odd file is ever opened."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.artefacts import (
    ARTEFACTS_FILE,
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    Processing,
    check_label_names,
    list_changed_files,
    list_edited_documents,
    list_foreign_files,
    list_integrity_problems,
    read_artefacts,
    read_checked_config,
    write_artefacts,
)
from pocketbert.core.artefacts.folder import choose_file, requested_scheme
from pocketbert.core.disk.files import path_bytes, sha256_path
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import ScoreFunction, TaskName
from pocketbert.core.types import Format, Scheme, Status


def list_file(folder: Path, path: str, kind: Kind = Kind.MODEL, **more: Any) -> FileRecord:
    digest = {"path": path, "sha256": sha256_path(folder / path), "bytes": path_bytes(folder / path)}
    if kind is Kind.MODEL:
        return ModelRecord(**{"format": Format.ONNX, "status": Status.PASSED, **digest, **more})
    return FileRecord(kind=kind, **digest)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "phone"
    (made / "onnx").mkdir(parents=True)
    (made / "onnx" / "model.onnx").write_bytes(b"fp32")
    (made / "onnx" / "model_int8.onnx").write_bytes(b"int8")
    (made / "onnx" / "model_quantized.onnx").write_bytes(b"int8")
    (made / "README.md").write_text("card")
    files = [
        list_file(made, "onnx/model.onnx", scheme=Scheme.FP32),
        list_file(made, "onnx/model_int8.onnx", scheme=Scheme.INT8, default=True),
        list_file(made, "onnx/model_quantized.onnx", scheme=Scheme.INT8, alias_of="onnx/model_int8.onnx"),
        list_file(made, "README.md", Kind.DOCUMENT),
    ]
    settings = {"task": TaskName.TEXT_CLASSIFICATION, "family": "bert", "labels": ["no", "yes"]}
    processing = Processing(max_length=64, score=ScoreFunction.SOFTMAX)
    write_artefacts(made, Artefacts(name="films", processing=processing, files=files, **settings))
    return made


def change(folder: Path, **values: Any) -> None:
    content = json.loads((folder / ARTEFACTS_FILE).read_text())
    (folder / ARTEFACTS_FILE).write_text(json.dumps({**content, **values}))


def change_file(folder: Path, number: int, **values: Any) -> None:
    files = json.loads((folder / ARTEFACTS_FILE).read_text())["files"]
    files[number] |= values
    change(folder, files=files)


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_artefacts(folder)
    return str(caught.value)


# The list


def test_what_is_written_is_read_and_unknown_keys_of_newer_folders_are_ignored(folder: Path) -> None:
    made = read_artefacts(folder)
    assert made.labels == ["no", "yes"]
    assert made.default_model().path == "onnx/model_int8.onnx"
    assert [m.path for m in made.models()] == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    write_artefacts(folder, made)
    assert read_artefacts(folder) == made
    assert list_integrity_problems(folder, made) == []
    before = read_artefacts(folder)
    change_file(folder, 0, npu={"a": 1})
    change(folder, schema_version="1.7", news="x", processing={**PROCESSING, "novelty": 3})
    after = read_artefacts(folder)
    assert (after.files, after.processing) == (before.files, before.processing)


@pytest.mark.parametrize("version", ["2.0", "0.9", "", "10.1"])
def test_another_major_schema_is_refused(folder: Path, version: str) -> None:
    change(folder, schema_version=version)
    assert f"schema version '{version}' cannot be read; this version reads 1.0" in refusal(folder)


def test_a_folder_without_a_list_or_a_model_is_no_artefact_folder(folder: Path, tmp_path: Path) -> None:
    change(folder, files=[])
    with pytest.raises(InputError, match="lists no model file"):
        read_artefacts(folder).default_model()
    (folder / ARTEFACTS_FILE).unlink()
    assert "Make one with: pocketbert export" in refusal(folder)
    assert "there is no such folder" in refusal(tmp_path / "none")


def test_every_wrong_value_is_named(folder: Path) -> None:
    change(folder, task="no-task", labels="yes", processing={"max_length": 3})
    found = refusal(folder)
    for key in ("task", "labels", "processing.score"):
        assert f"{ARTEFACTS_FILE} {key}:" in found
    change(folder, task="question-answering", labels=[], processing=SOUND_QA)
    assert read_artefacts(folder).processing.answer_length == 30


@pytest.mark.parametrize("content", ["[]", "3", "{", "null"])
def test_other_content_is_refused(folder: Path, content: str) -> None:
    (folder / ARTEFACTS_FILE).write_text(content)
    assert ARTEFACTS_FILE in refusal(folder)


PROCESSING = {"max_length": 64, "score": "softmax"}
SOUND_QA = {"max_length": 64, "score": "softmax", "stride": 128, "answer_length": 30, "null_answers": False}
ASK = {"task": "question-answering", "labels": []}
EMBED = {"task": "feature-extraction", "labels": []}
MULTI, SEVERAL = {"task": "multi-label"}, {"max_length": 9, "score": "sigmoid"}
CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a score of another task": ({"processing": {**PROCESSING, "score": "none"}}, "processing.score is none"),
    "another task": ({"task": "regression"}, "processing.score is softmax, of regression it is none"),
    "a task without labels": ({"task": "question-answering"}, "names 2 labels; question-answering has none"),
    "thresholds": ({"processing": {**PROCESSING, "thresholds": [0.5, 0.5]}}, "processing.thresholds has no meaning"),
    "three": (MULTI | {"processing": {**SEVERAL, "thresholds": [0.5] * 3}}, "has 3 numbers for 2 labels"),
    "NaN": (MULTI | {"processing": {**SEVERAL, "thresholds": [math.nan, 0.5]}}, "processing.thresholds"),
    "a stride": ({**ASK, "processing": {**SOUND_QA, "stride": -1}}, "stride"),
    "no answer": ({**ASK, "processing": {**SOUND_QA, "answer_length": 0}}, "answer_length"),
    "a pooling": ({**EMBED, "processing": {"max_length": 9, "score": "none", "pooling": "mean+medoid"}}, "pooling"),
    "half a surrogate pair": ({"labels": ["a", "\ud800"]}, "labels.1"),
    "one text of a pair": ({"processing": {**PROCESSING, "pair_order": ["text"]}}, "pair_order"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_contradicts_the_task_is_refused_when_the_folder_is_opened(folder: Path, name: str) -> None:
    values, said = CONTRADICTIONS[name]
    change(folder, **values)
    assert said in refusal(folder)
    assert "errors.pydantic.dev" not in refusal(folder)


@pytest.mark.parametrize(
    ("number", "values", "said"),
    [
        (1, {"alias_of": "onnx/model_int8.onnx"}, "which is not a model file of the list"),
        (2, {"alias_of": "onnx/model.onnx"}, "but another file by its digest"),
        (2, {"alias_of": "README.md"}, "which is not a model file of the list"),
        (2, {"alias_of": "none"}, "which is not a model file of the list"),
        (0, {"default": True}, "several model files are marked as default"),
        (0, {"path": "README.md"}, "a path is listed twice"),
        (0, {"bytes": -1}, "bytes"),
        *[(0, {"path": path}, "leaves the folder") for path in ("../secret", "/etc/passwd", "onnx/../../x", "a\x00b")],
    ],
)
def test_a_list_that_contradicts_itself_is_refused(folder: Path, number: int, values: Any, said: str) -> None:
    change_file(folder, number, **values)
    assert said in refusal(folder)


# Files that differ from the list


def test_missing_changed_and_unlisted_files_are_found(with_package: Path) -> None:
    folder = with_package
    made = read_artefacts(folder)
    (folder / "onnx" / "model.onnx").write_bytes(b"fp33")
    (folder / "onnx" / "model_int8.onnx").unlink()
    (folder / "onnx" / "extra.txt").write_text("x")
    (folder / "coreml/Model_w8.mlpackage").mkdir()
    (folder / "coreml/Model_w8.mlpackage/Manifest.json").write_text("{}")
    assert list_integrity_problems(folder, made) == [
        "onnx/model.onnx: changed since it was packed (sha256 differs)",
        "onnx/model_int8.onnx: listed, but not there",
        "coreml/Model_w8.mlpackage/Manifest.json: there, but not listed",
        "onnx/extra.txt: there, but not listed",
    ]


def test_documents_are_the_users_to_edit_and_to_delete(folder: Path) -> None:
    made, card = read_artefacts(folder), folder / "README.md"
    assert (list_edited_documents(folder, made), list_foreign_files(folder)) == ([], [])
    card.write_text("other words")
    assert list_integrity_problems(folder, made) == []
    assert list_edited_documents(folder, made) == ["README.md: edited since it was packed"]
    assert list_foreign_files(folder) == ["README.md"]  # nothing overwrites what a user wrote
    card.unlink()
    assert list_integrity_problems(folder, made) == []
    assert list_edited_documents(folder, made) == ["README.md: deleted since it was packed"]
    assert list_foreign_files(folder) == []
    card.mkdir()
    assert list_integrity_problems(folder, made) == ["README.md: changed since it was packed (sha256 differs)"]
    assert list_edited_documents(folder, made) == []


@pytest.fixture
def with_package(folder: Path) -> Path:
    """The same folder with a Core ML package, which is listed as one file."""
    package = folder / "coreml" / "Model.mlpackage"
    (package / "Data").mkdir(parents=True)
    (package / "Manifest.json").write_text("{}")
    (package / "Data" / "weight.bin").write_bytes(b"fp16")
    made = read_artefacts(folder)
    listed = list_file(folder, "coreml/Model.mlpackage", format=Format.COREML, scheme=Scheme.FP16)
    write_artefacts(folder, made.model_copy(update={"files": [*made.files, listed]}))
    assert [m.path for m in read_artefacts(folder).models()][-1] == "coreml/Model.mlpackage"
    assert list_integrity_problems(folder, read_artefacts(folder)) == []
    return folder


PACKAGE = "coreml/Model.mlpackage"
DIFFERS = "changed since it was packed (sha256 differs)"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda package: (package / "Data" / "weight.bin").write_bytes(b"fp17"), DIFFERS),
        (lambda package: (package / "Manifest.json").unlink(), DIFFERS),
        (lambda package: (package / "Data" / "more").write_text("x"), DIFFERS),
        (lambda package: (package / "Data" / "empty").touch(), DIFFERS),
        (lambda package: (shutil.rmtree(package), package.write_bytes(b"{}fp16")), DIFFERS),
        (lambda package: os.mkfifo(package / "Data" / "x"), "is or contains a "),
        (lambda package: (package / "Data" / "x").symlink_to("/etc/hostname"), "is or contains a "),
        (lambda package: shutil.rmtree(package), "listed, but not there"),
    ],
)
def test_what_differs_inside_a_package_is_said_of_the_package(
    with_package: Path, change: Callable[[Path], object], said: str
) -> None:
    made = read_artefacts(with_package)
    change(with_package / PACKAGE)
    [problem] = list_integrity_problems(with_package, made)
    assert problem.startswith(f"{PACKAGE}: {said}")
    assert list_changed_files(with_package, made) == ([] if "not there" in said else [PACKAGE])


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        bind_socket,
        lambda path: path.symlink_to("model_int8.onnx"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/dev/zero"),
    ],
)
def test_what_is_no_file_is_listed_and_never_opened(
    folder: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = read_artefacts(folder)
    monkeypatch.chdir(folder)
    make(folder / "onnx" / "more")
    [problem] = list_integrity_problems(folder, made)
    assert problem.startswith("onnx/more: there, but not listed (a ")
    (folder / "onnx" / "more").unlink()
    (folder / "onnx" / "model_quantized.onnx").unlink()
    make(folder / "onnx" / "model_quantized.onnx")
    [problem] = list_integrity_problems(folder, made)
    assert problem.startswith("onnx/model_quantized.onnx: ")


# Configurations, and the file that users are pointed to

CONFIG = {
    "model_type": "bert",
    "max_position_embeddings": 64,
    "problem_type": "single_label_classification",
    "architectures": ["BertForSequenceClassification"],
    "id2label": {"0": "no", "1": "yes"},
}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "roberta"}, "the folder's list says bert"),
        ({"max_position_embeddings": 20}, "its position table has 20 rows"),
        ({"problem_type": "regression"}, "the folder's task is text-classification"),
        ({"architectures": ["BertForTokenClassification"]}, "the folder's task is text-classification"),
        ({"id2label": {"0": "yes", "1": "no"}}, "output 0 is 'no' instead of 'yes'"),
        ({"id2label": {"0": "no", "1": "yes", "2": "x"}}, "2 labels instead of 3"),
        ({"num_labels": 10**9, "id2label": None}, "num_labels is 1000000000"),
        ({"vocab_size": "x"}, "vocab_size is 'x'"),
    ],
)
def test_a_configuration_of_another_model_is_refused(folder: Path, values: Any, said: str) -> None:
    made = read_artefacts(folder)
    check_label_names(folder, made, read_checked_config(folder, made))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    check_label_names(folder, made, read_checked_config(folder, made))
    (folder / "config.json").write_text(json.dumps({**CONFIG, **values}))
    with pytest.raises(InputError, match=said):
        check_label_names(folder, made, read_checked_config(folder, made))


@pytest.mark.parametrize("content", ["[]", "5", "null", "{", '{"a": NaN}'])
def test_a_configuration_that_is_none_is_refused(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(InputError, match="config.json"):
        read_checked_config(folder, read_artefacts(folder))


def make_records(format: str, *schemes: str) -> list[ModelRecord]:
    return [ModelRecord(path=s, sha256="a" * 64, bytes=1, format=Format(format), scheme=Scheme(s)) for s in schemes]


@pytest.mark.parametrize(
    ("default", "format", "schemes", "chosen"),
    [
        (("onnx", "int8"), "tflite", ("fp32", "int8", "small", "w4"), "int8"),
        (("onnx", "int8"), "coreml", ("fp16", "w8", "lut6", "lut4"), "w8"),
        (("onnx", "small"), "coreml", ("fp16", "w8", "small", "lut4"), "small"),
        (("onnx", "small"), "tflite", ("fp32", "int8", "w4"), "int8"),
        (("onnx", "fp32"), "coreml", ("fp16", "w8"), "fp16"),
        (("onnx", "int8-b32"), "tflite", ("fp32", "w8"), "w8"),
    ],
)
def test_the_file_of_the_default_s_scheme_is_chosen_never_merely_the_smallest(
    default: tuple[str, str], format: str, schemes: tuple[str, ...], chosen: str
) -> None:
    [first] = make_records(*default)
    assert choose_file(make_records(format, *schemes), requested_scheme(first)).scheme == chosen


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("runs/intent/phone", "there is no such folder. Fix: Did you mean {}/runs/intents/phone?"),
        ("runs/intents/fone", "there is no such folder. Fix: Did you mean {}/runs/intents/phone?"),
        ("runs/intents/phone:int8", "Fix: Choose a file of a folder with --scheme"),
        ("elsewhere/x", "Fix: Make one with: pocketbert export"),
        ("runs", "is not an artefact folder: it has no artifacts.json"),
    ],
)
def test_a_mistyped_folder_is_told_what_was_probably_meant(tmp_path: Path, asked: str, said: str) -> None:
    (tmp_path / "runs/intents/phone").mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        read_artefacts(tmp_path / asked)
    assert said.format(tmp_path) in str(caught.value)
