"""Static files for Qualcomm's NPU: types, answers, padding, the mask's constant; compiled where the vendor's package is."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from pocketbert.benchmarks.devices.qnn import _qnn_missing, _QnnCompiler, find_qnn_chip
from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError
from pocketbert.core.families import find_family
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.prepare import prepare
from pocketbert.quantize.files import quantize
from pocketbert.quantize.onnx import qnn
from pocketbert.quantize.onnx.qnn import Encoding, fix_shape
from pocketbert.quantize.table import Plan
from pocketbert.quantize.weights import WeightTypes
from pocketbert.runtime.onnx import OnnxPredictor
from support.quantized import CLASSIFY, Feed, answer_rows, draw_rows, export_file, pad_row
from support.tiny import EXPORTED, tiny_classifier

SCHEMES = (Scheme.A16W8, Scheme.A8W8)
WORST = {Scheme.A16W8: 0.1, Scheme.A8W8: 0.3}
QUICK = ("bert", "roberta", "longformer")
SLOW = [pytest.param(f, marks=pytest.mark.slow) for f in EXPORTED if f not in QUICK]

Made = Callable[[str, Scheme], tuple[Path, WeightTypes]]


def plan(scheme: Scheme, rows: list[Feed], **more: Any) -> Plan:
    return Plan(Format.ONNX, scheme, Runtime.QNN, lambda: rows, **more)


def pad_rows(rows: list[Feed], length: int, name: str = "bert") -> list[Feed]:
    """Rows with padding, where a family has it."""
    family = find_family(name)
    return [pad_row(r, length, family.tiny["pad_token_id"], family.padding_side == "left") for r in rows]


def answers(path: Path, rows: list[Feed], name: str = "logits") -> NDArray[np.float32]:
    return answer_rows(OnnxPredictor(path, threads=1), rows, name)


@pytest.fixture(scope="module")
def made(exported, tmp_path_factory) -> Made:
    """`made(family, scheme)`: the file of a tiny classifier, and the types found in it."""

    @cache
    def make(family: str, scheme: Scheme) -> tuple[Path, WeightTypes]:
        path = tmp_path_factory.mktemp(f"qnn-{family}") / f"model_{scheme}_qnn.onnx"
        return path, quantize(exported(family), path, plan(scheme, draw_rows(40)))

    return make


@pytest.mark.parametrize("family", [*QUICK, *SLOW])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_answers_stay_near_those_of_fp32_with_and_without_padding(scheme, family, made, exported):
    rows, path = draw_rows(30, seed=1), made(family, scheme)[0]
    ours = answers(path, rows)
    assert 0 < rms_error(ours, answers(exported(family), rows)) < WORST[scheme]
    # ranges are fixed: a row's numbers depend on its padding by the order of sums only
    assert rms_error(answers(path, pad_rows(rows, 40, family)), ours) < 0.02


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_float_goes_through_integers_that_opset_20_can_hold(scheme, made):
    path, types = made("bert", scheme)
    graph = onnx.load(path).graph
    quantized = {n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
    integers = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    moved = {"DequantizeLinear", "QuantizeLinear", "Shape", "Concat"}
    computed = [n for n in graph.node if n.op_type not in moved and n.output[0] in quantized]
    assert len(computed) > 60
    assert [n.op_type for n in computed if n.op_type != "Cast" and not integers.intersection(n.input)] == []
    assert {n.domain for n in graph.node} == {"", "com.microsoft"}
    assert not [t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT and not t.name.endswith("_scale")]
    assert all(u.fused and u.per_channel for u in types.uses if u.bits)
    assert {u.bits for u in types.uses if u.bits} == ({16} if scheme is Scheme.A16W8 else {8, 16})


def test_16_bits_have_room_for_texts_that_reach_further_than_the_calibration_texts(exported, tmp_path, monkeypatch):
    rows, exact = draw_rows(30, seed=1), exported("bert")
    errors = []
    for room in (qnn.ROOM, 1.0):
        monkeypatch.setattr(qnn, "ROOM", room)
        quantize(exact, tmp_path / f"{room}.onnx", plan(Scheme.A16W8, draw_rows(2)))
        errors.append(rms_error(answers(tmp_path / f"{room}.onnx", rows), answers(exact, rows)))
    assert errors[0] < min(WORST[Scheme.A16W8], errors[1] / 2)


def read_ranges(path: Path) -> dict[str, tuple[float, float]]:
    """The ends of the range of each tensor that goes through integers."""
    graph = onnx.load(path).graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    out = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            step, zero = float(stored[node.input[1]]), stored[node.input[2]]
            out[node.output[0]] = (-int(zero) * step, (int(np.iinfo(zero.dtype).max) - int(zero)) * step)
    return out


def test_the_constant_of_the_mask_is_as_small_as_it_may_be(made):
    ends = read_ranges(made("bert", Scheme.A16W8)[0]).values()
    counts = Encoding.of_counts().range
    assert -100 < min(low for low, high in ends if (low, high) != pytest.approx(counts)) <= -16


@pytest.mark.parametrize(
    "family", ["longformer", *(pytest.param(f, marks=pytest.mark.slow) for f in ("modernbert", "xlnet"))]
)
def test_windows_hold_for_longer_texts_than_those_of_the_calibration(family, exported, tmp_path):
    short = [r for r in draw_rows(60) if r["input_ids"].shape[1] < 12]
    quantize(exported(family), tmp_path / "a.onnx", plan(Scheme.A16W8, short))
    long = [r for r in draw_rows(60, seed=1) if r["input_ids"].shape[1] > 20]
    found, right = answers(tmp_path / "a.onnx", long), answers(exported(family), long)
    assert 0 < rms_error(found, right) < WORST[Scheme.A16W8]


def test_a_mask_that_is_divided_by_its_constant_is_zeros_and_ones_again(tmp_path):
    family, rows = find_family("deberta-v2"), draw_rows(30, seed=1)
    model = tiny_classifier("deberta-v2", 1, ("a", "b", "c"), conv_kernel_size=3)
    source = export_file(prepare(model, family, CLASSIFY, Format.ONNX), family, tmp_path / "model.onnx")
    quantize(source, tmp_path / "a.onnx", plan(Scheme.A16W8, draw_rows(40)))
    found = answers(tmp_path / "a.onnx", pad_rows(rows, 40))
    assert 0 < rms_error(found, answers(source, rows)) < WORST[Scheme.A16W8]


def test_a_graph_without_a_mask_is_refused(exported, tmp_path):
    model = onnx.load(exported("bert"))
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and not tensor.dims and numpy_helper.to_array(tensor) < -1e3:
            tensor.CopyFrom(numpy_helper.from_array(np.float32(-1), tensor.name))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(GateError, match="its mask cannot be written in integers"):
        quantize(tmp_path / "model.onnx", tmp_path / "a.onnx", plan(Scheme.A16W8, draw_rows(4)))
    assert not (tmp_path / "a.onnx").exists()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_constant_of_1e4_in_the_mask_fails(scheme, exported, tmp_path, monkeypatch):
    monkeypatch.setattr(qnn, "_MARGIN", 1e4)
    with pytest.raises(GateError, match="the constant of the mask is in their range"):
        quantize(exported("bert"), tmp_path / "a.onnx", plan(scheme, draw_rows(4)))


def test_integers_hold_zero_exactly_and_clip():
    encoding = Encoding.of_range(8, 0.5, 2.0)
    assert (encoding.zero, encoding.dtype) == (0, np.uint8)
    assert encoding.to_integers(np.array([-1.0, 0.0, 2.0, 9.0], np.float32)).tolist() == [0, 0, 255, 255]
    factors = np.array([1.0, 2.0, 4.0], np.float32)
    exact = Encoding.of_constants(16, factors)
    assert np.array_equal((exact.to_integers(factors).astype(np.float32) - exact.zero) * exact.step, factors)
    wide = Encoding.of_range(16, -1.0, 1.0)
    assert wide.to_integers(np.zeros(1, np.float32)).tolist() == [wide.zero]


def test_an_operator_with_several_results_is_followed_in_all_of_them(exported, tmp_path):
    """As the split of a question-answering head into first and last tokens."""
    model = onnx.load(exported("bert"))
    for node in model.graph.node:
        for at, name in enumerate(node.output):
            node.output[at] = "all" if name == "logits" else name
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "parts"))
    model.graph.node.append(onnx.helper.make_node("Split", ["all", "parts"], ["first", "logits"], axis=1))
    model.graph.output.append(onnx.helper.make_tensor_value_info("first", TensorProto.FLOAT, ["batch", 1]))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2
    source, path, rows = tmp_path / "parts.onnx", tmp_path / "parts_qnn.onnx", draw_rows(20, seed=1)
    onnx.save(model, source)
    quantize(source, path, plan(Scheme.A16W8, draw_rows(40)))
    for name in ("first", "logits"):
        assert 0 < rms_error(answers(path, rows, name), answers(source, rows, name)) < WORST[Scheme.A16W8]
    quantized = {n.input[0] for n in onnx.load(path).graph.node if n.op_type == "QuantizeLinear"}
    assert {"first_exact", "logits_exact"} <= quantized


# The vendor's compiler.


def check_taken(path: Path, soc: str, rows: list[Feed]) -> None:
    """A chip takes a file as a whole, and its emulator answers as this machine."""
    predictor: Any = OnnxPredictor(path, threads=1)
    feeds = [{name: row[name] for name in predictor.inputs} for row in rows]
    compiled = _QnnCompiler(find_qnn_chip(soc)).compile(predictor, path, 32, feeds, 60)
    assert (compiled.failed, compiled.left, compiled.partitions) == ("", [], 1)
    emulated = np.concatenate([a["logits"] for a in compiled.answers])
    assert rms_error(emulated, answers(path, feeds)) < 0.1


@pytest.mark.skipif(bool(_qnn_missing()), reason=_qnn_missing())
@pytest.mark.parametrize("soc", ["SM8650", *(pytest.param(s, marks=pytest.mark.slow) for s in ("SM8450", "SM8750"))])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_npu_takes_the_whole_graph(scheme, soc, made):
    check_taken(made("bert", scheme)[0], soc, pad_rows(draw_rows(3, seed=2), 32))


@pytest.mark.slow
@pytest.mark.skipif(bool(_qnn_missing()), reason=_qnn_missing())
@pytest.mark.parametrize("family", [f for f in EXPORTED if f != "bert"])
def test_the_npu_takes_the_whole_graph_of_every_family(family, made, tmp_path):
    fixed = tmp_path / "fixed.onnx"
    fixed.write_bytes(made(family, Scheme.A16W8)[0].read_bytes())
    fix_shape(fixed, 32)
    check_taken(fixed, "SM8650", pad_rows(draw_rows(3, seed=2), 32, family))
