"""An artefact folder with Core ML packages: what is in it, what opens it, and recipes that no iOS could open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

import pocketbert
from pocketbert import api
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.model_files import _WEIGHT_FILE

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]

FP16, W8 = "coreml/Model.mlpackage", "coreml/Model_w8.mlpackage"
FILES = (FP16, W8)
ONNX = ("onnx/model.onnx", "onnx/model_int8.onnx")
TEXTS = ["please dim the bulb", "a nice old song", "wake the friend at", "the big album in my room"]


@pytest.fixture
def phone(finished_coreml: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_coreml / "phone", tmp_path / "phone"))


def test_what_is_in_the_folder(finished_coreml: Path) -> None:
    phone = finished_coreml / "phone"
    assert {p.name for p in (phone / "coreml").iterdir()} - {"benchmark_on_mac.py"} == {Path(f).name for f in FILES}
    listed = json.loads((phone / "artifacts.json").read_text())
    records = {r["path"]: r for r in listed["files"]}
    assert [p for p in records if ".mlpackage" in p] == list(FILES)
    assert [p for p, r in records.items() if r.get("default")] == [W8]
    for file, scheme in zip(FILES, ("fp16", "w8"), strict=True):
        record = records[file]
        assert (
            record["sha256"]
            == sha256_path(phone / file)
            == sha256_path(finished_coreml / ("coreml" if file == FP16 else "coreml-w8") / Path(file).name)
        )
        assert record["bytes"] == sum(p.stat().st_size for p in (phone / file).rglob("*") if p.is_file())
        assert (record["kind"], record["format"], record["scheme"]) == ("model", "coreml", scheme)
        assert record["status"] == "passed"
        [seen] = record["seen_right"]
        assert (seen["engine"], seen["provenance"]) == ("coreml-reference", "emulated")
        assert record["signature"]["lengths"] == [16, 32, 40]
        assert {t["dtype"] for t in record["signature"]["inputs"]} == {"int32"}
        assert [t["name"] for t in record["signature"]["outputs"]] == ["logits"]
        assert set(record["scores"]) == {"eval"}
    for file in ONNX:
        assert [s["provenance"] for s in records[file]["seen_right"]] == ["measured"]


def test_golden_rows_are_recorded_for_packages(finished_coreml: Path) -> None:
    from pocketbert.core.compare.golden import read_golden

    rows = read_golden(finished_coreml / "phone" / "golden.jsonl")
    for row in rows:
        assert set(row.outputs) == set(row.tolerance) == {*FILES, *ONNX}
        assert row.tolerance[ONNX[0]] < row.tolerance[FP16] <= row.tolerance[W8]


def test_the_card_says_what_was_not_measured(finished_coreml: Path) -> None:
    card = (finished_coreml / "phone" / "README.md").read_text()
    assert (
        f"Scores of `{FP16}`, `{W8}`: provenance emulated; the project's evaluator computed them, not Core ML." in card
    )
    assert "Core ML packages were checked by the project's evaluator, without a Mac." in card
    [swift] = [s for s in card.split("```swift\n")[1:] if "import CoreML" in s]
    assert 'forResource: "Model_w8"' in swift
    assert "[16, 32, 40].first" in swift
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        assert f'"{name}": try array(' in swift
    assert 'featureValue(for: "classLabel")' in swift


def test_every_way_to_open_a_package_gives_the_labels_of_onnx(cli: Cli, finished_coreml: Path) -> None:
    phone = finished_coreml / "phone"
    want = pocketbert.load(phone, format="onnx", scheme="fp32").predict(TEXTS)
    assert len({a.label for a in want}) > 1
    for arguments in ({}, {"format": "coreml"}, {"format": "coreml", "scheme": "fp16"}, {"file": FP16}):
        opened = pocketbert.load(phone, **arguments)
        assert opened.record.path == (FP16 if len(arguments) == 2 or "file" in arguments else W8)
        for answer, row in zip(opened.predict(TEXTS), want, strict=True):
            assert answer.label == row.label
            assert list(answer.scores.values()) == pytest.approx(list(row.scores.values()), abs=0.02)
    said = cli("predict", "-m", phone, "--format", "coreml", *TEXTS)
    assert said.exit_code == 0, said.output
    assert [line.split("\t")[0] for line in said.stdout.splitlines()] == [a.label for a in want]


def test_a_format_alone_opens_its_file_of_the_default_scheme(finished_coreml: Path, phone: Path) -> None:
    assert pocketbert.load(finished_coreml / "phone", format="onnx").record.path == ONNX[1]
    assert pocketbert.load(finished_coreml / "phone", format="coreml", scheme="int8").record.path == W8
    content = json.loads((phone / "artifacts.json").read_text())
    for record in content["files"]:  # as `pocketbert export` lists it, ONNX first
        record["default"] = record["path"] == ONNX[1]
    (phone / "artifacts.json").write_text(json.dumps(content))
    assert pocketbert.load(phone, format="coreml").record.path == W8


def test_the_fastest_engine_of_a_folder_whose_default_is_not_timed_here(finished_coreml: Path) -> None:
    opened = pocketbert.load(finished_coreml / "phone", engine="fastest")
    assert opened.predict(TEXTS[0])[0].label == "lamp"


def test_nothing_of_core_ml_is_timed(cli: Cli, task: Any, finished_coreml: Path, tmp_path: Path) -> None:
    target = tmp_path / "benchmark.json"
    result = cli(
        "benchmark",
        "-m",
        finished_coreml / "phone",
        "-o",
        target,
        "--threads",
        "1",
        "--lengths",
        "16",
        "--runs",
        "10",
        "--repeats",
        "2",
        "--budget",
        "2",
    )
    assert result.exit_code == 0, result.output
    measured = json.loads(target.read_text())
    assert [v["name"] for v in measured["variants"]] == list(ONNX)
    assert "mlpackage" not in target.read_text()
    recipe = api.load_recipe(task.recipe, ["export.formats=[coreml]", "benchmark={threads: [1]}"])
    assert "benchmark" not in [s.name for s in api.plan(recipe, tmp_path / "run")]


def test_a_package_that_coremltools_opened_is_still_the_one_that_was_packed(cli: Cli, phone: Path) -> None:
    import coremltools

    for file in FILES:  # as benchmark_on_mac.py and the engine on a Mac do
        coremltools.models.MLModel(str(phone / file), skip_model_load=True)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("what", ["changed", "missing", "additional", "renamed", "gone"])
def test_integrity_inside_a_package(cli: Cli, phone: Path, what: str) -> None:
    weights = phone / W8 / "Data" / _WEIGHT_FILE
    if what == "changed":
        raw = bytearray(weights.read_bytes())
        raw[-1] ^= 1
        weights.write_bytes(raw)
    elif what == "missing":
        (phone / W8 / "Manifest.json").unlink()
    elif what == "additional":
        (weights.parent / ".DS_Store").write_bytes(b"")  # no byte more
    elif what == "renamed":
        weights.rename(weights.with_name("weights.bin"))
    else:
        shutil.rmtree(phone / W8)
    result = cli("verify", "-m", phone)
    assert "Traceback" not in result.output
    if what in ("missing", "renamed"):  # it cannot be opened either
        assert result.exit_code in (2, 3), result.output
        assert "Model_w8.mlpackage" in result.stderr
        return
    assert result.exit_code == 3, result.output
    said = "listed, but not there" if what == "gone" else "changed since it was packed (sha256 differs)"
    assert f"gate 'integrity' failed: {W8}: {said}" in result.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ["export.coreml={ios: 17, shapes: enumerated}"],
            "shapes 'enumerated' needs ios 18, this is ios 17; possible here: ranged, fixed",
        ),
        (
            ["export.coreml={ios: 16, shapes: ranged}"],
            "shapes 'ranged' needs ios 17, this is ios 16; possible here: fixed",
        ),
        (["export.coreml.ios=15"], "export.coreml.ios"),
        (["export.coreml.precision=int8"], "export.coreml: precision 'int8' is not fp16 or fp32"),
        (["export.coreml.layout=wide"], "export.coreml.layout"),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else "",
)
def test_a_package_that_no_ios_opens_is_refused_before_anything_is_made(
    cli: Cli, task: Any, tmp_path: Path, changes: list[str], said: str
) -> None:
    result = cli("run", task.recipe, "export.formats=[coreml]", *changes, "-o", tmp_path / "run")
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not (tmp_path / "run").exists()


def test_an_engine_that_miscomputes_a_package_is_refused(
    cli: Cli, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.runtime.coreml.predictor import CoremlPredictor

    right = CoremlPredictor.run
    monkeypatch.setattr(
        CoremlPredictor,
        "run",
        lambda self, inputs: {k: v * np.float32(0.6) for k, v in right(self, inputs).items()},
    )
    result = cli("predict", "-m", phone, "turn the lamp on")
    assert result.exit_code == 3
    assert f"{W8}: coreml-reference " in result.stderr
    assert "computes this file wrongly on this machine" in result.stderr
