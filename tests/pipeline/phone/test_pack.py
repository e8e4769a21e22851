"""What packing refuses, and what it adds to the files that passed, without an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.artefacts import Kind, ModelRecord
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import GateError
from pocketbert.core.families import family_of
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.pipeline.formats.base import ModelFile, RunModel, format_place
from pocketbert.pipeline.phone import pack
from pocketbert.pipeline.phone.pack import Origin, check_packable, sources
from pocketbert.pipeline.results import Verification

FILES = (
    ModelFile("onnx/model.onnx", "onnx/model.onnx", Format.ONNX, Scheme.FP32),
    ModelFile("onnx-int8/model_int8.onnx", "onnx/model_int8.onnx", Format.ONNX, Scheme.INT8),
)


def recipe(**sections: Any) -> Recipe:
    base = {"schema": 1, "name": "a", "task": "text-classification", "teacher": {"model": "minilm-l6"}}
    return Recipe.model_validate({**base, **sections})


@pytest.fixture
def model(tmp_path: Path) -> RunModel:
    """A run folder whose files are a few bytes each, all of them verified."""
    run = tmp_path / "run"
    for name in ("teacher/config.json", "teacher/tokenizer.json", "golden/golden.jsonl", *(f.source for f in FILES)):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(json.dumps({"from": name}))
    folder = ModelFolder(run / "teacher", "minilm-l6", {"from": "teacher/config.json"}, family_of("bert"))
    made = RunModel(recipe(), run, folder, 32, FILES)
    verified(made)
    return made


def verified(model: RunModel, status: Status = Status.PASSED) -> None:
    digests = {name: sha256_path(path) for name, path in sources(model).items()}
    result = Verification(status=status, gates=[], files=digests)
    (model.run / "verify.json").write_text(result.model_dump_json())


def refused(model: RunModel) -> str:
    with pytest.raises(GateError) as caught:
        check_packable(model)
    return "\n".join(caught.value.failures)


def test_sources_are_what_is_there(model: RunModel) -> None:
    assert {name: path.relative_to(model.run).as_posix() for name, path in sources(model).items()} == {
        "onnx/model.onnx": "onnx/model.onnx",
        "onnx/model_int8.onnx": "onnx-int8/model_int8.onnx",
        "config.json": "teacher/config.json",
        "tokenizer.json": "teacher/tokenizer.json",
        "golden.jsonl": "golden/golden.jsonl",
    }


def test_what_was_verified_and_is_unchanged_is_packed(model: RunModel) -> None:
    assert check_packable(model).status is Status.PASSED


def test_what_was_never_verified_or_failed_is_not_packed(model: RunModel) -> None:
    verified(model, Status.FAILED)
    assert refused(model) == "Nothing was packed."
    (model.run / "verify.json").unlink()
    assert "was never verified; run: pocketbert verify -m" in refused(model)


def test_what_changed_appeared_or_went_since_is_not_packed(model: RunModel) -> None:
    (model.run / "onnx-int8/model_int8.onnx").write_text("other")
    (model.weights / "vocab.txt").write_text("new")
    (model.run / "golden/golden.jsonl").unlink()
    said = refused(model)
    assert "onnx-int8/model_int8.onnx: changed since it was verified" in said
    assert "teacher/vocab.txt: changed since it was verified" in said
    assert "golden.jsonl: not there, though it was when the run was verified" in said
    assert "onnx/model.onnx" not in said


# what a format adds


@pytest.fixture
def phone(model: RunModel, tmp_path: Path) -> Path:
    target = tmp_path / "phone"
    for name, path in sources(model).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(path.read_bytes())
    return target


def test_the_int8_onnx_file_gets_the_name_that_browsers_ask_for(model: RunModel, phone: Path) -> None:
    extras = format_place(Format.ONNX).pack(FILES, model.folder, phone)
    assert extras.aliases == {"onnx/model_quantized.onnx": "onnx/model_int8.onnx"}
    assert (phone / "onnx/model_quantized.onnx").read_bytes() == (phone / "onnx/model_int8.onnx").read_bytes()
    assert "transformers.js_config" not in json.loads((phone / "config.json").read_text())


def test_without_an_int8_onnx_file_config_json_names_fp32(model: RunModel, phone: Path) -> None:
    extras = format_place(Format.ONNX).pack(FILES[:1], model.folder, phone)
    assert (extras.aliases, extras.kinds) == ({}, {})
    assert json.loads((phone / "config.json").read_text()) == {
        "from": "teacher/config.json",
        "transformers.js_config": {"dtype": "fp32"},
    }


def test_packages_come_with_the_script_for_a_mac(model: RunModel, phone: Path) -> None:
    (phone / "coreml").mkdir()
    extras = format_place(Format.COREML).pack([], model.folder, phone)
    assert extras.kinds == {"coreml/benchmark_on_mac.py": Kind.TOOL}
    compile((phone / "coreml/benchmark_on_mac.py").read_text(), "script", "exec")
    assert format_place(Format.TFLITE).pack([], model.folder, phone).kinds == {}


def test_every_other_file_is_listed_with_its_kind(phone: Path) -> None:
    (phone / "coreml/Model.mlpackage").mkdir(parents=True)
    (phone / "coreml/Model.mlpackage/Manifest.json").write_text("{}")
    (phone / "onnx/alias.onnx").write_text("int8")
    (phone / "coreml/tool.py").write_text("")
    models = [
        ModelRecord(path=p, sha256=p, bytes=1, format=Format.ONNX, scheme=Scheme.INT8, default=True)
        for p in ("onnx/model.onnx", "onnx/model_int8.onnx", "coreml/Model.mlpackage")
    ]
    kinds = {**pack._KINDS, "coreml/tool.py": Kind.TOOL}
    found = {r.path: r for r in pack._file_records(phone, models, kinds, {"onnx/alias.onnx": "onnx/model_int8.onnx"})}
    assert {p: r.kind.value for p, r in found.items()} == {
        "config.json": "config",
        "coreml/tool.py": "tool",
        "golden.jsonl": "golden",
        "onnx/alias.onnx": "model",
        "tokenizer.json": "tokenizer",
    }
    alias = found["onnx/alias.onnx"]
    assert isinstance(alias, ModelRecord)
    assert (alias.alias_of, alias.sha256, alias.default) == ("onnx/model_int8.onnx", "onnx/model_int8.onnx", False)


def test_the_lineage_names_no_path_of_this_machine(model: RunModel) -> None:
    (model.weights / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    origin = Origin("abc", "def")
    assert pack._lineage(model, "MIT", origin)["teacher"] == "minilm-l6"
    local = recipe(teacher={"model": "/home/me/secret/bert"}, data={"train": {"path": "/home/me/rows.jsonl"}})
    made = pack._lineage(replace(model, recipe=local), "MIT", origin)
    assert made == {
        "teacher": "bert",
        "source_sha256": "abc",
        "weights_sha256": model.folder.sha256,
        "licence": "MIT",
        "training data": "rows.jsonl",
    }
