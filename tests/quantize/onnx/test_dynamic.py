from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pocketbert.core.compare.evaluate import label_agreement, rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, MissingBackendError
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Scheme
from pocketbert.export.onnx import check_readable
from pocketbert.quantize import weights
from pocketbert.quantize.files import quantize
from pocketbert.quantize.onnx import dynamic as quantizer
from pocketbert.quantize.onnx.reading import read_weight_types
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.weights import Use, WeightTypes
from pocketbert.runtime.onnx import OnnxPredictor

LAYERS = 2
INT8 = Plan(Format.ONNX, Scheme.INT8)


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


@pytest.fixture(scope="module")
def int8(exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WeightTypes]:
    path = tmp_path_factory.mktemp("int8") / "model_int8.onnx"
    return path, quantize(exported("bert"), path, INT8)


def test_the_types_are_those_of_dynamic_int8(int8: tuple[Path, WeightTypes]) -> None:
    _, types = int8
    assert types.int8_matmuls >= 6 * LAYERS + 1
    assert types.int8_embeddings >= 2
    assert all(u.per_channel for u in types.uses if u.use is Use.MATMUL and u.dtype == "int8")
    assert types.int8_bytes > types.float_bytes
    assert types.operators["DynamicQuantizeLinear"] >= 1


def test_the_file_on_disk_has_them(int8: tuple[Path, WeightTypes]) -> None:
    path, _ = int8
    types = read_weight_types(path)
    assert find_row(Format.ONNX, Scheme.INT8).problems(types, path.name) == []
    assert {u.dtype for u in types.uses if u.numbers >= 512} == {"int8"}
    check_readable(path)
    integers = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    model = onnx.load(path)
    scales = {t.name: t for t in model.graph.initializer if t.name.endswith("_scale")}
    assert any(len(t.dims) == 1 and t.dims[0] == 32 for t in scales.values())
    assert any(t.data_type in integers and "embeddings" in t.name for t in model.graph.initializer)


def test_the_int8_file_is_smaller_and_answers_about_the_same(
    int8: tuple[Path, WeightTypes], exported: Callable[[str], Path], open_tiny: Callable[..., Any]
) -> None:
    tokenizer = open_tiny("bert", 2)[2]
    encoded = tokenizer.encode(list(SENTENCES))
    ours, reference = (
        join_texts(run_rows(OnnxPredictor(p), tokenizer, encoded, task_of("text-classification")))
        for p in (int8[0], exported("bert"))
    )
    assert rms_error(ours, reference) < 0.3
    assert label_agreement(ours, reference) > 0.8
    assert not np.array_equal(ours, reference)


def test_the_source_is_not_touched_and_nothing_else_is_left(
    int8: tuple[Path, WeightTypes], exported: Callable[[str], Path]
) -> None:
    assert [p.name for p in int8[0].parent.iterdir()] == ["model_int8.onnx"]
    assert read_weight_types(exported("bert")).int8_matmuls == 0


def test_a_quantizer_that_does_nothing_is_an_error(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "onnxruntime.quantization.quantize_dynamic",
        lambda source, target, **_: shutil.copyfile(source, target),
    )
    monkeypatch.setattr(quantizer, "pack_tables_int8", lambda *_: None)
    with pytest.raises(GateError) as caught:
        quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)
    found = "\n".join(caught.value.failures)
    assert "no matrix product has int8 weights; the quantizer did nothing" in found
    assert "no embedding table has int8 numbers" in found
    assert "still float" in found


def test_a_weight_that_was_left_float_is_named(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxruntime.quantization import quantize_dynamic

    nodes = onnx.load(exported("bert")).graph.node
    names = [n.name for n in nodes if n.op_type == "MatMul"]

    def forgetful(source: Path, destination: Path, **more: Any) -> None:
        quantize_dynamic(source, destination, **{**more, "nodes_to_exclude": names[:1]})

    monkeypatch.setattr("onnxruntime.quantization.quantize_dynamic", forgetful)
    with pytest.raises(GateError, match=r"still float: .*\(1 in all\)"):
        quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)


def test_embeddings_left_float_are_an_error(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizer, "pack_tables_int8", lambda *_: None)
    with pytest.raises(GateError, match="no embedding table has int8 numbers"):
        quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)


def test_one_scale_per_table_is_an_error(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxruntime.quantization import quantize_dynamic

    def tables_too(source: Path, destination: Path, **more: Any) -> None:
        quantize_dynamic(source, destination, **{**more, "op_types_to_quantize": ["MatMul", "Gemm", "Gather"]})

    monkeypatch.setattr(quantizer, "pack_tables_int8", lambda *_: None)
    monkeypatch.setattr("onnxruntime.quantization.quantize_dynamic", tables_too)
    with pytest.raises(GateError, match=r"one scale per matrix, not per output channel: .*embeddings"):
        quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)


def test_one_scale_per_matrix_is_an_error(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxruntime.quantization import quantize_dynamic

    def per_tensor(source: Path, destination: Path, **more: Any) -> None:
        quantize_dynamic(source, destination, **{**more, "per_channel": False})

    monkeypatch.setattr("onnxruntime.quantization.quantize_dynamic", per_tensor)
    with pytest.raises(GateError, match="one scale per matrix, not per output channel"):
        quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)


def test_the_applications_logging_is_left_alone(exported: Callable[[str], Path], tmp_path: Path) -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    try:
        quantize(exported("bert"), tmp_path / "model_int8.onnx", INT8)
        assert root.level == logging.INFO
    finally:
        root.setLevel(before)


def test_a_missing_onnx_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(quantizer, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[onnx\]'"):
        quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", INT8)
