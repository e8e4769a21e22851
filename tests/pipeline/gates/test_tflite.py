"""The gates against TFLite files broken on purpose: verify exits 3 and names file and gate, pack writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.export.mediapipe_vocabulary import vocabulary_of
from pocketbert.export.tflite_buffers import dump_model, load_model
from pocketbert.export.tflite_metadata import MediaPipeInfo, write_metadata
from support.defects.tflite import (
    CLASSES,
    FILES,
    FP32,
    INT8,
    MEDIAPIPE,
    MEDIAPIPE_INT8,
    OLD,
    Model,
    a_little_more,
    always_the_same,
    edit,
    ignore_mask,
    one_hidden_nan,
    one_nan,
    one_nan_scale,
    operators,
    source,
    swap_labels,
)

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]


# The run folder.


def test_a_good_run_passes_and_packs(cli: Cli, tflite_copy: Path, finished_tflite: Path, tmp_path: Path) -> None:
    verified = cli("verify", "-m", tflite_copy)
    assert verified.exit_code == 0, verified.output
    packed = cli("pack", "-m", tflite_copy, "-o", tmp_path / "again")
    assert packed.exit_code == 0, packed.output
    for file in FILES:
        assert (tmp_path / "again" / file).read_bytes() == (finished_tflite / "phone" / file).read_bytes()
    assert cli("verify", "-m", tmp_path / "again").exit_code == 0


def test_a_harmless_edit_passes(cli: Cli, tflite_copy: Path) -> None:
    # proof that the other tests fail because of what they change, not because a file was written again
    def rename(model: Model) -> None:
        model.description = b"written again"

    for file in (FP32, MEDIAPIPE, INT8):
        edit(source(tflite_copy, file), rename)
    verified = cli("verify", "-m", tflite_copy)
    assert verified.exit_code == 0, verified.output


@pytest.mark.parametrize("file", FILES)
def test_mask_ignored(refused: Refused, tflite_copy: Path, file: str) -> None:
    edit(source(tflite_copy, file), ignore_mask)
    failed = refused(tflite_copy, f"{file} padding")
    assert {f.split()[0] for f in failed} == {file}


@pytest.mark.parametrize("file", FILES)
def test_two_labels_swapped(refused: Refused, tflite_copy: Path, file: str) -> None:
    edit(source(tflite_copy, file), swap_labels)
    failed = refused(tflite_copy, f"{file} golden", f"{file} reference", f"{file} drop")
    assert {f"{file} weights", f"{file} padding"}.isdisjoint(failed)


@pytest.mark.parametrize("change", [one_nan, one_hidden_nan])
def test_one_nan_weight(refused: Refused, tflite_copy: Path, change: Callable[[Model], None]) -> None:
    edit(source(tflite_copy, FP32), change)
    failed = refused(tflite_copy, f"{FP32} weights")
    assert (f"{FP32} finite" in failed) == (change is one_nan)


def test_one_nan_scale(refused: Refused, tflite_copy: Path) -> None:
    edit(source(tflite_copy, INT8), one_nan_scale)
    refused(tflite_copy, f"{INT8} weights")


@pytest.mark.parametrize(
    ("file", "instead"),
    [(INT8, FP32), (MEDIAPIPE_INT8, MEDIAPIPE), (OLD, FP32), (OLD, INT8), (INT8, OLD)],
    ids=lambda f: Path(f).name,
)
def test_a_quantized_file_that_is_another(refused: Refused, tflite_copy: Path, file: str, instead: str) -> None:
    # fp32 under the name of int8, and the default form where an old runtime would miscompute it
    shutil.copyfile(source(tflite_copy, instead), source(tflite_copy, file))
    refused(tflite_copy, f"{file} types")


def test_an_fp32_file_that_is_quantized(refused: Refused, tflite_copy: Path) -> None:
    shutil.copyfile(source(tflite_copy, INT8), source(tflite_copy, FP32))
    refused(tflite_copy, f"{FP32} golden", f"{FP32} reference")


@pytest.mark.parametrize("file", [FP32, INT8])
def test_a_file_of_other_weights(
    refused: Refused, tflite_copy: Path, file: str, exported_tflite: Callable[[str], Path]
) -> None:
    from pocketbert.core.types import Format, Scheme
    from pocketbert.quantize import Plan, quantize

    if file == FP32:
        shutil.copyfile(exported_tflite("bert"), source(tflite_copy, file))
    else:
        quantize(exported_tflite("bert"), source(tflite_copy, file), Plan(Format.TFLITE, Scheme.INT8))
    refused(tflite_copy, f"{file} golden", f"{file} reference", f"{file} drop")


def test_a_score_at_chance(refused: Refused, tflite_copy: Path) -> None:
    edit(source(tflite_copy, FP32), always_the_same)
    refused(tflite_copy, f"{FP32} chance", f"{FP32} drop", f"{FP32} golden")


@pytest.mark.parametrize("file", [INT8, MEDIAPIPE_INT8])
def test_int8_beyond_its_golden_tolerance(refused: Refused, tflite_copy: Path, file: str) -> None:
    edit(source(tflite_copy, file), a_little_more)
    failed = refused(tflite_copy, f"{file} golden")
    assert failed == [f"{file} golden"]  # no other gate is that strict


def test_the_tolerance_of_an_old_runtimes_file_is_wider(cli: Cli, tflite_copy: Path) -> None:
    # recorded by a new engine, run by an old one that rounds otherwise
    from pocketbert.core.compare.golden import read_golden

    [row, *_] = read_golden(tflite_copy / "golden" / "golden.jsonl")
    assert row.tolerance[FP32] < row.tolerance[INT8] < row.tolerance[OLD]
    edit(source(tflite_copy, OLD), a_little_more)
    verified = cli("verify", "-m", tflite_copy, "--json")
    assert verified.exit_code == 0, verified.output


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
    repacked(source(tflite_copy, file), labels, vocabulary_of(tflite_copy / "student"))
    failed = refused(tflite_copy, f"{file} metadata")
    assert failed == [f"{file} metadata"]


def test_another_vocabulary_inside(refused: Refused, tflite_copy: Path, kit: Any) -> None:
    tokens = vocabulary_of(tflite_copy / "student").splitlines()
    tokens[10], tokens[11] = tokens[11], tokens[10]
    repacked(source(tflite_copy, MEDIAPIPE), kit.LABELS, b"\n".join(tokens) + b"\n")
    assert refused(tflite_copy, f"{MEDIAPIPE} metadata") == [f"{MEDIAPIPE} metadata"]


@pytest.mark.parametrize("what", ["metadata", "files"])
def test_metadata_lost(refused: Refused, tflite_copy: Path, what: str) -> None:
    path = source(tflite_copy, MEDIAPIPE_INT8)
    if what == "files":  # the zip at the end, which a tool that copies the graph drops
        path.write_bytes(dump_model(load_model(path.read_bytes())))
    else:

        def forget(model: Model) -> None:
            model.metadata = []

        edit(path, forget)
    assert refused(tflite_copy, f"{MEDIAPIPE_INT8} metadata") == [f"{MEDIAPIPE_INT8} metadata"]


def test_logits_where_mediapipe_expects_probabilities(refused: Refused, tflite_copy: Path) -> None:
    # softmax is the last operator: its readers get what it reads
    def without_softmax(model: Model) -> None:
        from ai_edge_litert import schema_py_generated as schema

        [(graph, op)] = [
            (g, o) for g, o in operators(model, "SOFTMAX") if int(np.prod(g.tensors[o.outputs[0]].shape)) == CLASSES
        ]
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ABS
        code.version = 1
        model.operatorCodes.append(code)
        op.opcodeIndex = len(model.operatorCodes) - 1
        op.builtinOptionsType, op.builtinOptions = schema.BuiltinOptions.AbsOptions, schema.AbsOptionsT()
        assert graph.operators

    edit(source(tflite_copy, MEDIAPIPE), without_softmax)
    refused(tflite_copy, f"{MEDIAPIPE} golden", f"{MEDIAPIPE} reference")


# The packed folder.


@pytest.fixture
def phone(finished_tflite: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_tflite / "phone", tmp_path / "phone"))


def relist(folder: Path, name: str) -> None:
    """Bring artifacts.json up to date, as a careless hand would, so that only the other gates are left."""
    from pocketbert.core.disk.files import sha256_file

    content = json.loads((folder / "artifacts.json").read_text())
    for record in content["files"]:
        if record["path"] == name:
            record["sha256"], record["bytes"] = sha256_file(folder / name), (folder / name).stat().st_size
    (folder / "artifacts.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "change", "gate"),
    [
        (FP32, ignore_mask, "padding"),
        (INT8, swap_labels, "golden"),
        (MEDIAPIPE, one_nan, "weights"),
        (OLD, always_the_same, "golden"),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_a_folder_with_a_broken_file_that_is_listed(
    cli: Cli, phone: Path, file: str, change: Callable[[Model], None], gate: str
) -> None:
    edit(phone / file, change)
    relist(phone, file)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3, result.output
    assert f"{file}: gate '{gate}' failed:" in result.stderr
    assert "gate 'integrity'" not in result.stderr


def test_a_folder_with_another_vocabulary_in_its_mediapipe_file(cli: Cli, phone: Path, kit: Any) -> None:
    tokens = vocabulary_of(phone).splitlines()
    repacked(phone / MEDIAPIPE, kit.LABELS, b"\n".join([*tokens[:-2], tokens[-1], tokens[-2]]) + b"\n")
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
