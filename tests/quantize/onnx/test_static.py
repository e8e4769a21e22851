"""Static int8 for ONNX, plain and for OpenVINO: types, ranges, answers that no padding changes, and what is refused."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pocketbert.core.compare.evaluate import logit_spread, rms_error
from pocketbert.core.errors import GateError
from pocketbert.core.families import family_of, find_family
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.prepare import prepare
from pocketbert.quantize.files import quantize
from pocketbert.quantize.onnx import static
from pocketbert.quantize.table import Plan
from pocketbert.quantize.weights import Use, WeightTypes
from pocketbert.runtime import openvino
from pocketbert.runtime.onnx import OnnxPredictor
from support.quantized import Feed, answer_rows, draw_rows, export_file, join_rows, pad_row
from support.tiny import BASIC

QUICK = ("bert", "mobilebert")
SLOW = [pytest.param(f, marks=pytest.mark.slow) for f in BASIC if f not in QUICK]
FAMILIES = [*QUICK, *SLOW]
LAYERS = 2

Made = Callable[..., tuple[Path, WeightTypes]]


def plan(rows: list[Feed], runtime: Runtime | None = Runtime.OPENVINO, **more: Any) -> Plan:
    return Plan(Format.ONNX, Scheme.A8W8, runtime, lambda: rows, **more)


def answers(path: Path, rows: list[Feed]) -> NDArray[np.float32]:
    return answer_rows(OnnxPredictor(path, threads=1), rows)


@pytest.fixture(scope="module")
def made(exported, tmp_path_factory) -> Made:
    """`made(family="bert", runtime=Runtime.OPENVINO)`: the static file of a tiny classifier, and its types."""

    @cache
    def make(family: str = "bert", runtime: Runtime | None = Runtime.OPENVINO) -> tuple[Path, WeightTypes]:
        path = tmp_path_factory.mktemp(f"static-{family}") / "model_static.onnx"
        return path, quantize(exported(family), path, plan(draw_rows(40), runtime))

    return make


@pytest.mark.parametrize("family", [*FAMILIES[1:], "deberta"])  # whose products read rows of tables
def test_answers_stay_near_those_of_fp32_and_padding_changes_none(family, made, exported):
    rows, path = draw_rows(24, seed=1), made(family)[0]
    alone = answers(path, rows)
    assert 0 < rms_error(alone, answers(exported(family), rows)) < 0.3
    # no padded row was measured; a sum in another order may fall to the other side of half a step
    together = OnnxPredictor(path, threads=1).run(join_rows(rows, 40, find_family(family).tiny["pad_token_id"]))
    assert rms_error(together["logits"], alone) < 0.02


def list_origins(graph: Any, name: str) -> Iterator[str]:
    """Operators that a tensor comes through, up to its quantization or the first that computes."""
    producers = {o: n for n in graph.node for o in n.output}
    while name in producers:
        node = producers[name]
        yield node.op_type
        if node.op_type not in ("Reshape", "Transpose", "DequantizeLinear"):
            return
        name = node.input[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_both_operands_of_every_product_are_8_bits_but_probabilities(family, made):
    graph = onnx.load(made(family)[0]).graph
    scores = values = 0
    for node in graph.node:
        if node.op_type not in ("MatMul", "Gemm"):
            continue
        left, right = (list(list_origins(graph, name)) for name in node.input[:2])
        if left[0] == "Softmax":
            values += 1
            assert "QuantizeLinear" not in right
            continue
        assert "DequantizeLinear" in left and "DequantizeLinear" in right, node.name
        scores += "QuantizeLinear" in left and "QuantizeLinear" in right
    assert scores == values == LAYERS


@pytest.mark.parametrize("family", ["bert", pytest.param("mobilebert", marks=pytest.mark.slow)])
def test_a_tied_table_is_stored_once(family, make_classifier, tmp_path):
    task, words = TASKS[TaskName.FILL_MASK], 1031  # no other axis is a multiple of it
    model = make_classifier(family, 1, ("a",), auto_class=task.auto_class, vocab_size=words)
    rows, source, target = draw_rows(20), tmp_path / "model.onnx", tmp_path / "static.onnx"
    export_file(prepare(model, family_of(family), task), family_of(family), source, task=task)
    tied = [u for u in quantize(source, target, plan(rows)).uses if u.numbers % words == 0]
    assert {u.use for u in tied} == set(Use)
    assert {u.dtype for u in tied} == {"int8"}
    stored = [t for t in onnx.load(target).graph.initializer if np.prod(t.dims) % words == 0 and len(t.dims) == 2]
    assert [t.data_type for t in stored] == [TensorProto.INT8] * (len(tied) - 1)
    assert rms_error(answers(target, rows[3:4])[0], answers(source, rows[3:4])[0]) < 0.3


# OpenVINO itself.


def answer_by_openvino(path: Path, rows: list[Feed], precision: str) -> NDArray[np.float32]:
    """Answers of OpenVINO, with what is not int8 in a float type."""
    pytest.importorskip("openvino")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvino, "choose_float_type", lambda: precision)
        return answer_rows(openvino.OpenVinoPredictor(path, threads=1), rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_openvino_computes_the_same(family, made):
    rows, path = draw_rows(10, seed=3), made(family)[0]
    assert rms_error(answer_by_openvino(path, rows, "f32"), answers(path, rows)) < 0.05


# XLNet reads its queries twice: as they are, and with a vector added
@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_openvino_computes_the_same_for_a_processor_without_vnni(family, made, monkeypatch):
    rows, path, here = draw_rows(10, seed=3), made(family)[0], describe_machine()
    older = replace(here, arch="x86_64", isa=["avx2"])
    monkeypatch.setattr(openvino, "describe_machine", lambda: older)
    assert rms_error(answer_by_openvino(path, rows, "f32"), answers(path, rows)) < 0.01


@pytest.mark.skipif(openvino.choose_float_type() != "bf16", reason="OpenVINO computes in fp32 on this CPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_in_openvino_adds_less_error_than_int8_has(family, made, exported):
    rows, path = draw_rows(60, seed=4), made(family)[0]
    reference = answers(exported(family), rows)
    errors = {p: rms_error(answer_by_openvino(path, rows, p), reference) for p in ("f32", "bf16")}
    assert 0 < errors["bf16"] < 2**0.5 * errors["f32"], errors  # two errors that know nothing of each other


# Files for any engine: what a product reads is the same in every batch.


def test_answers_of_a_plain_file_are_the_same_bits_in_every_batch(made, exported, tmp_path):
    rows = draw_rows(16, seed=3)
    path, dynamic = made("bert", None)[0], tmp_path / "model_int8.onnx"
    quantize(exported("bert"), dynamic, Plan(Format.ONNX, Scheme.INT8))
    alone, ranged = answers(path, rows), answers(dynamic, rows)
    together = OnnxPredictor(path, threads=1).run(join_rows(rows, 40))["logits"]
    padded = answers(path, [pad_row(r, 40) for r in rows])
    assert max(np.abs(together - alone).max(), np.abs(padded - alone).max()) <= 1e-6 * logit_spread(alone)
    other = OnnxPredictor(dynamic, threads=1).run(join_rows(rows, 40))["logits"]
    assert rms_error(other, ranged) > 5e-3, "the dynamic file's answers depend on it"

    model = onnx.load(path)
    assert {e.domain for e in model.opset_import} <= {"", "ai.onnx.ml", "com.microsoft"}
    assert {n.domain for n in model.graph.node} == {""}
    assert not [n for n in model.graph.node if n.op_type == "DynamicQuantizeLinear"]
    assert path.stat().st_size < 1.05 * dynamic.stat().st_size


# Scales, on one product.


def write_product(path: Path, weight: NDArray[np.float32], op: str = "MatMul", fill: float | None = None) -> Path:
    """A table of 50 rows, and one product of its rows with a weight, which is transposed where `op` says so."""
    table = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    table = table if fill is None else np.full_like(table, fill)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)
    kind, _, transposed = op.partition(" ")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "one"], ["mean"], keepdims=0),
        helper.make_node(kind, ["mean", "weight"], ["logits"], **({"transB": 1} if transposed else {})),
    ]
    weight = np.ascontiguousarray(weight.T if transposed else weight)
    stored = {"table": table, "weight": weight, "one": np.array([1], np.int64)}
    graph = helper.make_graph(nodes, "g", [ids], [out], [numpy_helper.from_array(v, n) for n, v in stored.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Gemm transposed"])
def test_scales_lie_along_outputs(op, tmp_path):
    # outputs of very different sizes: one scale, or one along the wrong axis, would lose the small ones
    weight = (np.random.default_rng(1).normal(size=(32, 20)) * np.logspace(0, -4, 20)).astype(np.float32)
    source = write_product(tmp_path / "a.onnx", weight, op)
    rows: list[Feed] = [{"input_ids": r["input_ids"] % 50} for r in draw_rows(40)]
    quantize(source, tmp_path / "b.onnx", plan(rows))
    ours, reference = answers(tmp_path / "b.onnx", rows), answers(source, rows)
    assert (np.abs(ours - reference).max(0) < 0.1 * reference.std(0)).all()


# What is refused, and that nothing is left then.


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_range_that_is_none_is_an_error(value, tmp_path):
    source = write_product(tmp_path / "a.onnx", np.ones((32, 20), np.float32), fill=value)
    said = "(nothing but zeros|NaN or infinite numbers) on the calibration texts, which gives no range: mean"
    with pytest.raises(GateError, match=said):
        quantize(source, tmp_path / "b.onnx", plan([{"input_ids": np.array([[1, 2]])}]))
    assert [p.name for p in tmp_path.glob("*") if p.is_file()] == ["a.onnx"]


def test_a_weight_that_was_left_float_is_named(exported, tmp_path, monkeypatch):
    real = static._OpenvinoRewriter._plan_product
    skipped = next(n for n in onnx.load(exported("bert")).graph.node if n.op_type == "Gemm")

    def forgetful(self: Any, node: Any) -> None:
        if node.output[0] != skipped.output[0]:
            real(self, node)

    monkeypatch.setattr(static._OpenvinoRewriter, "_plan_product", forgetful)
    with pytest.raises(GateError, match=r"still float: .*\(1 in all\)") as caught:
        quantize(exported("bert"), tmp_path / "a.onnx", plan(draw_rows(3)))
    assert skipped.input[1] in str(caught.value)


def test_a_file_that_measures_while_it_answers_is_refused(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(static, "_store_ranges", lambda *_: None)
    with pytest.raises(GateError, match="on the fly, not in a measured range"):
        quantize(exported("bert"), tmp_path / "a.onnx", plan(draw_rows(5), None))
