from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.compare.evaluate import logit_scale
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.predict import predictor as readout
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.files import quantize
from pocketbert.quantize.table import Plan
from pocketbert.quantize.tflite.reading import TfliteGraph, read_stored_numbers, read_weight_types
from pocketbert.quantize.tflite.rewrites import one_scale_per_tensor
from pocketbert.runtime.tflite import TflitePredictor


@pytest.fixture(scope="module")
def default(exported_tflite: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default int8 file."""
    path = tmp_path_factory.mktemp("scales") / "default.tflite"
    quantize(exported_tflite("bert"), path, Plan(Format.TFLITE, Scheme.INT8))
    return path


@pytest.fixture(scope="module")
def changed(default: Path) -> Path:
    path = default.with_name("changed.tflite")
    path.write_bytes(one_scale_per_tensor(default.read_bytes()))
    return path


def operators(path: Path, *names: str) -> list[tuple[Any, Any, Any]]:
    """Graph, operator and operator code of all operators of these names, in all signatures."""
    model, known = load_model(path.read_bytes()), tflite_schema().BuiltinOperator
    wanted = {getattr(known, n) for n in names}
    return [
        (graph, op, model.operatorCodes[op.opcodeIndex])
        for graph in model.subgraphs
        for op in graph.operators
        if model.operatorCodes[op.opcodeIndex].builtinCode in wanted
    ]


def logits(path: Path, open_tiny: Callable[..., Any]) -> np.ndarray:
    tokenizer = open_tiny("bert", 2)[2]
    encoded = [e for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]
    return readout.join_texts(
        readout.run_rows(TflitePredictor(path, 1), tokenizer, encoded, task_of("text-classification"))
    )


def test_every_weight_keeps_its_numbers_and_has_one_scale(default: Path, changed: Path) -> None:
    def whole(path: Path) -> Counter[bytes]:
        return Counter(v.tobytes() for _, v in read_stored_numbers(path) if v.dtype == np.int8)

    assert whole(default) == whole(changed)
    before, after = read_weight_types(default), read_weight_types(changed)
    assert [(u.use, u.dtype, u.numbers) for u in before.uses] == [(u.use, u.dtype, u.numbers) for u in after.uses]
    assert any(u.per_channel for u in before.uses)
    assert not any(u.per_channel or u.dequantized for u in after.uses)
    for graph, op, _ in operators(changed, "FULLY_CONNECTED", "EMBEDDING_LOOKUP"):
        weight = graph.tensors[op.inputs[1]]
        if weight.type == tflite_schema().TensorType.INT8:
            assert len(weight.quantization.scale) == len(weight.quantization.zeroPoint) == 1


def test_it_answers_as_before(default: Path, changed: Path, open_tiny: Callable[..., Any]) -> None:
    before, after = logits(default, open_tiny), logits(changed, open_tiny)
    apart = np.abs(after - before).max(-1) / logit_scale(before)
    # a rounding of an activation may fall to the other side
    assert np.median(apart) < 1e-4
    assert apart.max() < 0.2
    assert TflitePredictor(changed, 1).signature == TflitePredictor(default, 1).signature


def test_products_ask_for_asymmetric_inputs(default: Path, changed: Path) -> None:
    products = operators(changed, "FULLY_CONNECTED")
    assert len(products) == len(operators(default, "FULLY_CONNECTED")) > 0
    for _, op, code in products:
        assert op.builtinOptions.asymmetricQuantizeInputs
        assert code.version >= 9
    assert not any(op.builtinOptions.asymmetricQuantizeInputs for _, op, _ in operators(default, "FULLY_CONNECTED"))


def test_signatures_share_what_was_added(default: Path, changed: Path) -> None:
    signatures = TfliteGraph(changed).subgraphs
    assert signatures > 1
    uses = read_weight_types(changed).uses
    before, after = (len(load_model(p.read_bytes()).buffers) for p in (default, changed))
    assert len(uses) <= after - before <= 2 * len(uses)  # ratios, and a bias for most
    small = [v.nbytes for _, v in read_stored_numbers(changed) if v.dtype == np.float32]
    large = [v.nbytes for _, v in read_stored_numbers(default) if v.dtype == np.float32]
    assert sum(small) < 2 * sum(large)


def test_what_followed_a_product_follows_its_ratio(default: Path, tmp_path: Path) -> None:
    schema = tflite_schema()
    relu, none = schema.ActivationFunctionType.RELU6, schema.ActivationFunctionType.NONE
    model = load_model(default.read_bytes())
    code = schema.BuiltinOperator.FULLY_CONNECTED
    for graph in model.subgraphs:
        first = next(o for o in graph.operators if model.operatorCodes[o.opcodeIndex].builtinCode == code)
        first.builtinOptions.fusedActivationFunction = relu
    (tmp_path / "fused.tflite").write_bytes(dump_model(model))
    (tmp_path / "changed.tflite").write_bytes(one_scale_per_tensor((tmp_path / "fused.tflite").read_bytes()))
    assert all(
        o.builtinOptions.fusedActivationFunction == none
        for _, o, _ in operators(tmp_path / "changed.tflite", "FULLY_CONNECTED")
    )
    kept = [
        o
        for _, o, _ in operators(tmp_path / "changed.tflite", "MUL")
        if o.builtinOptions.fusedActivationFunction == relu
    ]
    assert len(kept) == TfliteGraph(default).subgraphs
    before, after = (TflitePredictor(tmp_path / f"{n}.tflite", 1) for n in ("fused", "changed"))
    draw = np.random.default_rng(0)
    inputs = {n: np.ones((4, before.lengths[0]), np.int64) for n in before.inputs}
    inputs["input_ids"] = draw.integers(5, 150, inputs["input_ids"].shape)
    ours, theirs = after.run(inputs)["logits"], before.run(inputs)["logits"]
    plain = TflitePredictor(default, 1).run(inputs)["logits"]
    assert np.median(np.abs(ours - theirs)) < 1e-4 < np.median(np.abs(plain - theirs))


def test_a_table_gets_a_column_of_ratios(default: Path, changed: Path) -> None:
    tables = [op for op in TfliteGraph(default).operators if op.name == "EMBEDDING_LOOKUP"]
    graph = TfliteGraph(changed)
    columns = [
        graph.tensors[o.inputs[1]]
        for o in graph.operators
        if o.name == "EMBEDDING_LOOKUP" and graph.tensors[o.inputs[1]].shape[-1] == 1
    ]
    assert len(columns) == len(tables)
    assert {c.dtype for c in columns} == {"float32"}
    assert all(c.stored and c.shape[0] > 1 for c in columns)


def test_doing_it_again_changes_nothing(changed: Path, tmp_path: Path) -> None:
    (tmp_path / "again.tflite").write_bytes(one_scale_per_tensor(changed.read_bytes()))
    assert TfliteGraph(tmp_path / "again.tflite").operator_counts() == TfliteGraph(changed).operator_counts()


def test_a_float_file_stays_as_it_is(exported_tflite: Callable[[str], Path], tmp_path: Path) -> None:
    source = exported_tflite("bert")
    (tmp_path / "same.tflite").write_bytes(one_scale_per_tensor(source.read_bytes()))
    assert TfliteGraph(tmp_path / "same.tflite").operators == TfliteGraph(source).operators
    assert not any(
        o.builtinOptions.asymmetricQuantizeInputs for _, o, _ in operators(tmp_path / "same.tflite", "FULLY_CONNECTED")
    )
