from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.artefacts import (
    FILE_NAME,
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    Processing,
    integrity_problems,
    read_artefacts,
    write_artefacts,
)
from pocketbert.core.disk.files import path_bytes, sha256_file, sha256_path
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import ScoreFunction, TaskName
from pocketbert.core.types import Format, Scheme, Status


def record(folder: Path, path: str, **more: Any) -> FileRecord:
    file = folder / path
    made = ModelRecord if more["kind"] is Kind.MODEL else FileRecord
    return made(path=path, sha256=sha256_file(file), bytes=file.stat().st_size, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "phone"
    (made / "onnx").mkdir(parents=True)
    (made / "onnx" / "model.onnx").write_bytes(b"fp32")
    (made / "onnx" / "model_int8.onnx").write_bytes(b"int8")
    (made / "onnx" / "model_quantized.onnx").write_bytes(b"int8")
    (made / "README.md").write_text("card")
    model = {"kind": Kind.MODEL, "format": Format.ONNX, "status": Status.PASSED}
    files = [
        record(made, "onnx/model.onnx", scheme=Scheme.FP32, **model),
        record(made, "onnx/model_int8.onnx", scheme=Scheme.INT8, default=True, **model),
        record(made, "onnx/model_quantized.onnx", scheme=Scheme.INT8, alias_of="onnx/model_int8.onnx", **model),
        record(made, "README.md", kind=Kind.DOCUMENT),
    ]
    write_artefacts(
        made,
        Artefacts(
            name="films",
            task=TaskName.TEXT_CLASSIFICATION,
            family="bert",
            labels=["no", "yes"],
            processing=Processing(max_length=64, score=ScoreFunction.SOFTMAX),
            files=files,
        ),
    )
    return made


def change(folder: Path, **values: Any) -> None:
    content = json.loads((folder / FILE_NAME).read_text())
    (folder / FILE_NAME).write_text(json.dumps({**content, **values}))


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_artefacts(folder)
    return str(caught.value)


def test_what_is_written_is_read(folder: Path) -> None:
    made = read_artefacts(folder)
    assert made.labels == ["no", "yes"]
    assert made.default_model().path == "onnx/model_int8.onnx"
    assert [m.path for m in made.models()] == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    write_artefacts(folder, made)
    assert read_artefacts(folder) == made
    assert integrity_problems(folder, made) == []


def test_unknown_keys_of_newer_folders_are_ignored(folder: Path) -> None:
    before = read_artefacts(folder)
    content = json.loads((folder / FILE_NAME).read_text())
    content["files"][0]["npu"] = {"a": 1}
    content["processing"]["novelty"] = 3
    change(folder, schema_version="1.7", news="x", files=content["files"], processing=content["processing"])
    after = read_artefacts(folder)
    assert after.files == before.files
    assert after.processing == before.processing


@pytest.mark.parametrize("version", ["2.0", "0.9", "", "10.1"])
def test_another_major_schema_is_refused(folder: Path, version: str) -> None:
    change(folder, schema_version=version)
    assert f"schema version '{version}' cannot be read; this version reads 1.0" in refused(folder)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "onnx/../../secret", "a\x00b"])
def test_a_path_that_leaves_the_folder_is_refused(folder: Path, path: str) -> None:
    content = json.loads((folder / FILE_NAME).read_text())
    content["files"][0]["path"] = path
    change(folder, files=content["files"])
    assert "leaves the folder" in refused(folder)


def test_a_folder_without_the_list_is_no_artefact_folder(folder: Path, tmp_path: Path) -> None:
    (folder / FILE_NAME).unlink()
    assert "Make one with: pocketbert export" in refused(folder)
    assert "not an artefact folder" in refused(tmp_path / "none")


def test_every_wrong_value_is_named(folder: Path) -> None:
    change(folder, task="no-task", labels="yes", processing={"max_length": 3})
    found = refused(folder)
    for key in ("task", "labels", "processing.score"):
        assert f"{FILE_NAME} {key}:" in found


@pytest.mark.parametrize("content", ["[]", "3", "{", "null"])
def test_other_content_is_refused(folder: Path, content: str) -> None:
    (folder / FILE_NAME).write_text(content)
    assert FILE_NAME in refused(folder)


def test_a_folder_without_a_model_is_refused(folder: Path) -> None:
    change(folder, files=[])
    with pytest.raises(InputError, match="lists no model file"):
        read_artefacts(folder).default_model()


def test_missing_changed_and_unlisted_files_are_found(folder: Path) -> None:
    made = read_artefacts(folder)
    (folder / "onnx" / "model.onnx").write_bytes(b"fp33")
    (folder / "README.md").unlink()
    (folder / "onnx" / "extra.txt").write_text("x")
    assert integrity_problems(folder, made) == [
        "onnx/model.onnx: changed since it was packed (sha256 differs)",
        "README.md: listed, but not there",
        "onnx/extra.txt: there, but not listed",
    ]


@pytest.fixture
def with_package(folder: Path) -> Path:
    """The same folder with a Core ML package, which is listed as one file."""
    package = folder / "coreml" / "Model.mlpackage"
    (package / "Data").mkdir(parents=True)
    (package / "Manifest.json").write_text("{}")
    (package / "Data" / "weight.bin").write_bytes(b"fp16")
    made = read_artefacts(folder)
    listed = ModelRecord(
        path="coreml/Model.mlpackage",
        sha256=sha256_path(package),
        bytes=path_bytes(package),
        format=Format.COREML,
        scheme=Scheme.FP16,
        status=Status.PASSED,
    )
    write_artefacts(folder, made.model_copy(update={"files": [*made.files, listed]}))
    return folder


def test_a_package_is_one_file_of_the_list(with_package: Path) -> None:
    made = read_artefacts(with_package)
    assert [m.path for m in made.models()][-1] == "coreml/Model.mlpackage"
    assert integrity_problems(with_package, made) == []


@pytest.mark.parametrize("what", ["changed", "missing", "additional", "empty file"])
def test_what_differs_inside_a_package_is_said_of_the_package(with_package: Path, what: str) -> None:
    package = with_package / "coreml" / "Model.mlpackage"
    if what == "changed":
        (package / "Data" / "weight.bin").write_bytes(b"fp17")
    elif what == "missing":
        (package / "Manifest.json").unlink()
    else:
        (package / "Data" / "more").write_text("x" if what == "additional" else "")
    assert integrity_problems(with_package, read_artefacts(with_package)) == [
        "coreml/Model.mlpackage: changed since it was packed (sha256 differs)"
    ]


def test_a_package_that_is_gone_or_a_file_and_what_lies_beside_it(with_package: Path) -> None:
    made, package = read_artefacts(with_package), with_package / "coreml" / "Model.mlpackage"
    (with_package / "coreml" / "Model_w8.mlpackage").mkdir()
    (with_package / "coreml" / "Model_w8.mlpackage" / "Manifest.json").write_text("{}")
    package.rename(with_package.parent / "away")
    gone = "coreml/Model.mlpackage: listed, but not there"
    beside = "coreml/Model_w8.mlpackage/Manifest.json: there, but not listed"
    assert integrity_problems(with_package, made) == [gone, beside]
    package.write_bytes(b"{}fp16")  # as large
    assert integrity_problems(with_package, made) == [
        "coreml/Model.mlpackage: changed since it was packed (sha256 differs)",
        beside,
    ]
