"""Static int8 for ONNX: types, answers, padding, and what is refused. Speed in OpenVINO is no test's business."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError, InputError, MissingBackendError
from pocketbert.core.families import family_of
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export import onnx as exporter
from pocketbert.export.onnx import check_readable
from pocketbert.export.prepare import prepare
from pocketbert.quantize import weights
from pocketbert.quantize.files import quantize
from pocketbert.quantize.onnx import dynamic
from pocketbert.quantize.onnx import static as static_openvino
from pocketbert.quantize.table import Plan, Rows
from pocketbert.quantize.weights import Use, WeightTypes
from pocketbert.runtime import openvino as module
from pocketbert.runtime.onnx import OnnxPredictor
from pocketbert.runtime.openvino import choose_float_type
from support.exact import exact_bert
from support.learned import learned_of
from support.tiny import BASIC

FAMILIES = (
    "bert",
    "mobilebert",
    *(pytest.param(f, marks=pytest.mark.slow) for f in BASIC if f not in ("bert", "mobilebert")),
)
FILL = TASKS[TaskName.FILL_MASK]
LAYERS = 2
INTEGERS = (TensorProto.INT8, TensorProto.UINT8)

Feed = dict[str, NDArray[np.int64]]


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


def quantize_static(source: Path, destination: Path, rows: Rows) -> WeightTypes:
    """The a8w8 file for OpenVINO."""
    return quantize(source, destination, Plan(Format.ONNX, Scheme.A8W8, Runtime.OPENVINO, lambda: rows))


def feeds(count: int, seed: int = 0) -> list[Feed]:
    """Unpadded rows of 4 to 30 tokens, with more names than some graphs take."""
    draw = np.random.default_rng(seed)
    ids = [draw.integers(5, 90, (1, draw.integers(4, 31))) for _ in range(count)]
    return [{"input_ids": i, "attention_mask": np.ones_like(i), "token_type_ids": i * 0} for i in ids]


def padded(row: Feed, length: int, pad_id: int) -> Feed:
    """A row with padding behind it."""
    fill = {"input_ids": pad_id, "attention_mask": 0, "token_type_ids": 0}
    more = length - row["input_ids"].shape[1]
    return {n: np.pad(v, ((0, 0), (0, more)), constant_values=fill[n]) for n, v in row.items()}


def answers(path: Path, rows: list[Feed]) -> NDArray[np.float32]:
    """Logits [N, C] of rows run one by one."""
    predictor = OnnxPredictor(path, threads=1)
    return np.concatenate([np.asarray(predictor.run(r)["logits"], np.float32) for r in rows])


def openvino_answers(path: Path, rows: list[Feed], precision: str) -> NDArray[np.float32]:
    """The same by OpenVINO, with what is not int8 in `choose_float_type`."""
    pytest.importorskip("openvino")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "choose_float_type", lambda: precision)
        predictor = module.OpenVinoPredictor(path, threads=1)
    return np.concatenate([np.asarray(predictor.run(r)["logits"], np.float32) for r in rows])


@pytest.fixture(scope="module")
def made(
    exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, WeightTypes]]:
    """`made(family)`: the static int8 file of a tiny classifier, and the types found in it."""
    done: dict[str, tuple[Path, WeightTypes]] = {}

    def make(family: str) -> tuple[Path, WeightTypes]:
        if family not in done:
            path = tmp_path_factory.mktemp(f"static-{family}") / "model_static.onnx"
            done[family] = path, quantize_static(exported(family), path, feeds(40))
        return done[family]

    return make


def test_learned_ranges_take_the_place_of_measured_ones(
    made: Callable[[str], tuple[Path, WeightTypes]],
    exported: Callable[[str], Path],
    open_tiny: Callable[..., Any],
    tmp_path: Path,
) -> None:
    learned = learned_of(exact_bert(open_tiny, LAYERS, Format.ONNX).module, Format.ONNX, Runtime.OPENVINO)
    path = tmp_path / "model.onnx"
    plan = Plan(Format.ONNX, Scheme.A8W8, Runtime.OPENVINO, lambda: feeds(40), learned=learned)
    quantize(exported("bert"), path, plan)
    scales = {"int8": set[float](), "uint8": set[float]()}
    for name, found in zip(("before", "after"), (made("bert")[0], path), strict=True):
        graph = onnx.load(found).graph
        stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        nodes = [n for n in graph.node if n.op_type == "QuantizeLinear"]
        of = {n.output[0]: (stored[n.input[2]].dtype.name, float(stored[n.input[1]])) for n in nodes}
        if name == "before":
            measured = of
    for tensor, (kind, scale) in of.items():
        scales[kind].add(scale)
        assert kind == "uint8" or measured[tensor] == (kind, scale), "operands of attention scores are measured"
    assert sorted(scales["uint8"]) == pytest.approx([0.75 / 255] * len(scales["uint8"]))


def behind(graph: Any, name: str) -> Iterator[str]:
    """Operators that a tensor comes through, up to its quantization or the first that computes."""
    producers = {o: n for n in graph.node for o in n.output}
    while name in producers:
        node = producers[name]
        yield node.op_type
        if node.op_type not in ("Reshape", "Transpose", "DequantizeLinear"):
            return
        name = node.input[0]


@pytest.mark.parametrize("family", (*FAMILIES, "deberta"))  # whose products read rows of tables
def test_answers_stay_near_those_of_fp32(
    family: str, made: Callable[..., Any], exported: Callable[[str], Path]
) -> None:
    rows = feeds(30, seed=1)
    ours, reference = (answers(p, rows) for p in (made(family)[0], exported(family)))
    assert 0 < rms_error(ours, reference) < 0.3


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family: str, made: Callable[..., Any]) -> None:
    # no padded row was measured; ranges are fixed, so a row's numbers cannot depend on its neighbours
    rows = feeds(12, seed=2)
    pad_id = 1 if family == "roberta" else 0
    alone = answers(made(family)[0], rows)
    filled = [padded(r, 40, pad_id) for r in rows]
    batch = {name: np.concatenate([r[name] for r in filled]) for name in filled[0]}
    together = answers(made(family)[0], [batch])
    # a sum in another order may fall to the other side of half a step
    assert rms_error(together, alone) < 0.02


def test_weights_are_int8_and_the_file_is_small(made: Callable[..., Any], exported: Callable[[str], Path]) -> None:
    path, types = made("bert")
    assert {u.dtype for u in types.uses if u.numbers >= 512} == {"int8"}
    assert types.int8_matmuls >= 6 * LAYERS + 1
    assert types.int8_embeddings >= 2
    assert not any(u.dequantized for u in types.uses if u.use is Use.TABLE)
    check_readable(path)
    stored = {t.name: t for t in onnx.load(path).graph.initializer}
    large = {t.name: t.data_type for t in stored.values() if np.prod(t.dims) >= 512}
    assert large
    assert set(large.values()) == {TensorProto.INT8}
    source = {t.name: numpy_helper.to_array(t) for t in onnx.load(exported("bert")).graph.initializer}
    floats = sum(v.nbytes for v in source.values() if v.dtype == np.float32 and v.size >= 512)
    assert sum(np.prod(stored[n].dims) for n in large) == floats / 4


def test_every_number_is_half_a_step_from_its_own(made: Callable[..., Any], exported: Callable[[str], Path]) -> None:
    graph = onnx.load(made("bert")[0]).graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    source = {t.name: numpy_helper.to_array(t) for t in onnx.load(exported("bert")).graph.initializer}
    seen = 0
    for node in graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in stored:
            continue
        axis = node.attribute[0].i
        scale = np.expand_dims(stored[node.input[1]], 1 - axis)
        before = source[node.input[0].rsplit("_axis", 1)[0]]
        assert scale.shape[axis] == before.shape[axis]
        assert (np.abs(stored[node.input[0]] * scale - before) <= 0.51 * scale).all()
        seen += 1
    assert seen >= 6 * LAYERS


@pytest.mark.parametrize("family", FAMILIES)
def test_both_operands_of_every_product_are_8_bits_but_probabilities(family: str, made: Callable[..., Any]) -> None:
    graph = onnx.load(made(family)[0]).graph
    scores = values = 0
    for node in graph.node:
        if node.op_type not in ("MatMul", "Gemm"):
            continue
        paths = [list(behind(graph, name)) for name in node.input[:2]]
        if paths[0][0] == "Softmax":
            values += 1
            assert "QuantizeLinear" not in paths[1]
            continue
        assert all("DequantizeLinear" in p for p in paths), node.name
        scores += all("QuantizeLinear" in p for p in paths)
    assert scores == values == LAYERS


@pytest.mark.parametrize("family", FAMILIES)
def test_openvino_computes_the_same(family: str, made: Callable[..., Any]) -> None:
    rows, path = feeds(10, seed=3), made(family)[0]
    assert rms_error(openvino_answers(path, rows, "f32"), answers(path, rows)) < 0.05


def test_openvino_computes_the_same_for_a_processor_without_vnni(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, path, here = feeds(10, seed=3), made("bert")[0], describe_machine()
    monkeypatch.setattr(module, "describe_machine", lambda: here.model_copy(update={"arch": "x86_64", "isa": ["avx2"]}))
    assert rms_error(openvino_answers(path, rows, "f32"), answers(path, rows)) < 0.01


@pytest.mark.skipif(choose_float_type() != "bf16", reason="OpenVINO computes in fp32 on this CPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_in_openvino_adds_less_error_than_int8_has(
    family: str, made: Callable[..., Any], exported: Callable[[str], Path]
) -> None:
    rows, path = feeds(60, seed=4), made(family)[0]
    reference = answers(exported(family), rows)
    errors = {p: rms_error(openvino_answers(path, rows, p), reference) for p in ("f32", "bf16")}
    assert 0 < errors["bf16"] < 2**0.5 * errors["f32"], errors  # two errors that know nothing of each other


@pytest.mark.parametrize("family", ["bert", pytest.param("mobilebert", marks=pytest.mark.slow)])
def test_a_tied_table_is_stored_once(family: str, make_classifier: Callable[..., Any], tmp_path: Path) -> None:
    words = 1031  # no other axis is a multiple of it
    model = make_classifier(family, 1, ("a",), auto_class=FILL.auto_class, vocab_size=words)
    rows = feeds(20)
    example = {n: np.concatenate([padded(r, 30, 0)[n] for r in rows[:2]]) for n in rows[0]}
    source, target = tmp_path / "model.onnx", tmp_path / "static.onnx"
    exporter.export(prepare(model, family_of(family), FILL), family_of(family), FILL, example, source)
    types = quantize_static(source, target, rows)
    tied = [u for u in types.uses if u.numbers % words == 0]
    assert {u.use for u in tied} == set(Use)
    assert {u.dtype for u in tied} == {"int8"}
    stored = [t for t in onnx.load(target).graph.initializer if np.prod(t.dims) % words == 0 and len(t.dims) == 2]
    assert len(stored) == len(tied) - 1
    assert {t.data_type for t in stored} == {TensorProto.INT8}
    row = rows[3:4]
    assert rms_error(answers(target, row)[0], answers(source, row)[0]) < 0.3


def product_file(path: Path, weight: NDArray[np.float32], op: str = "MatMul", **flags: int) -> Path:
    """A table of 50 rows, and one product of its rows with a weight."""
    table = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "one"], ["mean"], keepdims=0),
        helper.make_node(op, ["mean", "weight"], ["logits"], **flags),
    ]
    stored = {"table": table, "weight": weight, "one": np.array([1], np.int64)}
    graph = helper.make_graph(nodes, "g", [ids], [out], [numpy_helper.from_array(v, n) for n, v in stored.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("op", "flags"), [("MatMul", {}), ("Gemm", {}), ("Gemm", {"transB": 1})])
def test_scales_lie_along_outputs(op: str, flags: dict[str, int], tmp_path: Path) -> None:
    # outputs of very different sizes: one scale, or one along the wrong axis, would lose the small ones
    weight = np.random.default_rng(1).normal(size=(32, 20)) * np.logspace(0, -4, 20)
    weight = (weight.T if flags else weight).astype(np.float32)
    source = product_file(tmp_path / "a.onnx", np.ascontiguousarray(weight), op, **flags)
    rows: list[Feed] = [{"input_ids": r["input_ids"] % 50} for r in feeds(40)]
    quantize_static(source, tmp_path / "b.onnx", rows)
    ours, reference = (answers(tmp_path / n, rows) for n in ("b.onnx", "a.onnx"))
    assert (np.abs(ours - reference).max(0) < 0.1 * reference.std(0)).all()


# What is refused, and that nothing is left then.


def test_no_rows_are_an_error(exported: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row to measure"):
        quantize_static(exported("bert"), tmp_path / "a.onnx", iter(()))
    assert list(tmp_path.glob("*.onnx")) == []


def test_a_row_without_an_input_is_an_error(exported: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [{"input_ids": r["input_ids"]} for r in feeds(2)]
    with pytest.raises(InputError, match="attention_mask"):
        quantize_static(exported("bert"), tmp_path / "a.onnx", rows)
    assert list(tmp_path.glob("*.onnx")) == []


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_range_that_is_none_is_an_error(value: float, tmp_path: Path) -> None:
    source = product_file(tmp_path / "a.onnx", np.ones((32, 20), np.float32))
    model = onnx.load(source)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((50, 32), value, np.float32), "table"))
    onnx.save(model, source)
    with pytest.raises(
        GateError,
        match="(nothing but zeros|NaN or infinite numbers) on the calibration texts, which gives no range: mean",
    ):
        quantize_static(source, tmp_path / "b.onnx", [{"input_ids": np.array([[1, 2]])}])
    assert [p.name for p in tmp_path.glob("*") if p.is_file()] == ["a.onnx"]


def test_a_weight_that_was_left_float_is_named(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = static_openvino._OpenvinoRewriter._plan_product
    skipped = next(n for n in onnx.load(exported("bert")).graph.node if n.op_type == "Gemm")

    def forgetful(self: Any, node: Any) -> None:
        if node.output[0] != skipped.output[0]:
            real(self, node)

    monkeypatch.setattr(static_openvino._OpenvinoRewriter, "_plan_product", forgetful)
    with pytest.raises(GateError, match=r"still float: .*\(1 in all\)") as caught:
        quantize_static(exported("bert"), tmp_path / "a.onnx", feeds(3))
    assert skipped.input[1] in str(caught.value)


def test_an_older_file_stays_when_the_new_one_fails(exported: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"older")
    with pytest.raises(InputError):
        quantize_static(exported("bert"), tmp_path / "a.onnx", [])
    assert (tmp_path / "a.onnx").read_bytes() == b"older"


def test_the_source_is_not_touched(exported: Callable[[str], Path], made: Callable[..., Any]) -> None:
    path, _ = made("bert")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert not any(t.data_type in INTEGERS for t in onnx.load(exported("bert")).graph.initializer)


def test_a_missing_onnx_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dynamic, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[onnx\]'"):
        quantize_static(tmp_path / "a.onnx", tmp_path / "b.onnx", feeds(1))
