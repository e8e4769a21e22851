"""Any fine-tuned Hugging Face folder into an artefact folder: offline, without recipe, data or distillation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError
from support.classifiers import expected
from support.folders import tree
from support.tiny import BASIC as FAMILIES
from support.tiny import NAMES, write_bert

Cli = Callable[..., Any]
TEXTS = [*SENTENCES[:12], SENTENCES[-2]]


@pytest.mark.parametrize("family", FAMILIES)
def test_export(family: str, model: Callable[..., Path], pb: Any, tmp_path: Path) -> None:
    source, output = model(family), tmp_path / "phone"
    before = tree(source)
    if family == "bert":  # once as a user does it
        done = pb("export", "-m", source, "-o", output, "--format", "onnx")
        assert done.returncode == 0, done.stderr
        assert f"{output}/onnx/model_int8.onnx  " in done.stdout
        assert done.stdout.splitlines()[-1].startswith(f"model card: {output}/README.md")
        assert "onnx/model.onnx: differs from transformers by " in done.stderr
    else:
        api.export(str(source), output, ExportOptions(formats=["onnx"]))
    assert tree(source) == before
    assert [p.name for p in tmp_path.iterdir() if p.name != "pocketbert-cache"] == ["phone"]

    parity = json.loads((output / "parity.json").read_text())
    assert [p["passed"] for p in parity] == [True, True]
    assert all(p["worst"] < 1e-4 < p["mask_effect"] for p in parity)
    listed = json.loads((output / "artifacts.json").read_text())
    assert {r["path"] for r in listed["files"]} | {"artifacts.json"} == set(tree(output))
    for platform in ("android/", "ios/"):  # sources of a tokenizer
        assert {r["kind"] for r in listed["files"] if r["path"].startswith(platform)} == {"tool"}
    assert listed["family"] == family
    assert listed["labels"] == list(NAMES)
    card = (output / "README.md").read_text()
    for said in ("onnx/model_int8.onnx", "`positive`", "no task score was measured", "pocketbert.load"):
        assert said in card
    assert (output / "onnx/model_quantized.onnx").read_bytes() == (output / "onnx/model_int8.onnx").read_bytes()

    texts = [t for t in TEXTS if len(t) < 200] if family == "roberta" else [t for t in TEXTS if len(t) < 50]
    want = expected(source, texts)
    opened = pocketbert.load(output, scheme="fp32")
    for answer, row in zip(opened.predict(texts), want, strict=True):
        assert not answer.truncated
        assert list(answer.scores) == list(NAMES)
        assert np.allclose(list(answer.scores.values()), row, atol=1e-4)
        assert answer.label == NAMES[int(row.argmax())]
    default = pocketbert.load(output)
    assert default.record.path == "onnx/model_int8.onnx"
    same = [a.label == NAMES[int(r.argmax())] for a, r in zip(default.predict(texts), want, strict=True)]
    assert np.mean(same) >= 0.75  # a random model has close calls
    assert api.verify(output).status == "passed"


@pytest.mark.parametrize("family", FAMILIES[:3])
def test_an_untrained_model_is_no_parity_failure(family: str, model: Callable[..., Path], tmp_path: Path) -> None:
    # its answers differ by a thousandth of the logits: measured by that alone, rounding would look like an error
    api.export(str(model(family, 0.0)), tmp_path / "phone", ExportOptions(schemes=["fp32"], formats=["onnx"]))
    parity = json.loads((tmp_path / "phone" / "parity.json").read_text())
    assert all(p["worst"] < 1e-4 for p in parity)
    assert all(p["mask_effect"] > 100 * p["bound"] for p in parity)  # a lost mask would still be seen


@pytest.fixture(scope="session")
def fp32_folder(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported folder with the fp32 file alone; read-only by convention."""
    folder = tmp_path_factory.mktemp("exported") / "phone"
    api.export(str(model("bert")), folder, ExportOptions(schemes=["fp32"], formats=["onnx"]))
    return folder


def test_the_same_command_again(cli: Cli, model: Callable[..., Path], fp32_folder: Path) -> None:
    before = tree(fp32_folder)
    again = cli("export", "-m", model("bert"), "-o", fp32_folder, "--scheme", "fp32", "--format", "onnx")
    assert again.exit_code == 0, again.output
    assert f"{fp32_folder}: finished before with the same model and settings, skipped" in again.stderr
    assert tree(fp32_folder) == before


def test_other_settings_need_overwrite(cli: Cli, model: Callable[..., Path], fp32_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(fp32_folder, tmp_path / "phone"))
    before = tree(folder)
    for more in (["--scheme", "int8"], ["--scheme", "fp32", "--max-length", "32"], ["--format", "tflite"]):
        result = cli("export", "-m", model("bert"), "-o", folder, "--format", "onnx", *more)
        assert result.exit_code == 2
        assert f"{folder}: exists and holds something else; nothing was written." in result.stderr
        assert tree(folder) == before
    replaced = cli(
        "export",
        "-m",
        model("bert"),
        "-o",
        folder,
        "--format",
        "onnx",
        "--scheme",
        "fp32",
        "--max-length",
        "32",
        "--overwrite",
    )
    assert replaced.exit_code == 0, replaced.output
    assert json.loads((folder / "artifacts.json").read_text())["processing"]["max_length"] == 32
    assert pocketbert.load(folder).predict("please " * 40)[0].truncated
    assert list(tmp_path.glob(".*")) == []


