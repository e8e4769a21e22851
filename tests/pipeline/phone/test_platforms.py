"""`pack --for ios|web|server`: a small folder for one platform that verifies and predicts without the one it was made from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pocketbert
from pocketbert import api
from pocketbert.core.artefacts import FileRecord, Kind, list_integrity_problems, read_artefacts
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.phone.platforms import PLATFORMS, Web
from support.card_folders import folder as listed
from support.folders import tree

Cli = Callable[..., Any]
MODELS = {"web": "onnx/model_quantized.onnx", "server": "onnx/model_int8.onnx", "ios": "coreml/Model_w8.mlpackage"}


@pytest.fixture
def folder(finished_tflite: Path, tmp_path: Path) -> Path:
    """A copy of an artefact folder with ONNX and TFLite files; its default is an ONNX file."""
    copy = Path(shutil.copytree(finished_tflite / "phone", tmp_path / "phone"))
    made = read_artefacts(copy)
    files = [
        r.model_copy(update={"default": r.path == "onnx/model_int8.onnx"}) if r in made.models() else r
        for r in made.files
    ]
    (copy / "artifacts.json").write_text(made.model_copy(update={"files": files}).model_dump_json(exclude_none=True))
    return copy


@pytest.mark.parametrize("platform", ["web", "server"])
def test_one_model_file_that_verifies_and_answers_as_before(
    platform: str, folder: Path, cli: Cli, tmp_path: Path
) -> None:
    packed, path = tmp_path / platform, MODELS[platform]
    result = cli("pack", "-m", folder, "-o", packed, "--for", platform)
    assert result.exit_code == 0, result.output
    artefacts = read_artefacts(packed)
    assert artefacts.packed_for == platform
    assert [(r.path, r.default) for r in artefacts.models()] == [(path, True)]
    assert artefacts.aliases() == []
    names = set(tree(packed))
    assert names >= {"config.json", "tokenizer.json", "tokenizer_config.json", "golden.jsonl", "selftest.json", path}
    assert {"README.md", "model.safetensors"} & names == set()
    assert (packed / path).read_bytes() == (folder / "onnx/model_int8.onnx").read_bytes()
    before, after = read_golden(folder / "golden.jsonl"), read_golden(packed / "golden.jsonl")
    assert [r.outputs for r in after] == [{path: r.outputs["onnx/model_int8.onnx"]} for r in before]
    assert all(set(r.tolerance) == {path} for r in after)
    shutil.rmtree(folder)
    verified = api.verify(packed)
    assert verified.failures == []
    assert {g.name for g in verified.gates if g.file == path and g.passed and not g.skipped} >= {"golden", "reference"}
    text = before[0].text
    assert pocketbert.load(packed).predict([text])[0].label in artefacts.labels


@pytest.mark.parametrize("platform", ["web", "server"])
def test_damage_to_the_packed_folder_is_found(platform: str, folder: Path, cli: Cli, tmp_path: Path) -> None:
    packed = tmp_path / platform
    assert cli("pack", "-m", folder, "-o", packed, "--for", platform).exit_code == 0
    (packed / "selftest.json").write_text("{}")
    assert list_integrity_problems(packed, read_artefacts(packed)) == [
        "selftest.json: changed since it was packed (sha256 differs)"
    ]
    assert cli("verify", "-m", packed).exit_code == 3
    refused = cli("pack", "-m", folder, "-o", packed, "--for", platform)
    assert refused.exit_code == 2
    assert "--overwrite to replace" in refused.stderr
    assert cli("pack", "-m", folder, "-o", packed, "--for", platform, "--overwrite").exit_code == 0
    again = cli("pack", "-m", folder, "-o", packed, "--for", platform)
    assert "finished before with the same files" in again.stderr
    other = cli("pack", "-m", folder, "-o", packed, "--for", "android", "--overwrite")
    assert other.exit_code == 2
    assert "'pocketbert pack --for android' did not write" in other.stderr


def test_the_web_folder_has_fp32_where_there_is_no_int8_file(folder: Path, tmp_path: Path) -> None:
    made = read_artefacts(folder)
    without = [r for r in made.files if "int8" not in r.path and "quantized" not in r.path]
    for name in {r.path for r in made.files} - {r.path for r in without}:
        (folder / name).unlink()
    (folder / "artifacts.json").write_text(
        made.model_copy(update={"files": without}).model_dump_json(exclude_none=True)
    )
    packed = api.pack(folder, tmp_path / "web", platform="web")
    assert [r.path for r in read_artefacts(packed).models()] == ["onnx/model.onnx"]
    assert api.verify(packed).failures == []


def test_the_web_takes_no_file_that_transformers_js_cannot_name(folder: Path) -> None:
    made = read_artefacts(folder)
    first = next(r for r in made.models() if r.format is Format.ONNX)
    other = first.model_copy(update={"path": "onnx/model_w4.onnx", "scheme": Scheme.W4})
    for schemes, chosen in (((first, other), ["onnx/model.onnx"]), ((other,), [])):
        listed = made.model_copy(update={"files": list(schemes)})
        assert [r.path for r in Web().models(listed).models] == chosen


def test_ios_gets_the_package_of_the_default_file_s_scheme_and_the_sources(
    finished_coreml: Path, tmp_path: Path
) -> None:
    phone = Path(shutil.copytree(finished_coreml / "phone", tmp_path / "phone"))
    made, source = read_artefacts(phone), phone / "ios" / "Tokenizer.swift"
    source.parent.mkdir(exist_ok=True)
    source.write_text("// Swift")
    record = FileRecord(path="ios/Tokenizer.swift", sha256=sha256_file(source), bytes=8, kind=Kind.TOOL)
    more = made.model_copy(update={"files": [*made.files, record]})
    (phone / "artifacts.json").write_text(more.model_dump_json(exclude_none=True))
    packed = api.pack(phone, tmp_path / "ios", platform="ios")
    artefacts = read_artefacts(packed)
    [package] = [r for r in made.models() if r.format is Format.COREML and r.scheme is Scheme.W8]
    assert [r.path for r in artefacts.models()] == [package.path]
    assert (packed / "ios" / "Tokenizer.swift").read_text() == "// Swift"
    verified = api.verify(packed)
    assert verified.failures == []
    assert "golden" in {g.name for g in verified.gates if g.file == package.path and not g.skipped}


@pytest.mark.parametrize(
    ("platform", "has", "said"),
    [
        ("ios", [Format.ONNX, Format.TFLITE], "no Core ML package.*--format coreml"),
        ("web", [Format.TFLITE, Format.COREML], "no ONNX file.*--format onnx"),
        ("server", [Format.COREML], "neither an ONNX nor a TFLite file.*--format onnx"),
        ("server", [], "neither an ONNX nor a TFLite file"),
        ("android", [], "neither an ONNX nor a TFLite file"),
    ],
)
def test_a_folder_without_a_file_for_the_platform_is_refused(
    platform: str, has: list[Format], said: str, tmp_path: Path
) -> None:
    every = listed(TaskName.TEXT_CLASSIFICATION)
    some = every.model_copy(update={"files": [r for r in every.models() if r.format in has]})
    with pytest.raises(InputError, match=said) as refused:
        PLATFORMS[platform].choose(tmp_path, some)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("platform", ["android", "web"])
def test_more_inputs_than_the_text_are_refused_where_nothing_makes_them(platform: str, tmp_path: Path) -> None:
    every = listed(TaskName.TEXT_CLASSIFICATION)
    with pytest.raises(InputError, match=r"form 'language'.*--form text"):
        PLATFORMS[platform].choose(tmp_path, every.model_copy(update={"form": "language"}))


def test_every_platform_is_named_in_the_help_and_near_misses_are_named(cli: Cli, tmp_path: Path) -> None:
    helped = " ".join(cli("pack", "--help").stdout.split())
    assert all(name in helped for name in PLATFORMS)
    result = cli("pack", "-m", tmp_path, "-o", tmp_path / "x", "--for", "iso")
    assert result.exit_code == 2
    assert "did you mean 'ios'?" in result.stderr
