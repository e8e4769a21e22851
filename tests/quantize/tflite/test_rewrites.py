"""One scale per tensor for old runtimes: the same integers and answers, with the ratios in operators of their own."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.compare.evaluate import logit_scale
from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.tflite.reading import TfliteGraph, read_stored_numbers, read_weight_types
from pocketbert.quantize.tflite.rewrites import one_scale_per_tensor
from pocketbert.runtime.tflite import TflitePredictor
from support.quantized import answer_sentences


@pytest.fixture
def default(quantized) -> Path:
    """The default int8 file."""
    return quantized(Format.TFLITE, Scheme.INT8)[0]


@pytest.fixture
def changed(default, tmp_path) -> Path:
    return rewrite(default, tmp_path / "one-scale.tflite")


def rewrite(source: Path, path: Path) -> Path:
    path.write_bytes(one_scale_per_tensor(source.read_bytes()))
    return path


def list_operators(path: Path, *names: str) -> list[tuple[Any, Any, Any]]:
    """Graph, operator and operator code of all operators of these names, in all signatures."""
    model, known = load_model(path.read_bytes()), tflite_schema().BuiltinOperator
    wanted = {getattr(known, n) for n in names}
    return [
        (graph, op, model.operatorCodes[op.opcodeIndex])
        for graph in model.subgraphs
        for op in graph.operators
        if model.operatorCodes[op.opcodeIndex].builtinCode in wanted
    ]


def test_every_weight_keeps_its_integers_and_has_one_scale(default, changed):
    before, after = (
        Counter(v.tobytes() for _, v in read_stored_numbers(p) if v.dtype == np.int8) for p in (default, changed)
    )
    assert before == after
    old, new = read_weight_types(default).uses, read_weight_types(changed).uses
    assert [(u.use, u.dtype, u.numbers) for u in old] == [(u.use, u.dtype, u.numbers) for u in new]
    assert any(u.per_channel for u in old)
    assert not any(u.per_channel or u.dequantized for u in new)
    for graph, op, _ in list_operators(changed, "FULLY_CONNECTED", "EMBEDDING_LOOKUP"):
        weight = graph.tensors[op.inputs[1]]
        if weight.type == tflite_schema().TensorType.INT8:
            assert len(weight.quantization.scale) == len(weight.quantization.zeroPoint) == 1


def test_it_answers_as_before(default, changed, open_tiny):
    old, new = TflitePredictor(default, 1), TflitePredictor(changed, 1)
    before, after = (answer_sentences(p, open_tiny("bert", 2)[2]) for p in (old, new))
    apart = np.abs(after - before).max(-1) / logit_scale(before)
    # a rounding of an activation may fall to the other side
    assert np.median(apart) < 1e-4
    assert apart.max() < 0.2
    assert new.signature == old.signature


def test_products_ask_for_asymmetric_inputs(default, changed):
    products, before = (list_operators(p, "FULLY_CONNECTED") for p in (changed, default))
    assert len(products) == len(before) > 0
    for _, op, code in products:
        assert op.builtinOptions.asymmetricQuantizeInputs
        assert code.version >= 9
    assert not any(op.builtinOptions.asymmetricQuantizeInputs for _, op, _ in before)


def test_what_was_added_is_shared_by_signatures_and_a_table_gets_a_column(default, changed):
    graph = TfliteGraph(changed)
    assert graph.subgraphs > 1
    before, after = (len(load_model(p.read_bytes()).buffers) for p in (default, changed))
    uses = len(read_weight_types(changed).uses)
    assert uses <= after - before <= 2 * uses  # ratios, and a bias for most
    large, small = (
        sum(v.nbytes for _, v in read_stored_numbers(p) if v.dtype == np.float32) for p in (default, changed)
    )
    assert small < 2 * large
    tables = [op for op in TfliteGraph(default).operators if op.name == "EMBEDDING_LOOKUP"]
    looked_up = [graph.tensors[op.inputs[1]] for op in graph.operators if op.name == "EMBEDDING_LOOKUP"]
    columns = [tensor for tensor in looked_up if tensor.shape[-1] == 1]
    assert len(columns) == len(tables)
    assert all(c.dtype == "float32" and c.stored and c.shape[0] > 1 for c in columns)


def test_what_followed_a_product_follows_its_ratio(default, tmp_path):
    schema = tflite_schema()
    relu, none = schema.ActivationFunctionType.RELU6, schema.ActivationFunctionType.NONE
    model = load_model(default.read_bytes())
    for graph in model.subgraphs:
        codes = (model.operatorCodes[op.opcodeIndex].builtinCode for op in graph.operators)
        first = list(codes).index(schema.BuiltinOperator.FULLY_CONNECTED)
        graph.operators[first].builtinOptions.fusedActivationFunction = relu
    fused = tmp_path / "fused.tflite"
    fused.write_bytes(dump_model(model))
    path = rewrite(fused, tmp_path / "changed.tflite")

    def activations(kind: str) -> list[int]:
        return [op.builtinOptions.fusedActivationFunction for _, op, _ in list_operators(path, kind)]

    assert set(activations("FULLY_CONNECTED")) == {none}
    assert activations("MUL").count(relu) == TfliteGraph(default).subgraphs
    after, before, plain = (TflitePredictor(p, 1) for p in (path, fused, default))
    inputs = {n: np.ones((4, before.lengths[0]), np.int64) for n in before.inputs}
    inputs["input_ids"] = np.random.default_rng(0).integers(5, 150, inputs["input_ids"].shape)
    ours, theirs, other = (np.asarray(p.run(inputs)["logits"]) for p in (after, before, plain))
    assert np.median(np.abs(ours - theirs)) < 1e-4 < np.median(np.abs(other - theirs))


def test_a_changed_file_and_a_float_file_stay_as_they_are(changed, exported_tflite, tmp_path):
    again = rewrite(changed, tmp_path / "again.tflite")
    assert TfliteGraph(again).operator_counts() == TfliteGraph(changed).operator_counts()
    same = rewrite(exported_tflite("bert"), tmp_path / "same.tflite")
    assert TfliteGraph(same).operators == TfliteGraph(exported_tflite("bert")).operators
    products = list_operators(same, "FULLY_CONNECTED")
    assert not any(op.builtinOptions.asymmetricQuantizeInputs for _, op, _ in products)
