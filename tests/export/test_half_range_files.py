"""Models planted with activations beyond fp16 (see `support.half_range`) give the same numbers in the files of every format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.export import onnx as onnx_exporter
from pocketbert.export.prepare import prepare
from pocketbert.runtime.coreml.types import LARGEST_FP16
from support.half_range import (
    BATCHES,
    CLASSIFY,
    EMBED,
    FAMILY,
    FP16,
    SMALL,
    answers,
    expected,
    off,
    ordinary,
    planted,
    rows,
    uncured,
)


def write_package(model: Any, task: Task, path: Path, layout: Layout, **more: Any) -> Path:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.export import coreml

    module = prepare(model, FAMILY, task, Format.COREML, layout, samples=BATCHES, **more)
    about = coreml.CoremlInfo("", "1", "", "")
    coreml.export(module, FAMILY, task, [16, 32], path, coreml.CoremlForm(), about)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("layout", Layout)
def test_core_ml_in_fp16_overflows_without_and_is_right_with_it(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.runtime.coreml.predictor import CoremlPredictor
    from pocketbert.runtime.coreml.scan import overflow_scan

    model = ordinary(**SMALL)
    large, right = planted(model), expected(model)
    feeds = [{k: v[:1].astype(np.int32) for k, v in b.items()} for b in BATCHES]
    cured = write_package(large, CLASSIFY, tmp_path / "cured.mlpackage", layout)
    assert off(answers(CoremlPredictor(cured, reference=True)), right) < FP16
    scan = overflow_scan(cured, feeds)
    assert scan.first is None
    assert scan.largest is not None
    assert scan.largest.largest < 1.01e4  # the mask's own 1e4: all else is below
    uncured(monkeypatch)
    stock = write_package(large, CLASSIFY, tmp_path / "stock.mlpackage", layout)
    assert not off(answers(CoremlPredictor(stock, reference=True)), right) < 0.1
    first = overflow_scan(stock, feeds).first
    assert first is not None
    assert first.largest > LARGEST_FP16


def test_vectors_survive_fp16_where_their_states_cannot(tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")
    from pocketbert.runtime.coreml.predictor import CoremlPredictor

    large, pooling = planted(ordinary(EMBED, **SMALL)), Pooling(PoolingKind.MEAN, True)
    path = write_package(large, EMBED, tmp_path / "a.mlpackage", Layout.PLAIN, pooling=pooling)
    predictor = CoremlPredictor(path, reference=True)
    reference = TorchPredictor(large, EMBED, FAMILY.inputs, pooling)
    right = answers(reference, "sentence_embedding")
    assert off(answers(predictor, "sentence_embedding"), right) < FP16
    states = expected(large, "last_hidden_state")
    assert max(float(np.abs(s).max()) for s in states) > LARGEST_FP16
    found = answers(predictor, "last_hidden_state")
    assert not all(np.isfinite(s).all() for s in found)  # fp16 has no such number


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("layout", Layout)
def test_states_and_vectors_are_what_they_were_in_fp32(layout: Layout, normalize: bool) -> None:
    large, pooling = planted(ordinary(EMBED)), Pooling(PoolingKind.MEAN, normalize)
    module = prepare(large, FAMILY, EMBED, Format.COREML, layout, pooling, BATCHES)
    reference = TorchPredictor(large, EMBED, FAMILY.inputs, pooling)
    for inputs in BATCHES:
        right = reference.run(inputs)
        with torch.inference_mode():
            found = module(*(torch.from_numpy(inputs[n]) for n in FAMILY.inputs))
        for name, value in zip(EMBED.outputs, found, strict=True):
            channels = np.abs(right[name]).reshape(-1, 32).max(0)  # large ones must not hide the others
            assert (np.abs(value.numpy() - right[name]).reshape(-1, 32).max(0) < 1e-5 * channels).all()


def write_files(format: Format, schemes: tuple[Scheme, ...], model: Any, folder: Path) -> Mapping[Scheme, Path]:
    """An exported file, and those of other schemes that are made of it."""
    from pocketbert.quantize import Plan, quantize

    folder.mkdir()
    module = prepare(model, FAMILY, CLASSIFY, format, samples=BATCHES)
    paths = {s: folder / f"{s}.{format}" for s in (Scheme.FP32, *schemes)}
    if format is Format.ONNX:
        onnx_exporter.export(module, FAMILY, CLASSIFY, BATCHES[0], paths[Scheme.FP32])
    else:
        from pocketbert.export import tflite

        tflite.export(module, FAMILY, CLASSIFY, [16, 32], paths[Scheme.FP32])
    for scheme in schemes:
        quantize(paths[Scheme.FP32], paths[scheme], Plan(format, scheme))
    return paths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "schemes"), [(Format.ONNX, (Scheme.INT8,)), (Format.TFLITE, (Scheme.INT8, Scheme.FP16))]
)
def test_files_answer_the_same_with_it_in_int8_too(
    format: Format, schemes: tuple[Scheme, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("ai_edge_quantizer", "litert_torch") if format is Format.TFLITE else ():
        pytest.importorskip(needed, reason="needs pocketbert[tflite]", exc_type=ImportError)
    from pocketbert.quantize import weights
    from pocketbert.runtime.engines import open_file

    def run(path: Path) -> Any:
        return answers(open_file(path, format), length=16)

    monkeypatch.setattr(weights, "SMALL", 512)
    model = ordinary(**SMALL)
    large, right = planted(model), expected(model, length=16)
    cured = write_files(format, schemes, large, tmp_path / "cured")
    assert off(run(cured[Scheme.FP32]), right) < 1e-5
    uncured(monkeypatch)
    stock = write_files(format, schemes, large, tmp_path / "stock")
    for scheme in (Scheme.FP32, Scheme.INT8):
        made = zip(run(stock[scheme]), run(cured[scheme]), strict=True)
        assert all(np.array_equal(a, b) for a, b in made), scheme
    measure = measure_onnx_range if format is Format.ONNX else measure_tflite_range
    assert measure(cured[Scheme.FP32]) < LARGEST_FP16 < measure(stock[Scheme.FP32])
    if Scheme.FP16 in schemes:
        assert off(run(cured[Scheme.FP16]), right) < FP16  # fp16 weights, fp32 arithmetic
        assert measure(cured[Scheme.FP16]) < LARGEST_FP16 < measure(stock[Scheme.FP16])


def measure_onnx_range(path: Path) -> float:
    import onnx
    import onnxruntime

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    float32 = onnx.TensorProto.FLOAT
    floats = [v.name for v in model.graph.value_info if v.type.tensor_type.elem_type == float32]
    assert len(floats) > 50
    model.graph.output.extend(v for v in model.graph.value_info if v.name in set(floats))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return max(float(np.abs(v).max()) for b in BATCHES for v in session.run(floats, b))


def measure_tflite_range(path: Path) -> float:
    """Largest magnitude of whatever a graph's operators make of the rows; none is left to a delegate, which hides its own."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter: Any = Interpreter(
        model_path=str(path),
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    runner = interpreter.get_signature_runner("seq_16")
    made = {int(i) for op in interpreter._get_ops_details() for i in op["outputs"]}
    details = interpreter.get_tensor_details()
    floats = [d["index"] for d in details if d["index"] in made and d["dtype"] == np.float32]
    assert len(floats) > 50
    largest = []
    for inputs in rows(16):
        runner(**{k: v.astype(np.int32) for k, v in inputs.items()})
        largest += [float(np.abs(interpreter.get_tensor(i)).max(initial=0.0)) for i in floats]
    return max(largest)
