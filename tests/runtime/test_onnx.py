from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from pocketbert.core.errors import InputError
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.types import Format
from pocketbert.runtime.engines import open_file
from pocketbert.runtime.onnx import PRECISE_INT8_SETTING, OnnxPredictor


@pytest.mark.parametrize(("isa", "precise"), [(["avx2"], "1"), (["avx2", "avx512_vnni", "amx_int8"], "0")])
def test_only_processors_that_saturate_take_the_slower_kernels(
    isa: list[str], precise: str, exported: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = describe_machine().model_copy(update={"arch": "x86_64", "isa": isa})
    monkeypatch.setattr("pocketbert.runtime.onnx.describe_machine", lambda: here)
    options = OnnxPredictor(exported("bert"))._session.get_session_options()
    assert options.get_session_config_entry(PRECISE_INT8_SETTING) == precise


def batch(rows: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 100 + 5
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.onnx: file not found"):
        OnnxPredictor(tmp_path / "none.onnx")


@pytest.mark.parametrize("raw", [b"", b"garbage" * 50, b"\x08\x07"])
def test_a_broken_file_is_an_input_error_on_one_line(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.onnx").write_bytes(raw)
    with pytest.raises(InputError, match=r"a.onnx: ONNX Runtime [\d.]+ refuses the file: ") as caught:
        OnnxPredictor(tmp_path / "a.onnx")
    assert len(str(caught.value).splitlines()) == 1


def test_a_truncated_file_is_an_input_error(exported: Callable[[str], Path], tmp_path: Path) -> None:
    raw = exported("bert").read_bytes()
    (tmp_path / "a.onnx").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(InputError, match="refuses the file"):
        OnnxPredictor(tmp_path / "a.onnx")


@pytest.mark.parametrize("shape", [(1, 3), (4, 17), (2, 48)])
def test_any_batch_and_length_is_run(exported: Callable[[str], Path], shape: tuple[int, int]) -> None:
    predictor = OnnxPredictor(exported("bert"), threads=1)
    assert predictor.outputs == ("logits",)
    found = predictor.run(batch(*shape))["logits"]
    assert (found.shape, found.dtype) == ((shape[0], 3), np.float32)


@pytest.mark.parametrize("layers", [1, 2], ids=["one product", "a weight that two products share"])
@pytest.mark.parametrize("isa", [None, ["avx2"]], ids=["this processor", "a processor without VNNI"])
def test_int8_products_are_right_on_every_processor(
    layers: int, isa: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours of 255 steps times 127 pass 16 bits, in which x86 processors without VNNI add where nobody says otherwise."""
    nodes = [helper.make_node("MatMul", [f"x{i}", "weight"], [f"x{i + 1}"]) for i in range(layers)]
    ends = [helper.make_tensor_value_info(f"x{i}", onnx.TensorProto.FLOAT, ["rows", 64]) for i in (0, layers)]
    weight = numpy_helper.from_array(np.full((64, 64), 0.5, np.float32), "weight")
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "a.onnx")
    quantize_dynamic(tmp_path / "a.onnx", tmp_path / "b.onnx", weight_type=QuantType.QInt8, per_channel=True)
    here = describe_machine() if isa is None else describe_machine().model_copy(update={"arch": "x86_64", "isa": isa})
    monkeypatch.setattr("pocketbert.runtime.onnx.describe_machine", lambda: here)
    predictor = OnnxPredictor(tmp_path / "b.onnx", threads=1)
    found = predictor.run({"x0": np.ones((2, 64), np.float32)})[f"x{layers}"]
    assert found.shape == (2, 64)
    np.testing.assert_allclose(found, 32.0**layers, rtol=0.01)


def test_products_that_read_a_weight_through_dequantize_linear_are_right_on_every_processor(tmp_path: Path) -> None:
    """ALBERT's files for `qnn` have them: with its setting ONNX Runtime 1.31 cannot open these on x86 without VNNI."""
    nodes = [helper.make_node("DequantizeLinear", ["weight", "step", "zero"], ["wide"])]
    for i in range(2):
        nodes += [
            helper.make_node("QuantizeLinear", [f"x{i}", f"step{i}", "middle"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", f"step{i}", "middle"], [f"d{i}"]),
            helper.make_node("MatMul", [f"d{i}", "wide"], [f"x{i + 1}"]),
        ]
    stored = {
        "weight": np.full((64, 64), 127, np.int8),
        "zero": np.array(0, np.int8),
        "middle": np.array(0, np.uint8),
        "step": np.array(0.5 / 127, np.float32),
        "step0": np.array(1 / 255, np.float32),
        "step1": np.array(32 / 255, np.float32),
    }
    ends = [helper.make_tensor_value_info(f"x{i}", onnx.TensorProto.FLOAT, ["rows", 64]) for i in (0, 2)]
    tensors = [numpy_helper.from_array(v, n) for n, v in stored.items()]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "a.onnx")
    found = OnnxPredictor(tmp_path / "a.onnx", threads=1).run({"x0": np.ones((2, 64), np.float32)})["x2"]
    np.testing.assert_allclose(found, np.full((2, 64), 1024.0), rtol=0.01)


def test_rows_do_not_depend_on_their_neighbours(exported: Callable[[str], Path]) -> None:
    predictor, inputs = OnnxPredictor(exported("bert")), batch(4, 9)
    together = predictor.run(inputs)["logits"]
    alone = np.concatenate([predictor.run({k: v[i : i + 1] for k, v in inputs.items()})["logits"] for i in range(4)])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_more_inputs_than_the_graph_wants_are_ignored(exported: Callable[[str], Path]) -> None:
    predictor, inputs = OnnxPredictor(exported("bert")), batch(2, 5)
    more = {**inputs, "position_ids": np.zeros((2, 5), np.int64)}
    np.testing.assert_array_equal(predictor.run(more)["logits"], predictor.run(inputs)["logits"])


def test_the_profile_lists_operators(exported: Callable[[str], Path], tmp_path: Path) -> None:
    predictor = OnnxPredictor(exported("bert"), profile=tmp_path / "profile")
    predictor.run(batch(1, 5))
    written = predictor.end_profile()
    assert written.parent == tmp_path
    assert any(e.get("args", {}).get("op_name") for e in json.loads(written.read_text()))


def test_a_format_is_opened_by_its_engine(exported: Callable[[str], Path]) -> None:
    predictor = open_file(exported("bert"), Format.ONNX, threads=1)
    assert predictor.engine == "onnxruntime"
    assert predictor.engine_version.count(".") >= 1
