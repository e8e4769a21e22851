"""Static files for Qualcomm's NPU: types, answers, padding, the mask's constant; compiled where the vendor's package is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.onnx import check_readable, export
from pocketbert.export.prepare import prepare
from pocketbert.quantize import weights
from pocketbert.quantize.files import quantize, read_weight_types
from pocketbert.quantize.onnx import qnn
from pocketbert.quantize.onnx.qnn import Encoding, fix_shape
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.weights import WeightTypes
from pocketbert.runtime.onnx import OnnxPredictor
from support.exact import exact_bert
from support.learned import learned_of
from support.tiny import EXPORTED, tiny_classifier

SCHEMES = (Scheme.A16W8, Scheme.A8W8)
QUICK = ("bert", "roberta", "longformer")
SLOW = tuple(f for f in EXPORTED if f not in QUICK)
FAMILIES = (*QUICK, *(pytest.param(f, marks=pytest.mark.slow) for f in SLOW))
WORST = {Scheme.A16W8: 0.1, Scheme.A8W8: 0.3}
Feed = dict[str, NDArray[np.int64]]
Made = Callable[[str, Scheme], tuple[Path, WeightTypes]]


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


def plan(scheme: Scheme, rows: list[Feed]) -> Plan:
    return Plan(Format.ONNX, scheme, Runtime.QNN, lambda: rows)


def feeds(count: int, seed: int = 0) -> list[Feed]:
    """Unpadded rows of 4 to 30 tokens, with more names than some graphs take."""
    draw = np.random.default_rng(seed)
    ids = [draw.integers(5, 90, (1, draw.integers(4, 31))) for _ in range(count)]
    return [{"input_ids": i, "attention_mask": np.ones_like(i), "token_type_ids": i * 0} for i in ids]


def padded(row: Feed, length: int, name: str = "bert") -> Feed:
    """A row with padding, where a family has it."""
    family = find_family(name)
    fill = {"input_ids": family.tiny["pad_token_id"], "attention_mask": 0, "token_type_ids": 0}
    more = length - row["input_ids"].shape[1]
    sides = (more, 0) if family.padding_side == "left" else (0, more)
    return {n: np.pad(v, ((0, 0), sides), constant_values=fill[n]) for n, v in row.items()}


def answers(path: Path, rows: list[Feed]) -> NDArray[np.float32]:
    """Logits [N, C] of rows run one by one."""
    predictor = OnnxPredictor(path, threads=1)
    return np.concatenate([np.asarray(predictor.run(r)["logits"], np.float32) for r in rows])


@pytest.fixture(scope="module")
def made(exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """`made(family, scheme)`: the file of a tiny classifier, and the types found in it."""
    done: dict[tuple[str, Scheme], tuple[Path, WeightTypes]] = {}

    def make(family: str, scheme: Scheme) -> tuple[Path, WeightTypes]:
        if (family, scheme) not in done:
            path = tmp_path_factory.mktemp(f"qnn-{family}") / f"model_{scheme}_qnn.onnx"
            done[family, scheme] = path, quantize(exported(family), path, plan(scheme, feeds(40)))
        return done[family, scheme]

    return make


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_answers_stay_near_those_of_fp32_with_and_without_padding(
    scheme: Scheme, family: str, made: Made, exported: Callable[[str], Path]
) -> None:
    rows, path = feeds(30, seed=1), made(family, scheme)[0]
    ours = answers(path, rows)
    assert 0 < rms_error(ours, answers(exported(family), rows)) < WORST[scheme]
    # ranges are fixed: a row's numbers depend on its padding by the order of sums only
    with_padding = [padded(r, 40, family) for r in rows]
    assert rms_error(answers(path, with_padding), ours) < 0.02


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_float_goes_through_integers_that_opset_20_can_hold(scheme: Scheme, made: Made) -> None:
    path, types = made("bert", scheme)
    check_readable(path)
    graph = onnx.load(path).graph
    quantized = {n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
    integers = {n.output[0]: n for n in graph.node if n.op_type == "DequantizeLinear"}
    moved = {"DequantizeLinear", "QuantizeLinear", "Shape", "Concat"}
    computed = [n for n in graph.node if n.op_type not in moved and n.output[0] in quantized]
    assert len(computed) > 60
    for node in computed:
        floats = [n for n in node.input if n in integers]
        assert floats or node.op_type == "Cast", node.op_type
    assert {n.domain for n in graph.node} == {"", "com.microsoft"}
    assert not [t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT and not t.name.endswith("_scale")]
    assert all(u.fused and u.per_channel for u in types.uses if u.bits)
    bits = {u.bits for u in types.uses if u.bits}
    assert bits == ({16} if scheme is Scheme.A16W8 else {8, 16})


def test_16_bits_have_room_for_texts_that_reach_further_than_the_calibration_texts(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, rows, exact = feeds(2), feeds(30, seed=1), exported("bert")
    errors = []
    for room in (qnn.ROOM, 1.0):
        monkeypatch.setattr(qnn, "ROOM", room)
        path = tmp_path / f"{room}.onnx"
        quantize(exact, path, plan(Scheme.A16W8, few))
        errors.append(rms_error(answers(path, rows), answers(exact, rows)))
    assert errors[0] < WORST[Scheme.A16W8]
    assert errors[0] < errors[1] / 2


def test_learned_ranges_take_the_place_of_measured_ones(
    made: Made, exported: Callable[[str], Path], open_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    learned = learned_of(exact_bert(open_tiny, 2, Format.ONNX).module, Format.ONNX, Runtime.QNN)
    path = tmp_path / "model.onnx"
    quantize(exported("bert"), path, replace(plan(Scheme.A8W8, feeds(40)), learned=learned))
    before, after = (_ends(p) for p in (made("bert", Scheme.A8W8)[0], path))
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    inputs = {name for name in changed if after[name] == pytest.approx((-0.25, 0.5), abs=0.005)}
    results = {name for name in changed if after[name] == pytest.approx((-0.5, 0.25), abs=0.005)}
    assert inputs | results == changed, "everything else is measured"
    assert all(name.endswith("_u8") for name in inputs), "what others read in 16 bits has its own range"
    assert len(inputs) >= 4
    assert len(results) >= 4


def _ends(path: Path) -> dict[str, tuple[float, float]]:
    """The ends of the range of each tensor that goes through integers."""
    graph = onnx.load(path).graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    out = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            step, zero = float(stored[node.input[1]]), stored[node.input[2]]
            top = np.iinfo(zero.dtype).max
            out[node.output[0]] = (-int(zero) * step, (int(top) - int(zero)) * step)
    return out


def test_the_constant_of_the_mask_is_as_small_as_it_may_be(made: Made) -> None:
    graph = onnx.load(made("bert", Scheme.A16W8)[0]).graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    counts = Encoding.of_counts()
    quantized = [n for n in graph.node if n.op_type == "QuantizeLinear" and stored[n.input[1]] != counts.step]
    least = min(float(-stored[n.input[2]].astype(np.float32) * stored[n.input[1]]) for n in quantized)
    assert -100 < least <= -16


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_constant_of_1e4_in_the_mask_fails(
    scheme: Scheme, exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qnn, "_MARGIN", 1e4)
    with pytest.raises(GateError, match="the constant of the mask is in their range"):
        quantize(exported("bert"), tmp_path / "a.onnx", plan(scheme, feeds(4)))


@pytest.mark.parametrize(
    "family", ["longformer", *(pytest.param(f, marks=pytest.mark.slow) for f in ("modernbert", "xlnet"))]
)
def test_windows_hold_for_longer_texts_than_those_of_the_calibration(
    family: str, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    path, short = tmp_path / "model.onnx", [r for r in feeds(60) if r["input_ids"].shape[1] < 12]
    quantize(exported(family), path, plan(Scheme.A16W8, short))
    long = [r for r in feeds(60, seed=1) if r["input_ids"].shape[1] > 20]
    assert 0 < rms_error(answers(path, long), answers(exported(family), long)) < WORST[Scheme.A16W8]


def test_a_mask_that_is_divided_by_its_constant_is_zeros_and_ones_again(tmp_path: Path) -> None:
    family, task = find_family("deberta-v2"), TASKS[TaskName.TEXT_CLASSIFICATION]
    model = tiny_classifier("deberta-v2", 2, ("a", "b", "c"), conv_kernel_size=3)
    module, rows, path = prepare(model, family, task, Format.ONNX), feeds(30, seed=1), tmp_path / "model.onnx"
    export(module, family, task, {n: np.repeat(v, 2, 0) for n, v in rows[0].items()}, path)
    quantize(path, tmp_path / "a.onnx", plan(Scheme.A16W8, feeds(40)))
    with_padding = [padded(r, 40) for r in rows]
    assert 0 < rms_error(answers(tmp_path / "a.onnx", with_padding), answers(path, rows)) < WORST[Scheme.A16W8]


def test_a_graph_without_a_mask_is_refused(exported: Callable[[str], Path], tmp_path: Path) -> None:
    model = onnx.load(exported("bert"))
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and not tensor.dims and numpy_helper.to_array(tensor) < -1e3:
            tensor.CopyFrom(numpy_helper.from_array(np.float32(-1), tensor.name))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(GateError, match="its mask cannot be written in integers"):
        quantize(tmp_path / "model.onnx", tmp_path / "a.onnx", plan(Scheme.A16W8, feeds(4)))
    assert not (tmp_path / "a.onnx").exists()


def test_a_quantizer_that_does_nothing_fails(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qnn._IntegerWriter, "run", lambda self: None)
    with pytest.raises(GateError, match="the quantizer did nothing"):
        quantize(exported("bert"), tmp_path / "a.onnx", plan(Scheme.A16W8, feeds(4)))


def test_each_file_is_refused_under_another_name(made: Made) -> None:
    types = {s: read_weight_types(made("bert", s)[0], Format.ONNX) for s in SCHEMES}
    for mine, other in (SCHEMES, SCHEMES[::-1]):
        row = find_row(Format.ONNX, mine, Runtime.QNN)
        assert row.problems(types[mine], "a") == []
        assert any("multiplied with numbers of" in p for p in row.problems(types[other], "a"))


def test_integers_hold_zero_exactly_and_clip() -> None:
    encoding = Encoding.of_range(8, 0.5, 2.0)
    assert (encoding.zero, encoding.dtype) == (0, np.uint8)
    assert encoding.to_integers(np.array([-1.0, 0.0, 2.0, 9.0], np.float32)).tolist() == [0, 0, 255, 255]
    factors = np.array([1.0, 2.0, 4.0], np.float32)
    exact = Encoding.of_constants(16, factors)
    assert np.array_equal((exact.to_integers(factors).astype(np.float32) - exact.zero) * exact.step, factors)
    wide = Encoding.of_range(16, -1.0, 1.0)
    assert abs(wide.to_integers(np.array([0.0], np.float32))[0] - wide.zero) == 0


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
def test_the_npu_takes_the_whole_graph(scheme: Scheme, soc: str, made: Made) -> None:
    check_taken(made("bert", scheme)[0], soc, [padded(r, 32) for r in feeds(3, seed=2)])


@pytest.mark.slow
@pytest.mark.skipif(bool(_qnn_missing()), reason=_qnn_missing())
@pytest.mark.parametrize("family", [f for f in EXPORTED if f != "bert"])
def test_the_npu_takes_the_whole_graph_of_every_family(family: str, made: Made) -> None:
    path = made(family, Scheme.A16W8)[0]
    fixed = path.with_name("fixed.onnx")
    fixed.write_bytes(path.read_bytes())
    fix_shape(fixed, 32)
    check_taken(fixed, "SM8650", [padded(r, 32, family) for r in feeds(3, seed=2)])


def test_an_operator_with_several_results_is_followed_in_all_of_them(
    exported: Callable[[str], Path], tmp_path: Path
) -> None:
    """As the split of a question-answering head into first and last tokens."""
    model = onnx.load(exported("bert"))
    for node in model.graph.node:
        for at, name in enumerate(node.output):
            node.output[at] = "all" if name == "logits" else name
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "parts"))
    model.graph.node.append(onnx.helper.make_node("Split", ["all", "parts"], ["first", "logits"], axis=1))
    model.graph.output.append(onnx.helper.make_tensor_value_info("first", TensorProto.FLOAT, ["batch", 1]))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2
    onnx.save(model, tmp_path / "parts.onnx")
    quantize(tmp_path / "parts.onnx", tmp_path / "parts_qnn.onnx", plan(Scheme.A16W8, feeds(40)))
    rows, exact = feeds(20, seed=1), [OnnxPredictor(tmp_path / n, threads=1) for n in ("parts.onnx", "parts_qnn.onnx")]
    for name in ("first", "logits"):
        fp32, small = (np.concatenate([np.asarray(p.run(r)[name]) for r in rows]) for p in exact)
        assert 0 < rms_error(small, fp32) < WORST[Scheme.A16W8]
    quantized = {n.input[0] for n in onnx.load(tmp_path / "parts_qnn.onnx").graph.node if n.op_type == "QuantizeLinear"}
    assert {"first_exact", "logits_exact"} <= quantized
