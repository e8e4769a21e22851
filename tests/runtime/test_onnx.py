"""ONNX files: any batch and length, broken ones refused, and int8 products that are right on every processor."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from pocketbert.core.disk import files
from pocketbert.core.errors import InputError
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.files import quantize
from pocketbert.quantize.table import Plan
from pocketbert.runtime import onnx as engine
from pocketbert.runtime.engines import describe_file, open_file
from pocketbert.runtime.onnx import PRECISE_INT8_SETTING, OnnxPredictor, convert_shared_weights_to_uint8


def batch(rows: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 100 + 5
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def set_processor(monkeypatch: pytest.MonkeyPatch, *isa: str) -> None:
    here = replace(describe_machine(), arch="x86_64", isa=list(isa))
    monkeypatch.setattr(engine, "describe_machine", lambda: here)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What ONNX Runtime was given to open, and the value of the setting for precise int8 products."""
    calls, real = list[tuple[Any, Any]](), engine.onnxruntime.InferenceSession

    def open_session(content: Any, options: Any, **more: Any) -> Any:
        calls.append((content, options.get_session_config_entry(PRECISE_INT8_SETTING)))
        return real(content, options, **more)

    monkeypatch.setattr(engine.onnxruntime, "InferenceSession", open_session)
    return calls


