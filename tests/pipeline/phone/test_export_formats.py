"""A fine-tuned Hugging Face folder into files for phones: what is particular to TFLite and Core ML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from support.classifiers import expected
from support.folders import tree

Cli = Callable[..., Any]


# TFLite: files of listed lengths, and one for MediaPipe where it can run the model.


def test_tflite_alone_and_a_model_that_mediapipe_cannot_run(
    cli: Cli, model: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("litert_torch", exc_type=ImportError)
    source, output = model("roberta"), tmp_path / "phone"
    made = cli("export", "-m", source, "-o", output, "--format", "tflite", "--max-length", "24")
    assert made.exit_code == 0, made.output
    reason = "MediaPipe would feed this model wrong ids: its tokenizer is WordPiece, the model's is BPE."
    assert f"not written: tflite/mediapipe.tflite: {reason}" in made.stdout
    assert f"{output}/tflite/model_int8.tflite  " in made.stdout
    listed = json.loads((output / "artifacts.json").read_text())
    assert listed["absent"] == {"tflite/mediapipe.tflite": reason}
    assert reason in (output / "README.md").read_text()
    models = {r["path"]: r for r in listed["files"] if r["kind"] == "model"}
    assert set(models) == {"tflite/model.tflite", "tflite/model_int8.tflite"}
    assert [p for p, r in models.items() if r["default"]] == ["tflite/model_int8.tflite"]
    for record in models.values():
        assert record["signature"]["lengths"] == [24]  # 32, 64 and 128 are longer than the model is asked to be
        assert [(t["name"], t["dtype"]) for t in record["signature"]["inputs"]] == [
            ("input_ids", "int32"),
            ("attention_mask", "int32"),
        ]
        assert record["seen_right"][0]["engine"] == "litert"
    assert not (output / "onnx").exists()
    assert [p["subject"] for p in json.loads((output / "parity.json").read_text())] == [
        "prepared module",
        "tflite/model.tflite",
    ]
    assert cli("verify", "-m", output).exit_code == 0

    texts = ["please", "the song", "it is"]
    want = expected(source, texts)
    for scheme, atol in (("fp32", 1e-4), (None, 0.2)):
        opened = pocketbert.load(output, scheme=scheme)
        for answer, row in zip(opened.predict(texts), want, strict=True):
            assert np.allclose(list(answer.scores.values()), row, atol=atol)
    assert opened.record.path == "tflite/model_int8.tflite"
    assert opened.predict("please the song " * 20)[0].truncated


def test_other_schemes_and_an_old_runtime(cli: Cli, model: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("litert_torch", exc_type=ImportError)
    first, half, old = (tmp_path / n for n in ("w8", "half", "old"))
    made = cli(
        "export",
        "-m",
        model("distilbert"),
        "-o",
        first,
        "--format",
        "tflite",
        "--scheme",
        "w8",
        "--max-length",
        "16",
        "--json",
    )
    assert made.exit_code == 0, made.output
    both = ["tflite/mediapipe.tflite", "tflite/mediapipe_w8.tflite", "tflite/model.tflite", "tflite/model_w8.tflite"]
    assert json.loads(made.stdout.splitlines()[-1])["files"] == both
    texts = ["please", "the song"]
    want = [a.scores for a in pocketbert.load(first, scheme="fp32").predict(texts)]

    # the same fp32 files in other forms, without exporting again
    for folder, more, suffix in (
        (half, ["--scheme", "fp16"], "fp16"),
        (old, ["--runtime", "tflite216"], "int8_tflite216"),
    ):
        small = cli("quantize", "-m", first, "-o", folder, *more)
        assert small.exit_code == 0, small.output
        assert (folder / "tflite" / "model.tflite").read_bytes() == (first / "tflite" / "model.tflite").read_bytes()
        assert (folder / "tflite" / f"model_{suffix}.tflite").is_file()
        assert not (folder / "tflite" / "model_w8.tflite").exists()
        assert cli("verify", "-m", folder).exit_code == 0
    many = cli("quantize", "-m", first, "-o", tmp_path / "many", "--scheme", "int8, w8", "--json")
    assert many.exit_code == 0, many.output
    assert json.loads(many.stdout.splitlines()[-1])["files"] == [
        f"tflite/{stem}{suffix}.tflite" for stem in ("mediapipe", "model") for suffix in ("", "_int8", "_w8")
    ]
    for scheme, folder in (("w8", first), ("int8", old)):
        alone, among = (f / "tflite" / f"model_{scheme}.tflite" for f in (folder, tmp_path / "many"))
        assert alone.read_bytes() == among.read_bytes()
        assert pocketbert.load(tmp_path / "many", scheme=scheme).record.path == f"tflite/model_{scheme}.tflite"
    assert pocketbert.load(tmp_path / "many").record.path == "tflite/model_int8.tflite"
    assert "tflite/model_int8.tflite" in (tmp_path / "many" / "README.md").read_text().partition("```")[2]
    records = {r["path"]: r for r in json.loads((old / "artifacts.json").read_text())["files"]}
    assert records["tflite/model_int8_tflite216.tflite"]["runtime"] == "tflite216"
    assert [p for p, r in records.items() if r.get("default")] == ["tflite/model_int8.tflite"]
    assert [p for p, r in records.items() if r.get("client")] == [
        "tflite/mediapipe.tflite",
        "tflite/mediapipe_int8.tflite",
    ]
    for folder, scheme in ((first, "w8"), (half, "fp16"), (old, "int8")):
        default = pocketbert.load(folder)
        assert default.record.path == f"tflite/model_{scheme}.tflite"
        for answer, scores in zip(default.predict(texts), want, strict=True):
            assert list(answer.scores.values()) == pytest.approx(list(scores.values()), abs=0.2)


# Core ML: packages, which are folders.


def coreml_facts(package: Path) -> tuple[int, str, str]:
    """Version of the specification, operation set, and the layout that the package says it has."""
    from coremltools.proto.Model_pb2 import Model

    spec = Model.FromString((package / "Data" / "com.apple.CoreML" / "model.mlmodel").read_bytes())
    return (
        spec.specificationVersion,
        spec.mlProgram.functions["main"].opset,
        spec.description.metadata.userDefined["pocketbert.layout"],
    )


def test_core_ml_alone_and_its_small_package_afterwards(cli: Cli, model: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("coremltools")
    source, output, small = model("bert"), tmp_path / "phone", tmp_path / "small"
    made = cli(
        "export", "-m", source, "-o", output, "--format", "coreml", "--scheme", "fp32", "--max-length", "40", "--json"
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout.splitlines()[-1])["files"] == ["coreml/Model.mlpackage"]
    package = output / "coreml" / "Model.mlpackage"
    assert coreml_facts(package) == (9, "CoreML8", "plain")
    parity = json.loads((output / "parity.json").read_text())
    assert [p["subject"] for p in parity] == ["prepared module", "coreml/Model.mlpackage"]
    assert parity[0]["bound"] < parity[1]["bound"] < 0.1 < parity[1]["mask_effect"]  # fp16 may be off more
    assert not (output / "onnx").exists()

    before = tree(output)
    done = cli("quantize", "-m", output, "-o", small, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["files"] == ["coreml/Model.mlpackage", "coreml/Model_w8.mlpackage"]
    assert tree(output) == before
    assert tree(small / "coreml" / "Model.mlpackage") == tree(package)
    assert coreml_facts(small / "coreml" / "Model_w8.mlpackage") == (9, "CoreML8", "plain")
    records = {r["path"]: r for r in json.loads((small / "artifacts.json").read_text())["files"]}
    assert records["coreml/Model.mlpackage"]["signature"]["lengths"] == [32, 40]
    assert records["coreml/Model_w8.mlpackage"]["signature"] == records["coreml/Model.mlpackage"]["signature"]
    assert cli("verify", "-m", small).exit_code == 0

    texts = ["please", "the song", "it is"]
    want = expected(source, texts)
    for scheme, atol in (("fp16", 5e-3), (None, 0.1)):
        opened = pocketbert.load(small, scheme=scheme)
        for answer, row in zip(opened.predict(texts), want, strict=True):
            assert np.allclose(list(answer.scores.values()), row, atol=atol)
    assert opened.record.path == "coreml/Model_w8.mlpackage"
    assert opened.predict("please the song " * 20)[0].truncated


@pytest.mark.parametrize(
    ("flags", "name", "facts", "lengths"),
    [
        (["--ios", "17", "--shapes", "ranged", "--precision", "fp32"], "Model_fp32", (8, "CoreML7", "plain"), []),
        (["--ios", "16", "--layout", "ane"], "Model", (7, "CoreML6", "ane"), [40]),
    ],
    ids=["ranged-fp32", "fixed-ane"],
)
def test_flags_of_core_ml_reach_the_package(
    flags: list[str],
    name: str,
    facts: tuple[int, str, str],
    lengths: list[int],
    cli: Cli,
    model: Callable[..., Path],
    tmp_path: Path,
) -> None:
    pytest.importorskip("coremltools")
    source, output = model("distilbert"), tmp_path / "phone"
    made = cli(
        "export", "-m", source, "-o", output, "--format", "coreml", "--scheme", "fp32", "--max-length", "40", *flags
    )
    assert made.exit_code == 0, made.output
    assert [p.name for p in (output / "coreml").iterdir() if p.is_dir()] == [f"{name}.mlpackage"]
    assert coreml_facts(output / "coreml" / f"{name}.mlpackage") == facts
    [record] = [r for r in json.loads((output / "artifacts.json").read_text())["files"] if r["kind"] == "model"]
    assert record["scheme"] == ("fp32" if "fp32" in name else "fp16")
    assert record["signature"]["lengths"] == lengths
    if facts[2] == "ane":
        assert "whether it is faster was not measured" in (output / "README.md").read_text()
    opened = pocketbert.load(output)
    want = expected(source, ["please", "the song"])
    for answer, row in zip(opened.predict(["please", "the song"]), want, strict=True):
        assert np.allclose(list(answer.scores.values()), row, atol=1e-4 if "fp32" in name else 5e-3)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--ios", "17", "--shapes", "enumerated"],
            "shapes 'enumerated' needs ios 18, this is ios 17; possible here: ranged, fixed.",
        ),
        (["--ios", "16", "--shapes", "ranged"], "shapes 'ranged' needs ios 17, this is ios 16; possible here: fixed."),
        (["--shapes", "free"], "shapes"),
        (["--ios", "15"], "ios"),
        (["--precision", "int8"], "precision"),
        (["--layout", "wide"], "layout"),
    ],
)
def test_flags_that_no_package_can_have(
    flags: list[str], said: str, cli: Cli, model: Callable[..., Path], tmp_path: Path
) -> None:
    result = cli("export", "-m", model("bert"), "-o", tmp_path / "phone", "--format", "coreml", *flags)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert [p.name for p in tmp_path.iterdir() if p.name != "pocketbert-cache"] == []
