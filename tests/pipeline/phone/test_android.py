"""`pack --for android`: the right files and nothing else, into a folder that may hold other things."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.artefacts import Artefacts, list_integrity_problems, read_artefacts
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.errors import InputError
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.phone.platforms import PLATFORMS
from support.folders import tree

PACKED = {
    "artifacts.json",
    "config.json",
    "golden.jsonl",
    "golden_tokens.jsonl",
    "onnx/model_int8.onnx",
    "required_operators.config",
    "tflite/model_int8.tflite",
    "tflite/model_int8_tflite216.tflite",
    "tokenizer.json",
}
Cli = Callable[..., Any]


@pytest.fixture
def folder(finished_tflite: Path, tmp_path: Path) -> Path:
    """A copy of an artefact folder with ONNX and TFLite files, one of them for TFLite 2.16."""
    return Path(shutil.copytree(finished_tflite / "phone", tmp_path / "phone"))


def packed(cli: Cli, folder: Path, output: Path, *more: str) -> Any:
    return cli("pack", "-m", folder, "-o", output, "--for", "android", *more)


def test_an_app_gets_the_files_that_it_opens_and_nothing_else(folder: Path, cli: Cli, tmp_path: Path) -> None:
    assets = tmp_path / "app" / "assets"
    result = packed(cli, folder, assets)
    assert result.exit_code == 0, result.output
    there = tree(assets)
    assert set(there) == PACKED
    assert {name: Path(name).name.count(".") for name in there} == dict.fromkeys(there, 1)
    artefacts = read_artefacts(assets)
    assert artefacts.packed_for == "android"
    assert list_integrity_problems(assets, artefacts) == []
    assert [r.path for r in artefacts.models() if r.default] == ["tflite/model_int8.tflite"]
    same = ["config.json", "tokenizer.json", "golden_tokens.jsonl", *(r.path for r in artefacts.models())]
    assert {n: there[n] for n in same} == {n: (folder / n).read_bytes() for n in same}
    rows, all_rows = read_golden(assets / "golden.jsonl"), read_golden(folder / "golden.jsonl")
    paths = {r.path for r in artefacts.models()}
    assert [r.text for r in rows] == [r.text for r in all_rows]
    assert [r.outputs for r in rows] == [{p: v for p, v in r.outputs.items() if p in paths} for r in all_rows]
    assert all(set(r.tolerance) <= paths for r in rows)


def test_the_run_folder_gives_the_same_files(finished_tflite: Path, folder: Path, cli: Cli, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished_tflite, tmp_path / "run"))
    before = set(tree(run))
    assert packed(cli, run, tmp_path / "a").exit_code == packed(cli, folder, tmp_path / "b").exit_code == 0
    one, other = tree(tmp_path / "a"), tree(tmp_path / "b")
    listed = [read_artefacts(tmp_path / name) for name in "ab"]
    assert [a.files for a in listed[:1]] == [a.files for a in listed[1:]]
    del one["artifacts.json"], other["artifacts.json"]  # names the machine, with the cores of the process
    assert one == other
    assert set(tree(run)) == before


def test_other_files_of_an_assets_folder_stay_when_files_are_added_and_replaced(
    folder: Path, cli: Cli, tmp_path: Path
) -> None:
    assets = tmp_path / "assets"
    for name in ("fonts/inter.ttf", "onnx/theirs.onnx", "notes.txt"):
        (assets / name).parent.mkdir(parents=True, exist_ok=True)
        (assets / name).write_text(f"theirs: {name}")
    theirs = tree(assets)
    assert packed(cli, folder, assets).exit_code == 0
    assert tree(assets) == {**tree(assets), **theirs}
    again = packed(cli, folder, assets)
    assert again.exit_code == 0
    assert "finished before with the same files" in again.stderr

    (folder / "tflite" / "model_int8_tflite216.tflite").unlink()
    listed = read_artefacts(folder)
    kept = [f for f in listed.files if "tflite216" not in f.path]
    without = listed.model_copy(update={"files": kept})
    (folder / "artifacts.json").write_text(without.model_dump_json(exclude_none=True))
    refused = packed(cli, folder, assets)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    assert packed(cli, folder, assets, "--overwrite").exit_code == 0
    assert set(tree(assets)) == (PACKED | set(theirs)) - {"tflite/model_int8_tflite216.tflite"}
    assert {n: tree(assets)[n] for n in theirs} == theirs
    assert "--runtime tflite216" in read_artefacts(assets).absent["tflite/model_int8_tflite216.tflite"]


@pytest.mark.parametrize("name", ["config.json", "onnx/model_int8.onnx", "onnx", "artifacts.json"])
def test_a_file_of_theirs_under_one_of_our_names_is_never_replaced(
    name: str, folder: Path, cli: Cli, tmp_path: Path
) -> None:
    assets = tmp_path / "assets"
    (assets / name).parent.mkdir(parents=True)
    (assets / name).write_text("{}")
    result = packed(cli, folder, assets, "--overwrite")
    assert result.exit_code == 2
    assert name in result.stderr
    assert tree(assets) == {name: b"{}"}


def test_a_link_in_place_of_a_folder_is_not_followed(folder: Path, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "onnx").symlink_to(tmp_path / "elsewhere")
    assert packed(cli, folder, tmp_path / "assets").exit_code == 2
    assert not list((tmp_path / "elsewhere").iterdir())


def test_an_artefact_folder_is_not_taken_for_an_earlier_pack(folder: Path, cli: Cli, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    before = tree(other)
    result = packed(cli, folder, other, "--overwrite")
    assert result.exit_code == 2
    assert "did not write" in result.stderr
    assert tree(other) == before


def test_a_changed_or_missing_file_is_refused(folder: Path, cli: Cli, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    (folder / "golden_tokens.jsonl").unlink()
    result = packed(cli, folder, tmp_path / "assets")
    assert result.exit_code == 2
    assert "tokenizer.json: changed since it was packed" in result.stderr
    assert "golden_tokens.jsonl: listed, but not there" in result.stderr
    assert not (tmp_path / "assets").exists()


def test_an_unknown_platform_is_refused(folder: Path, cli: Cli, tmp_path: Path) -> None:
    result = cli("pack", "-m", folder, "-o", tmp_path / "assets", "--for", "andriod")
    assert result.exit_code == 2
    assert "android" in result.stderr


def chosen(artefacts: Artefacts, folder: Path, **changes: Any) -> list[str]:
    return [r.path for r in PLATFORMS["android"].choose(folder, artefacts.model_copy(update=changes)).models]


def test_the_scheme_of_the_default_file_decides(folder: Path) -> None:
    artefacts = read_artefacts(folder)
    exact = [
        r.model_copy(update={"default": r.path == "onnx/model.onnx"}) if r in artefacts.models() else r
        for r in artefacts.files
    ]
    assert chosen(artefacts, folder, files=exact) == ["onnx/model.onnx", "tflite/model.tflite"]
    onnx = [r for r in artefacts.files if getattr(r, "format", Format.ONNX) is Format.ONNX]
    assert chosen(artefacts, folder, files=onnx) == ["onnx/model.onnx"]  # the first one, where none is marked
    none = [r for r in artefacts.files if r not in artefacts.models() and r not in artefacts.aliases()]
    only_w8 = [r.model_copy(update={"scheme": Scheme.W8}) for r in artefacts.models() if r.default]
    assert chosen(artefacts, folder, files=[*none, *only_w8]) == ["tflite/model_int8.tflite"]
    coreml = [r.model_copy(update={"format": Format.COREML}) for r in artefacts.models()]
    with pytest.raises(InputError, match="neither an ONNX nor a TFLite file"):
        PLATFORMS["android"].choose(folder, artefacts.model_copy(update={"files": [*none, *coreml]}))


def test_files_with_further_inputs_are_refused(folder: Path) -> None:
    artefacts = read_artefacts(folder)
    with pytest.raises(InputError, match=r"form 'language'.*--form text"):
        PLATFORMS["android"].choose(folder, artefacts.model_copy(update={"form": "language"}))


def test_the_operators_are_those_of_the_file_and_of_what_onnx_runtime_makes_of_it(
    folder: Path, cli: Cli, tmp_path: Path
) -> None:
    import onnx
    from onnxruntime.tools.reduced_build_config_parser import parse_config

    assert packed(cli, folder, tmp_path / "assets").exit_code == 0
    config = tmp_path / "assets" / "required_operators.config"
    operators, _ = parse_config(str(config))  # by ONNX Runtime's own reader
    stored = {n.op_type for n in onnx.load(str(folder / "onnx" / "model_int8.onnx")).graph.node}
    assert stored <= set(operators["ai.onnx"][20])
    # of two operators that are fused when the file is opened
    assert "DynamicQuantizeMatMul" in operators["com.microsoft"][1]
    assert "model_int8.onnx" in config.read_text().splitlines()[0]


def test_without_onnx_the_list_of_operators_is_left_out_and_that_is_recorded(
    folder: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.pipeline.phone import platforms as operators

    monkeypatch.setattr(operators, "version_of", lambda name: None)
    result = packed(cli, folder, tmp_path / "assets")
    assert result.exit_code == 0, result.output
    assert set(tree(tmp_path / "assets")) == PACKED - {"required_operators.config"}
    assert "pip install" in read_artefacts(tmp_path / "assets").absent["required_operators.config"]


def test_a_killed_pack_is_finished_by_the_next_command(
    folder: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.core.disk import workspace as filling

    assets, moved = tmp_path / "assets", list[str]()
    assets.mkdir()
    (assets / "theirs.txt").write_text("theirs")
    replace = filling.replace_file

    def killed(source: Path, destination: Path) -> None:
        if len(moved) == 3:
            raise KeyboardInterrupt
        moved.append(destination.name)
        replace(source, destination)

    monkeypatch.setattr(filling, "replace_file", killed)
    monkeypatch.setattr("pocketbert.core.disk.workspace.Workspace.discard", lambda self: None)
    assert packed(cli, folder, assets).exit_code == 130
    monkeypatch.undo()
    assert not (assets / "artifacts.json").exists()
    assert len(list(assets.rglob("*"))) > 3
    assert packed(cli, folder, assets).exit_code == 0
    assert set(tree(assets)) == PACKED | {"theirs.txt"}
    assert list_integrity_problems(assets, read_artefacts(assets)) == ["theirs.txt: there, but not listed"]


def test_json_lists_the_model_files(folder: Path, cli: Cli, tmp_path: Path) -> None:
    result = packed(cli, folder, tmp_path / "assets", "--json")
    assert json.loads(result.stdout)["files"] == sorted(n for n in PACKED if "/" in n)
