"""`pack --for android|ios|web|server`: the right files and nothing else, into a folder that may hold other things."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import pocketbert
from pocketbert import api
from pocketbert.core.artefacts import (
    Artefacts,
    FileRecord,
    Kind,
    list_integrity_problems,
    read_artefacts,
    write_artefacts,
)
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.pipeline.phone.platforms import PLATFORMS
from pocketbert.pipeline.phone.web_demo import write_page
from support.card_folders import folder as listed_folder
from support.folders import tree

ANDROID = {
    "artifacts.json",
    "config.json",
    "golden.jsonl",
    "golden_tokens.jsonl",
    "onnx/model_int8.onnx",
    "required_operators.config",
    "selftest.json",
    "tflite/model_int8.tflite",
    "tflite/model_int8_tflite216.tflite",
    "tokenizer.json",
}
MODELS = {"web": "onnx/model_quantized.onnx", "server": "onnx/model_int8.onnx"}
Cli = Callable[..., Any]
Pack = Callable[..., Any]


@pytest.fixture
def folder(finished_tflite: Path, tmp_path: Path) -> Path:
    """A copy of an artefact folder with ONNX and TFLite files, one of them for TFLite 2.16, which is not the default."""
    return Path(shutil.copytree(finished_tflite / "phone", tmp_path / "phone"))


@pytest.fixture
def onnx_first(folder: Path) -> Path:
    """The same with an ONNX file as the default."""
    made = read_artefacts(folder)
    relist(folder, [with_default(r, "onnx/model_int8.onnx") if r in made.models() else r for r in made.files])
    return folder


def with_default(record: Any, path: str) -> Any:
    return record.model_copy(update={"default": record.path == path})


def relist(folder: Path, files: Sequence[Any]) -> None:
    write_artefacts(folder, read_artefacts(folder).model_copy(update={"files": list(files)}))


@pytest.fixture
def pack(cli: Cli) -> Pack:
    """`pack(folder, output, *more, platform="android", code=0)`"""

    def call(folder: Path, output: Path, *more: str, platform: str = "android", code: int = 0) -> Any:
        result = cli("pack", "-m", folder, "-o", output, "--for", platform, *more)
        assert result.exit_code == code, result.output
        return result

    return call


def test_an_android_app_gets_the_files_that_it_opens_and_nothing_else(folder: Path, pack: Pack, tmp_path: Path) -> None:
    assets = tmp_path / "app" / "assets"
    told = pack(folder, assets, "--json")
    assert json.loads(told.stdout)["files"] == sorted(n for n in ANDROID if "/" in n)
    there = tree(assets)
    assert set(there) == ANDROID
    assert {name: Path(name).name.count(".") for name in there} == dict.fromkeys(there, 1)
    artefacts = read_artefacts(assets)
    assert artefacts.packed_for == "android"
    assert list_integrity_problems(assets, artefacts) == []
    paths = {r.path for r in artefacts.models()}
    assert [r.path for r in artefacts.models() if r.default] == ["tflite/model_int8.tflite"]
    same = ["config.json", "tokenizer.json", "golden_tokens.jsonl", *paths]
    assert {n: there[n] for n in same} == {n: (folder / n).read_bytes() for n in same}
    rows, all_rows = read_golden(assets / "golden.jsonl"), read_golden(folder / "golden.jsonl")
    assert [r.text for r in rows] == [r.text for r in all_rows]
    assert [r.outputs for r in rows] == [{p: v for p, v in r.outputs.items() if p in paths} for r in all_rows]
    assert all(set(r.tolerance) <= paths for r in rows)


def test_the_run_folder_gives_the_same_files(finished_tflite: Path, folder: Path, pack: Pack, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished_tflite, tmp_path / "run"))
    before = set(tree(run))
    pack(run, tmp_path / "a")
    pack(folder, tmp_path / "b")
    one, other = tree(tmp_path / "a"), tree(tmp_path / "b")
    del one["artifacts.json"], other["artifacts.json"]  # names the machine, with the cores of the process
    assert one == other
    assert set(tree(run)) == before


def test_other_files_of_an_assets_folder_stay_when_files_are_added_and_replaced(
    folder: Path, pack: Pack, tmp_path: Path
) -> None:
    assets = tmp_path / "assets"
    theirs = {name: f"theirs: {name}".encode() for name in ("fonts/inter.ttf", "onnx/theirs.onnx", "notes.txt")}
    for name, content in theirs.items():
        (assets / name).parent.mkdir(parents=True, exist_ok=True)
        (assets / name).write_bytes(content)
    pack(folder, assets)
    assert tree(assets) == {**tree(assets), **theirs}
    assert "finished before with the same files" in pack(folder, assets).stderr

    gone = "tflite/model_int8_tflite216.tflite"
    (folder / gone).unlink()
    relist(folder, [f for f in read_artefacts(folder).files if f.path != gone])
    assert "--overwrite" in pack(folder, assets, code=2).stderr
    pack(folder, assets, "--overwrite")
    assert set(tree(assets)) == (ANDROID | set(theirs)) - {gone}
    assert {n: tree(assets)[n] for n in theirs} == theirs
    assert "--runtime tflite216" in read_artefacts(assets).absent[gone]


def test_android_says_which_files_for_a_chip_it_leaves_out(folder: Path, pack: Pack, tmp_path: Path) -> None:
    own = "tflite/model_int8_tflite216.tflite"
    files = [
        f.model_copy(update={"runtime": Runtime.NPU}) if f.path == own else f for f in read_artefacts(folder).files
    ]
    relist(folder, files)
    assert f"left out: {own}, made for npu" in " ".join(pack(folder, tmp_path / "assets").stderr.split())


@pytest.mark.parametrize("name", ["config.json", "onnx/model_int8.onnx", "onnx", "artifacts.json"])
def test_a_file_of_theirs_under_one_of_our_names_is_never_replaced(
    name: str, folder: Path, pack: Pack, tmp_path: Path
) -> None:
    assets = tmp_path / "assets"
    (assets / name).parent.mkdir(parents=True)
    (assets / name).write_text("{}")
    assert name in pack(folder, assets, "--overwrite", code=2).stderr
    assert tree(assets) == {name: b"{}"}


def test_a_link_in_place_of_a_folder_is_not_followed(folder: Path, pack: Pack, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "onnx").symlink_to(tmp_path / "elsewhere")
    pack(folder, tmp_path / "assets", code=2)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_that_this_platform_s_pack_did_not_write_stays_as_it_is(
    folder: Path, pack: Pack, tmp_path: Path
) -> None:
    pack(folder, tmp_path / "web", platform="web")
    shutil.copytree(folder, tmp_path / "other")
    for output in (tmp_path / "web", tmp_path / "other"):
        before = tree(output)
        said = pack(folder, output, "--overwrite", code=2).stderr
        assert "'pocketbert pack --for android' did not write" in said
        assert tree(output) == before


def test_a_changed_or_missing_file_is_refused(folder: Path, pack: Pack, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    (folder / "golden_tokens.jsonl").unlink()
    said = pack(folder, tmp_path / "assets", code=2).stderr
    assert "tokenizer.json: changed since it was packed" in said
    assert "golden_tokens.jsonl: listed, but not there" in said
    assert not (tmp_path / "assets").exists()


def test_the_operators_are_those_of_the_file_and_of_what_onnx_runtime_makes_of_it(
    folder: Path, pack: Pack, tmp_path: Path
) -> None:
    import onnx
    from onnxruntime.tools.reduced_build_config_parser import parse_config

    pack(folder, tmp_path / "assets")
    config = tmp_path / "assets" / "required_operators.config"
    operators, _ = parse_config(str(config))  # by ONNX Runtime's own reader
    stored = {n.op_type for n in onnx.load(str(folder / "onnx" / "model_int8.onnx")).graph.node}
    assert stored <= set(operators["ai.onnx"][20])
    # of two operators that are fused when the file is opened
    assert "DynamicQuantizeMatMul" in operators["com.microsoft"][1]
    assert "model_int8.onnx" in config.read_text().splitlines()[0]


def test_without_onnx_the_list_of_operators_is_left_out_and_that_is_recorded(
    folder: Path, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.pipeline.phone import platforms

    monkeypatch.setattr(platforms, "version_of", lambda name: None)
    pack(folder, tmp_path / "assets")
    assert set(tree(tmp_path / "assets")) == ANDROID - {"required_operators.config"}
    assert "pip install" in read_artefacts(tmp_path / "assets").absent["required_operators.config"]


def test_a_killed_pack_is_finished_by_the_next_command(
    folder: Path, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.core.disk import workspace

    assets, moved = tmp_path / "assets", list[str]()
    assets.mkdir()
    (assets / "theirs.txt").write_text("theirs")
    replace = workspace.replace_file

    def kill(source: Path, destination: Path) -> None:
        if len(moved) == 3:
            raise KeyboardInterrupt
        moved.append(destination.name)
        replace(source, destination)

    with monkeypatch.context() as patch:
        patch.setattr(workspace, "replace_file", kill)
        patch.setattr(workspace.Workspace, "discard", lambda self: None)
        pack(folder, assets, code=130)
    assert not (assets / "artifacts.json").exists()
    assert len(list(assets.rglob("*"))) > 3
    pack(folder, assets)
    assert set(tree(assets)) == ANDROID | {"theirs.txt"}
    assert list_integrity_problems(assets, read_artefacts(assets)) == ["theirs.txt: there, but not listed"]


# web, server, ios: one model file that verifies and predicts without the folder that it was made from


@pytest.mark.parametrize("platform", MODELS)
def test_one_model_file_that_verifies_and_answers_as_before(
    platform: str, onnx_first: Path, pack: Pack, tmp_path: Path
) -> None:
    packed, path = tmp_path / platform, MODELS[platform]
    pack(onnx_first, packed, platform=platform)
    artefacts = read_artefacts(packed)
    assert artefacts.packed_for == platform
    assert [(r.path, r.default) for r in artefacts.models()] == [(path, True)]
    assert artefacts.aliases() == []
    names = set(tree(packed))
    assert names >= {"config.json", "tokenizer.json", "tokenizer_config.json", "golden.jsonl", "selftest.json", path}
    assert {"README.md", "model.safetensors"} & names == set()
    assert (packed / path).read_bytes() == (onnx_first / "onnx/model_int8.onnx").read_bytes()
    before, after = read_golden(onnx_first / "golden.jsonl"), read_golden(packed / "golden.jsonl")
    assert [r.outputs for r in after] == [{path: r.outputs["onnx/model_int8.onnx"]} for r in before]
    assert all(set(r.tolerance) == {path} for r in after)
    shutil.rmtree(onnx_first)
    verified = api.verify(packed)
    assert verified.failures == []
    assert {g.name for g in verified.gates if g.file == path and g.passed and not g.skipped} >= {"golden", "reference"}
    assert pocketbert.load(packed).predict([before[0].text])[0].label in artefacts.labels


def test_damage_to_the_packed_folder_is_found_and_repaired_when_asked(
    folder: Path, cli: Cli, pack: Pack, tmp_path: Path
) -> None:
    packed = tmp_path / "web"
    pack(folder, packed, platform="web")
    (packed / "selftest.json").write_text("{}")
    assert list_integrity_problems(packed, read_artefacts(packed)) == [
        "selftest.json: changed since it was packed (sha256 differs)"
    ]
    assert cli("verify", "-m", packed).exit_code == 3
    assert "--overwrite to replace" in pack(folder, packed, platform="web", code=2).stderr
    pack(folder, packed, "--overwrite", platform="web")
    assert "finished before with the same files" in pack(folder, packed, platform="web").stderr


def test_ios_gets_the_package_of_the_default_file_s_scheme_and_the_sources(
    finished_coreml: Path, tmp_path: Path
) -> None:
    phone = Path(shutil.copytree(finished_coreml / "phone", tmp_path / "phone"))
    made, source = read_artefacts(phone), phone / "ios" / "Own.swift"
    source.parent.mkdir(exist_ok=True)
    source.write_text("// Swift")
    relist(phone, [*made.files, FileRecord(path="ios/Own.swift", sha256=sha256_file(source), bytes=8, kind=Kind.TOOL)])
    packed = api.pack(phone, tmp_path / "ios", platform="ios")
    [package] = [r for r in made.models() if r.format is Format.COREML and r.scheme is Scheme.W8]
    assert [r.path for r in read_artefacts(packed).models()] == [package.path]
    assert (packed / "ios" / "Own.swift").read_text() == "// Swift"
    verified = api.verify(packed)
    assert verified.failures == []
    assert "golden" in {g.name for g in verified.gates if g.file == package.path and not g.skipped}


# which files are chosen, and what has none


def choose(platform: str, folder: Path, files: Sequence[Any]) -> list[str]:
    artefacts = read_artefacts(folder).model_copy(update={"files": list(files)})
    return [r.path for r in PLATFORMS[platform].choose(folder, artefacts).models]


def test_android_gets_the_scheme_of_the_default_file_and_the_web_what_transformers_js_can_name(folder: Path) -> None:
    artefacts = read_artefacts(folder)
    models = artefacts.models()
    none = [r for r in artefacts.files if r not in models and r not in artefacts.aliases()]
    exact = [*none, *(with_default(r, "onnx/model.onnx") for r in models)]
    assert choose("android", folder, exact) == ["onnx/model.onnx", "tflite/model.tflite"]
    onnx = [r for r in models if r.format is Format.ONNX]
    assert choose("android", folder, [*none, *onnx]) == ["onnx/model.onnx"]  # the first one, where none is marked
    only_w8 = [r.model_copy(update={"scheme": Scheme.W8}) for r in models if r.default]
    assert choose("android", folder, [*none, *only_w8]) == ["tflite/model_int8.tflite"]

    w4 = onnx[0].model_copy(update={"path": "onnx/model_w4.onnx", "scheme": Scheme.W4})
    assert choose("web", folder, [*none, onnx[0], w4]) == ["onnx/model.onnx"]
    with pytest.raises(InputError, match="no ONNX file in fp32 or int8"):
        choose("web", folder, [*none, w4])


def only(*formats: Format) -> Artefacts:
    every = listed_folder(TaskName.TEXT_CLASSIFICATION)
    return every.model_copy(update={"files": [r for r in every.models() if r.format in formats]})


@pytest.mark.parametrize(
    ("platform", "has", "said"),
    [
        ("ios", only(Format.ONNX, Format.TFLITE), "no Core ML package.*--format coreml"),
        ("web", only(Format.TFLITE, Format.COREML), "no ONNX file.*--format onnx"),
        ("server", only(Format.COREML), "neither an ONNX nor a TFLite file.*--format onnx"),
        ("server", only(), "neither an ONNX nor a TFLite file"),
        ("web-demo", only(Format.COREML), "neither an ONNX nor a TFLite file.*browsers run these"),
        ("android", only(Format.COREML), "neither an ONNX nor a TFLite file"),
        ("android", only(), "neither an ONNX nor a TFLite file"),
        # inputs beside the text, which nothing makes there
        ("android", only(*Format).model_copy(update={"form": "language"}), "form 'language'.*--form text"),
        ("web", only(*Format).model_copy(update={"form": "language"}), "form 'language'.*--form text"),
        ("web-demo", only(*Format).model_copy(update={"form": "language"}), "form 'language'.*--form text"),
    ],
)
def test_a_folder_without_a_file_for_the_platform_is_refused(
    platform: str, has: Artefacts, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said) as refused:
        PLATFORMS[platform].choose(tmp_path, has)
    assert str(tmp_path) in str(refused.value)


def test_every_platform_is_named_in_the_help_and_near_misses_are_named(cli: Cli, pack: Pack, tmp_path: Path) -> None:
    helped = " ".join(cli("pack", "--help").stdout.split())
    assert all(name in helped for name in PLATFORMS)
    assert "did you mean 'ios'?" in pack(tmp_path, tmp_path / "x", platform="iso", code=2).stderr


def test_a_page_without_its_engines_is_not_written(
    folder: Path, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = read_artefacts(folder).models()
    chosen = choose("web-demo", folder, read_artefacts(folder).files)
    assert chosen[0] == read_artefacts(folder).default_model().path
    assert sorted(chosen) == sorted(r.path for r in models if r.format in (Format.ONNX, Format.TFLITE) and r.plain)
    monkeypatch.setenv("POCKETBERT_WEB_LIBRARIES", str(tmp_path / "none"))
    said = pack(folder, tmp_path / "site", platform="web-demo", code=4).stderr
    assert "npm pack @litertjs/core" in " ".join(said.split())
    assert not (tmp_path / "site").exists()


def test_other_settings_of_the_same_files_are_another_version_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketbert.pipeline.phone.web_demo.find_libraries", dict)
    workers = []
    for number, prompts in enumerate([{}, {}, {"query": "query: "}]):
        made = listed_folder(TaskName.TEXT_CLASSIFICATION, prompts=prompts)
        write_page([], tmp_path / str(number), made)
        workers.append((tmp_path / str(number) / "sw.js").read_text(encoding="utf-8"))
    assert workers[0] == workers[1] != workers[2]
    assert "${registration.scope}" in workers[0]