def test_quantize_adds_the_int8_file(cli: Cli, fp32_folder: Path, tmp_path: Path) -> None:
    assert not (fp32_folder / "onnx" / "model_int8.onnx").exists()
    before = tree(fp32_folder)
    result = cli("quantize", "-m", fp32_folder, "-o", tmp_path / "small", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["files"] == ["onnx/model.onnx", "onnx/model_int8.onnx"]
    assert (tmp_path / "small" / "onnx" / "model.onnx").read_bytes() == (
        fp32_folder / "onnx" / "model.onnx"
    ).read_bytes()
    assert tree(fp32_folder) == before
    assert cli("verify", "-m", tmp_path / "small").exit_code == 0
    assert "finished before" in cli("quantize", "-m", fp32_folder, "-o", tmp_path / "small").stderr
    itself = cli("quantize", "-m", fp32_folder, "-o", fp32_folder)
    assert itself.exit_code == 2
    assert "which is read; nothing was written" in itself.stderr


def test_quantize_keeps_a_temperature_that_was_set_and_drops_one_that_was_fitted(
    cli: Cli, fp32_folder: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(fp32_folder, tmp_path / "warm"))
    for fitted, rows in ((2.5, 0), (2.0, 900)):
        listed = json.loads((folder / "artifacts.json").read_text())
        for record in listed["files"]:
            if record["kind"] == "model":
                record["confidence"] = {"temperature": fitted, "fitted_rows": rows}
        (folder / "artifacts.json").write_text(json.dumps(listed))
        result = cli("quantize", "-m", folder, "-o", tmp_path / f"small-{rows}")
        assert result.exit_code == 0, result.output
        found = {r.temperature for r in read_artefacts(tmp_path / f"small-{rows}").models()}
        assert found == {1.0 if rows else 2.5}
        assert ("has temperatures that were fitted on rows of its run" in result.stderr) == bool(rows)


def test_a_length_that_every_text_fills(model: Callable[..., Path], tmp_path: Path) -> None:
    api.export(str(model("bert")), tmp_path / "phone", ExportOptions(max_length=4, formats=["onnx"]))
    answer = pocketbert.load(tmp_path / "phone").predict("please the song")[0]
    assert answer.truncated
    assert api.verify(tmp_path / "phone").status == "passed"


def unnamed(source: Path, destination: Path) -> Path:
    """The same model as most people upload it: LABEL_0, LABEL_1, LABEL_2."""
    shutil.copytree(source, destination)
    config = json.loads((destination / "config.json").read_text())
    config["id2label"] = {str(i): f"LABEL_{i}" for i in range(3)}
    config["label2id"] = {f"LABEL_{i}": i for i in range(3)}
    (destination / "config.json").write_text(json.dumps(config))
    return destination


def test_labels_that_say_nothing_can_be_named(model: Callable[..., Path], tmp_path: Path) -> None:
    folder = unnamed(model("bert"), tmp_path / "model")
    api.export(str(folder), tmp_path / "plain", ExportOptions(schemes=["fp32"], formats=["onnx"]))
    assert json.loads((tmp_path / "plain" / "artifacts.json").read_text())["labels"] == [
        "LABEL_0",
        "LABEL_1",
        "LABEL_2",
    ]
    api.export(
        str(folder),
        tmp_path / "named",
        ExportOptions(schemes=["fp32"], formats=["onnx"], labels=["bad", "so-so", "good"]),
    )
    want = expected(folder, ["please", "the song"])
    for answer, row in zip(pocketbert.load(tmp_path / "named").predict(["please", "the song"]), want, strict=True):
        assert answer.label == ("bad", "so-so", "good")[int(row.argmax())]
    with pytest.raises(InputError, match="the model's labels differ from the data's"):
        api.export(str(folder), tmp_path / "wrong", ExportOptions(labels=["bad", "good"]))
    assert not (tmp_path / "wrong").exists()


def test_what_is_no_model(cli: Cli, model: Callable[..., Path], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    alien = tmp_path / "alien"
    alien.mkdir()
    (alien / "config.json").write_text(json.dumps({"model_type": "llama"}))
    headless = write_bert(tmp_path / "headless")
    lost = Path(shutil.copytree(model("bert"), tmp_path / "lost"))
    (lost / "model.safetensors").unlink()
    for folder, message in (
        (empty, "is no Hugging Face model folder: it has no config.json."),
        (alien, "model_type 'llama' is not in the family table"),
        (headless, "config.json names no labels (id2label) and there is no data."),
        (lost, "has neither model.safetensors nor pytorch_model.bin."),
    ):
        # an encoder without a head would be exported for its vectors, were it not for --task
        result = cli("export", "-m", folder, "-o", tmp_path / "phone", "--task", "text-classification")
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert not (tmp_path / "phone").exists()
