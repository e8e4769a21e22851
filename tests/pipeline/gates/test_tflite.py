"""Gates of TFLite files that need more than a defect of the graph: other weights, other metadata, an engine that is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.model_files import dump_model
from pocketbert.core.types import Format
from pocketbert.export.mediapipe import read_vocabulary
from pocketbert.export.tflite_metadata import MediaPipeInfo, load_model, write_metadata
from support.defects import FILES, MEDIAPIPE, MEDIAPIPE_INT8, break_file, relist, source
from support.defects import TFLITE as FP32
from support.defects import TFLITE_INT8 as INT8
from support.defects import TFLITE_OLD as OLD
from support.tiny_texts import LABELS

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]


# The run folder.


def test_a_good_run_passes_and_packs(cli: Cli, tflite_copy: Path, finished_tflite: Path, tmp_path: Path) -> None:
    verified = cli("verify", "-m", tflite_copy)
    assert verified.exit_code == 0, verified.output
    packed = cli("pack", "-m", tflite_copy, "-o", tmp_path / "again")
    assert packed.exit_code == 0, packed.output
    for file in FILES[Format.TFLITE]:
        assert (tmp_path / "again" / file).read_bytes() == (finished_tflite / "phone" / file).read_bytes()
    assert cli("verify", "-m", tmp_path / "again").exit_code == 0


@pytest.mark.parametrize("file", [FP32, INT8])
def test_a_file_of_other_weights(
    refused: Refused, tflite_copy: Path, file: str, exported_tflite: Callable[[str], Path]
) -> None:
    from pocketbert.core.types import Scheme
    from pocketbert.quantize import Plan, quantize

    if file == FP32:
        shutil.copyfile(exported_tflite("bert"), source(tflite_copy, file))
    else:
        quantize(exported_tflite("bert"), source(tflite_copy, file), Plan(Format.TFLITE, Scheme.INT8))
    refused(tflite_copy, f"{file} golden", f"{file} reference", f"{file} drop")


def test_the_tolerance_of_an_old_runtimes_file_is_wider(cli: Cli, tflite_copy: Path) -> None:
    # recorded by a new engine, run by an old one that rounds otherwise
    from pocketbert.core.compare.golden import read_golden

    [row, *_] = read_golden(tflite_copy / "golden" / "golden.jsonl")
    assert row.tolerance[FP32] < row.tolerance[INT8] < row.tolerance[OLD]
    break_file(source(tflite_copy, OLD), "a_little_more")
    verified = cli("verify", "-m", tflite_copy, "--json")
    gates = json.loads(verified.stdout.splitlines()[-1])["gates"]
    failed = {(g["file"], g["name"]) for g in gates if not g["passed"]}
    assert failed == {(OLD, "stored"), (OLD, "reference")}  # golden passes


def test_golden_rows_are_recorded_for_files_that_take_them(finished_tflite: Path) -> None:
    from pocketbert.core.compare.golden import read_golden
    from pocketbert.core.predict.tokenization import TextTokenizer

    phone = finished_tflite / "phone"
    tokenizer, rows = TextTokenizer(phone, 40), read_golden(phone / "golden.jsonl")
    lengths = {len(e): r for e, r in zip(tokenizer.encode([r.input for r in rows]), rows, strict=True)}
    assert max(lengths) > 32 > min(lengths)
    for length, row in lengths.items():
        assert {FP32, INT8, OLD, "onnx/model.onnx"} <= set(row.outputs)
        assert (MEDIAPIPE in row.outputs) == (length <= 32)  # its one signature
        assert set(row.tolerance) == set(row.outputs)
        if MEDIAPIPE in row.outputs:
            assert sum(row.outputs[MEDIAPIPE]) == pytest.approx(1, abs=1e-5)


# Files for MediaPipe.


def repacked(path: Path, labels: tuple[str, ...], vocabulary: bytes) -> None:
    path.write_bytes(write_metadata(path.read_bytes(), MediaPipeInfo("a", "b", "1", "", labels, vocabulary, "MIT")))


@pytest.mark.parametrize("file", [MEDIAPIPE, MEDIAPIPE_INT8])
@pytest.mark.parametrize("labels", [("music", "lamp", "timer"), ("lamp", "music", "times")])
def test_other_labels_inside(refused: Refused, tflite_copy: Path, file: str, labels: tuple[str, ...]) -> None:
    repacked(source(tflite_copy, file), labels, read_vocabulary(tflite_copy / "student"))
    failed = refused(tflite_copy, f"{file} metadata")
    assert failed == [f"{file} metadata"]


def test_another_vocabulary_inside(refused: Refused, tflite_copy: Path) -> None:
    tokens = read_vocabulary(tflite_copy / "student").splitlines()
    tokens[10], tokens[11] = tokens[11], tokens[10]
    repacked(source(tflite_copy, MEDIAPIPE), LABELS, b"\n".join(tokens) + b"\n")
    assert refused(tflite_copy, f"{MEDIAPIPE} metadata") == [f"{MEDIAPIPE} metadata"]


def test_packed_files_lost(refused: Refused, tflite_copy: Path) -> None:
    # the zip at the end, which a tool that copies the graph drops
    path = source(tflite_copy, MEDIAPIPE_INT8)
    path.write_bytes(dump_model(load_model(path.read_bytes())))
    assert refused(tflite_copy, f"{MEDIAPIPE_INT8} metadata") == [f"{MEDIAPIPE_INT8} metadata"]


# The packed folder.


@pytest.fixture
def phone(finished_tflite: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_tflite / "phone", tmp_path / "phone"))


def test_a_folder_with_another_vocabulary_in_its_mediapipe_file(cli: Cli, phone: Path) -> None:
    tokens = read_vocabulary(phone).splitlines()
    repacked(phone / MEDIAPIPE, LABELS, b"\n".join([*tokens[:-2], tokens[-1], tokens[-2]]) + b"\n")
    relist(phone, MEDIAPIPE)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3
    assert f"{MEDIAPIPE}: gate 'metadata' failed:" in result.stderr


def test_an_engine_that_miscomputes_the_default_file_is_refused(
    cli: Cli, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as TFLite up to 2.16 does with per-channel scales: no error, other numbers
    from pocketbert.runtime.tflite import TflitePredictor

    right = TflitePredictor.run
    monkeypatch.setattr(
        TflitePredictor, "run", lambda self, inputs: {k: v * np.float32(0.7) for k, v in right(self, inputs).items()}
    )
    result = cli("predict", "-m", phone, "turn the lamp on")
    assert result.exit_code == 3
    assert f"{INT8}: litert " in result.stderr
    assert "computes this file wrongly on this machine" in result.stderr