def test_a_file_is_opened_once_to_learn_what_it_takes_and_again_when_it_changed(
    exported: Callable[[str], Path], opened: list[tuple[Any, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("bert").read_bytes())
    monkeypatch.setattr(files.time, "time_ns", lambda: 2 * 10**18)  # long after the file was written
    for _ in range(2):
        described = describe_file(path, Format.ONNX)
        assert (described.engine, described.lengths) == ("onnxruntime", ())
        assert described.signature == open_file(path, Format.ONNX).signature
    assert len(opened) == 3
    write_graph(path, [helper.make_node("Identity", ["x0"], ["x1"])], {}, "x1")
    assert "token_type_ids" in described.inputs
    assert "token_type_ids" not in describe_file(path, Format.ONNX).inputs
    monkeypatch.undo()
    path.write_bytes(exported("bert").read_bytes())  # too short a time ago to tell
    assert [describe_file(path, Format.ONNX).inputs for _ in range(2)] == [described.inputs] * 2


@pytest.mark.parametrize("raw", [b"", b"garbage" * 50, b"\x08\x07", b"\x3a\xff\xff\x03" * 9, None])
@pytest.mark.parametrize("isa", ["avx2", "avx512_vnni"])
def test_a_missing_or_broken_file_is_an_input_error_on_one_line(
    raw: bytes | None, isa: str, exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_processor(monkeypatch, isa)
    with pytest.raises(InputError, match="a.onnx: file not found"):
        OnnxPredictor(tmp_path / "a.onnx")
    whole = exported("bert").read_bytes()
    (tmp_path / "a.onnx").write_bytes(whole[: len(whole) // 2] if raw is None else raw)
    assert convert_shared_weights_to_uint8(tmp_path / "a.onnx") is None
    with pytest.raises(InputError, match=r"a.onnx: ONNX Runtime [\d.]+ refuses the file: ") as caught:
        OnnxPredictor(tmp_path / "a.onnx")
    assert len(str(caught.value).splitlines()) == 1


def test_rows_do_not_depend_on_their_neighbours(exported: Callable[[str], Path]) -> None:
    predictor, inputs = OnnxPredictor(exported("bert")), batch(4, 9)
    together = predictor.run(inputs)["logits"]
    assert (together.shape, together.dtype) == ((4, 3), np.float32)
    alone = np.concatenate([predictor.run({k: v[i : i + 1] for k, v in inputs.items()})["logits"] for i in range(4)])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_inputs_that_the_graph_does_not_want_are_ignored_and_missing_or_wrong_ones_are_named(
    exported: Callable[[str], Path],
) -> None:
    predictor, inputs = OnnxPredictor(exported("bert")), batch(2, 5)
    more = {**inputs, "position_ids": np.zeros((2, 5), np.int64)}
    np.testing.assert_array_equal(predictor.run(more)["logits"], predictor.run(inputs)["logits"])
    with pytest.raises(InputError, match="wants the inputs attention_mask, token_type_ids too"):
        predictor.run({"input_ids": inputs["input_ids"]})
    with pytest.raises(InputError, match=r"ONNX Runtime [\d.]+ cannot run the file on this input: "):
        predictor.run({**inputs, "input_ids": np.full((2, 5), 10_000)})


# Int8 products. Neighbours of 255 steps times 127 pass 16 bits, in which x86 processors without VNNI add where nobody says otherwise.


def test_the_profile_lists_operators(exported: Callable[[str], Path], tmp_path: Path) -> None:
    predictor = OnnxPredictor(exported("bert"), profile=tmp_path / "profile")
    predictor.run(batch(1, 5))
    written = predictor.end_profile()
    assert written.parent == tmp_path
    assert any(e.get("args", {}).get("op_name") for e in json.loads(written.read_text()))


def write_graph(path: Path, nodes: list[Any], tensors: dict[str, np.ndarray], last: str) -> Path:
    """A graph from `x0` to `last`, both [rows, 64]."""
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["rows", 64]) for n in ("x0", last)]
    stored = [numpy_helper.from_array(v, n) for n, v in tensors.items()]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.mark.parametrize("layers", [1, 2], ids=["one product", "a weight that two products share"])
@pytest.mark.parametrize("isa", [None, "avx2"], ids=["this processor", "a processor without VNNI"])
def test_int8_products_are_right_on_every_processor(
    layers: int, isa: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [helper.make_node("MatMul", [f"x{i}", "weight"], [f"x{i + 1}"]) for i in range(layers)]
    source = write_graph(tmp_path / "a.onnx", nodes, {"weight": np.full((64, 64), 0.5, np.float32)}, f"x{layers}")
    quantize_dynamic(source, tmp_path / "b.onnx", weight_type=QuantType.QInt8, per_channel=True)
    if isa is not None:
        set_processor(monkeypatch, isa)
    found = OnnxPredictor(tmp_path / "b.onnx", threads=1).run({"x0": np.ones((2, 64), np.float32)})[f"x{layers}"]
    np.testing.assert_allclose(found, np.full((2, 64), 32.0**layers), rtol=0.01)


def test_products_that_read_a_weight_through_dequantize_linear_are_right_on_every_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ALBERT's files for `qnn` have them: with its setting ONNX Runtime 1.31 cannot open these on x86 without VNNI."""
    nodes = [helper.make_node("DequantizeLinear", ["weight", "step", "zero"], ["wide"])]
    for i in range(2):
        nodes += [
            helper.make_node("QuantizeLinear", [f"x{i}", f"step{i}", "middle"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", f"step{i}", "middle"], [f"d{i}"]),
            helper.make_node("MatMul", [f"d{i}", "wide"], [f"x{i + 1}"]),
        ]
    steps = {"step": 0.5 / 127, "step0": 1 / 255, "step1": 32 / 255}
    stored = {
        "weight": np.full((64, 64), 127, np.int8),
        "zero": np.array(0, np.int8),
        "middle": np.array(0, np.uint8),
        **{name: np.array(step, np.float32) for name, step in steps.items()},
    }
    path = write_graph(tmp_path / "a.onnx", nodes, stored, "x2")
    for isa in (describe_machine().isa, ["avx2"]):
        set_processor(monkeypatch, *isa)
        found = OnnxPredictor(path, threads=1).run({"x0": np.ones((2, 64), np.float32)})["x2"]
        np.testing.assert_allclose(found, np.full((2, 64), 1024.0), rtol=0.01)


@pytest.fixture(scope="module")
def shared(exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ALBERT in int8: all its layers read the same weights."""
    path = tmp_path_factory.mktemp("shared") / "model_int8.onnx"
    quantize(exported("albert"), path, Plan(Format.ONNX, Scheme.INT8))
    return path


def test_shared_weights_become_the_same_numbers_in_uint8_and_nothing_else_changes(
    shared: Path, exported: Callable[[str], Path]
) -> None:
    before, content = onnx.load(shared), convert_shared_weights_to_uint8(shared)
    assert content is not None
    after = onnx.load_from_string(content)
    old, new = ({t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (before, after))
    changed = {name for name in old if old[name].dtype != new[name].dtype}
    products = [n for n in before.graph.node if n.op_type == "MatMulInteger"]
    readers = [n.input[1] for n in products]
    twice = {name for name in readers if readers.count(name) > 1}
    assert twice
    assert changed == {name for n in products if n.input[1] in twice for name in (n.input[1], n.input[3])}
    for name in changed:
        assert (old[name].dtype, new[name].dtype) == (np.int8, np.uint8)
        np.testing.assert_array_equal(old[name].astype(int) + 128, new[name])
    kept = {t.name: t for t in before.graph.initializer}
    for tensor in after.graph.initializer:
        if tensor.name in changed:
            tensor.CopyFrom(kept[tensor.name])
    assert after == before
    assert convert_shared_weights_to_uint8(exported("bert")) is None


def test_answers_of_shared_weights_are_the_same_on_processors_without_vnni(
    shared: Path, opened: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = batch(2, 24)
    found = OnnxPredictor(shared, threads=1).run(inputs)["logits"]
    opened.clear()
    set_processor(monkeypatch, "avx2")
    np.testing.assert_allclose(OnnxPredictor(shared, threads=1).run(inputs)["logits"], found, atol=1e-6)
    assert opened == [(str(shared), "1"), (convert_shared_weights_to_uint8(shared), "1")]
    opened.clear()
    set_processor(monkeypatch, "avx2", "avx512_vnni", "amx_int8")
    OnnxPredictor(shared)
    assert opened == [(str(shared), "0")]  # only processors that saturate take the slower kernels
