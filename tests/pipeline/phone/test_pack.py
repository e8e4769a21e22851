"""What packing refuses, and what is in a packed folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pocketbert.core.artefacts import Kind, read_artefacts
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.errors import GateError
from pocketbert.core.families import family_of
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.pipeline.formats.base import ModelFile, RunModel, format_place
from pocketbert.pipeline.phone import pack
from pocketbert.pipeline.phone.pack import check_packable, portable, sources
from pocketbert.pipeline.results import Verification
from support.folders import tree

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
    write_verification(made)
    return made


def write_verification(model: RunModel, status: Status = Status.PASSED) -> None:
    digests = {name: sha256_path(path) for name, path in sources(model).items()}
    result = Verification(status=status, gates=[], files=digests)
    (model.run / "verify.json").write_text(result.model_dump_json())


def refusal(model: RunModel) -> str:
    with pytest.raises(GateError) as caught:
        check_packable(model)
    return "\n".join(caught.value.failures)


def test_what_was_verified_and_is_unchanged_is_packed(model: RunModel) -> None:
    assert {name: path.relative_to(model.run).as_posix() for name, path in sources(model).items()} == {
        "onnx/model.onnx": "onnx/model.onnx",
        "onnx/model_int8.onnx": "onnx-int8/model_int8.onnx",
        "config.json": "teacher/config.json",
        "tokenizer.json": "teacher/tokenizer.json",
        "golden.jsonl": "golden/golden.jsonl",
    }
    assert check_packable(model).status is Status.PASSED


def test_what_was_never_verified_or_failed_is_not_packed(model: RunModel) -> None:
    write_verification(model, Status.FAILED)
    assert refusal(model) == "Nothing was packed."
    (model.run / "verify.json").unlink()
    assert "was never verified; run: pocketbert verify -m" in refusal(model)


def test_what_changed_appeared_or_went_since_is_not_packed(model: RunModel) -> None:
    (model.run / "onnx-int8/model_int8.onnx").write_text("other")
    (model.weights / "vocab.txt").write_text("new")
    (model.run / "golden/golden.jsonl").unlink()
    said = refusal(model)
    assert "onnx-int8/model_int8.onnx: changed since it was verified" in said
    assert "teacher/vocab.txt: changed since it was verified" in said
    assert "golden.jsonl: not there, though it was when the run was verified" in said
    assert "onnx/model.onnx" not in said


def test_every_file_of_a_packed_folder_is_listed_with_its_kind(finished_tflite: Path) -> None:
    phone = finished_tflite / "phone"
    listed = {r.path: r for r in read_artefacts(phone).files}
    assert {*listed, "artifacts.json"} == set(tree(phone))
    for path, kind in {
        "config.json": Kind.CONFIG,
        "recipe.resolved.yaml": Kind.CONFIG,
        "tokenizer.json": Kind.TOKENIZER,
        "golden.jsonl": Kind.GOLDEN,
        "selftest.json": Kind.GOLDEN,
        "parity.json": Kind.FIGURES,
        "README.md": Kind.DOCUMENT,
        "model.safetensors": Kind.WEIGHTS,
        "onnx/model.onnx": Kind.MODEL,
        "android/README.md": Kind.TOOL,
    }.items():
        assert listed[path].kind is kind, path
    same, alias = listed["onnx/model_int8.onnx"], listed["onnx/model_quantized.onnx"]
    assert (alias.alias_of, alias.sha256, alias.default) == (same.path, same.sha256, False)


def test_a_packed_folder_names_no_path_of_the_machine(finished: Path) -> None:
    phone = finished / "phone"
    lineage = read_artefacts(phone).lineage
    assert (lineage["teacher"], lineage["training data"]) == ("teacher", "train.jsonl")
    assert {"source_sha256", "weights_sha256", "licence"} <= set(lineage)
    for name, content in tree(phone).items():
        assert str(finished.parent).encode() not in content, name
    data = {"train": {"path": "/home/me/rows.jsonl"}, "eval": {"path": "/home/me/held.jsonl"}}
    there = portable(recipe(teacher={"model": "/home/me/secret/bert"}, data=data))
    assert "/home" not in there.model_dump_json()
    assert portable(recipe()).teacher.model == "minilm-l6"


def test_where_a_model_comes_from_keeps_names_of_the_hub_and_drops_folders() -> None:
    source = {"dataset": "/home/me/secret/rows", "split": "train"}
    teacher = {"model": "org/bert", "adapters": ["/home/me/secret/tuned", "org/adapter"]}
    made: Any = SimpleNamespace(
        recipe=recipe(teacher=teacher, data={"train": source, "eval": {**source, "split": "test"}}),
        folder=SimpleNamespace(sha256="3f"),
    )
    lineage = pack._lineage(made, "mit", pack.Origin("7e", ""))
    found = [lineage[key] for key in ("teacher", "adapters", "training data")]
    assert found == ["org/bert", "tuned, org/adapter", "rows/train"]


# what a format adds


@pytest.mark.parametrize(
    ("files", "aliases", "settings"),
    [
        (FILES, {"onnx/model_quantized.onnx": "onnx/model_int8.onnx"}, {}),
        (FILES[:1], {}, {"transformers.js_config": {"dtype": "fp32"}}),
    ],
    ids=["int8", "fp32 alone"],
)
def test_browsers_find_the_onnx_file_that_is_there(
    model: RunModel, tmp_path: Path, files: Sequence[ModelFile], aliases: dict[str, str], settings: dict[str, Any]
) -> None:
    phone = tmp_path / "phone"
    for name, path in sources(model).items():
        (phone / name).parent.mkdir(parents=True, exist_ok=True)
        (phone / name).write_bytes(path.read_bytes())
    assert format_place(Format.ONNX).pack(files, model.folder, phone).aliases == aliases
    for alias, path in aliases.items():
        assert (phone / alias).read_bytes() == (phone / path).read_bytes()
    assert json.loads((phone / "config.json").read_text()) == {"from": "teacher/config.json", **settings}


def test_packages_come_with_the_script_for_a_mac(model: RunModel, tmp_path: Path) -> None:
    (tmp_path / "coreml").mkdir()
    script = "coreml/benchmark_on_mac.py"
    assert format_place(Format.COREML).pack([], model.folder, tmp_path).kinds == {script: Kind.TOOL}
    compile((tmp_path / script).read_text(), "script", "exec")
    assert format_place(Format.TFLITE).pack([], model.folder, tmp_path).kinds == {}
