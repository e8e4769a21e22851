"""a16w8 and a8w8 for NPUs: the whole graph in integers, padding masked in set ranges, and what the constant 1e4 does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from ai_edge_quantizer.algorithm_manager import AlgorithmName
from ai_edge_quantizer.qtyping import TFLOperationName

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.families import find_family
from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.prepare import prepare
from pocketbert.quantize.table import Plan
from pocketbert.quantize.tflite import npu, static
from pocketbert.quantize.tflite.npu import count_float_operators, leaves_products
from pocketbert.quantize.tflite.reading import TfliteGraph
from pocketbert.quantize.tflite.rewrites import operator_code
from pocketbert.runtime.tflite import TflitePredictor
from support.quantized import CLASSIFY, Feed, export_file, pad_row
from support.tiny import noisy_model, tiny_classifier

Rows = list[Feed]
Write = Callable[..., Path]
SCHEMES = (Scheme.A16W8, Scheme.A8W8)
WORST = {Scheme.A16W8: 0.1, Scheme.A8W8: 0.3}
"""RMS errors that files of the tiny model stay below."""


@pytest.fixture
def source(exported_tflite) -> Path:
    return exported_tflite("bert")


@pytest.fixture
def made(quantized) -> dict[Scheme, Path]:
    return {scheme: quantized(Format.TFLITE, scheme, Runtime.NPU)[0] for scheme in SCHEMES}


@pytest.fixture
def write_npu(write) -> Write:
    """`write_npu(scheme, base=None, rows=None)`: a file for NPUs anew."""
    return lambda scheme, **more: write(Format.TFLITE, scheme, Runtime.NPU, **more)


def measure_error(exact: Path, path: Path, rows: Rows) -> float:
    """RMS error of padded rows against unpadded ones in fp32."""
    one, other = TflitePredictor(exact, 1), TflitePredictor(path, 1)
    fitting = [min(n for n in one.lengths if n >= row["input_ids"].shape[1]) for row in rows]
    right = [one.run(pad_row(row, n))["logits"] for row, n in zip(rows, fitting, strict=True)]
    found = [other.run(pad_row(row, other.lengths[0]))["logits"] for row in rows]
    return rms_error(np.concatenate(found), np.concatenate(right))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_whole_graph_is_in_integers_and_padding_is_masked(scheme, made, source, sentence_rows):
    assert measure_error(source, made[scheme], sentence_rows) < WORST[scheme]
    left = count_float_operators(made[scheme])
    assert set(left) <= {"RESHAPE", "CAST", "EMBEDDING_LOOKUP", "QUANTIZE", "DEQUANTIZE"}
    assert left["DEQUANTIZE"] == 1  # the answer
    assert not leaves_products(left)
    graph = TfliteGraph(made[scheme])
    tensors = graph.tensors
    kinds = {op.name: tensors[op.outputs[0]].dtype for op in graph.operators if op.name in ("SOFTMAX", "RSQRT")}
    assert kinds == {"SOFTMAX": "int16" if scheme is Scheme.A16W8 else "int8", "RSQRT": "int16"}
    makers = {o: op for op in graph.operators for o in op.outputs}
    norms = [op for op in graph.operators if op.name == "RSQRT"]
    while norms:  # back to the sums: nothing on the way of a norm has 8 bits
        before = [makers[i] for i in norms.pop().inputs if i in makers]
        assert all(tensors[op.outputs[0]].dtype == "int16" for op in before)
        norms += [op for op in before if op.name != "ADD" or tensors[op.inputs[-1]].numbers == 1]
    products = [op for op in graph.operators if op.name == "FULLY_CONNECTED"]
    narrowing = [op for op in products if tensors[op.inputs[1]].shape[0] < tensors[op.inputs[1]].shape[1]]
    # the second product of each feed-forward part
    assert [tensors[op.outputs[0]].dtype for op in narrowing].count("int16") >= 2
    assert TflitePredictor(made[scheme], 1).signature.outputs[0].dtype == "float32"


def test_sentence_embeddings_count_their_tokens_and_states_are_floats(write_npu, sentence_rows, tmp_path):
    family, task = find_family("bert"), TASKS[TaskName.FEATURE_EXTRACTION]
    module = prepare(noisy_model("bert", 2, "AutoModel", vocab_size=200), family, task, Format.TFLITE)
    base = export_file(module, family, tmp_path / "model.tflite", task=task)
    for scheme in SCHEMES:
        exact, found = TflitePredictor(base, 1), TflitePredictor(write_npu(scheme, base=base), 1)
        for row in sentence_rows[::4]:
            padded = pad_row(row, 40)
            wanted, answers = exact.run(padded), found.run(padded)
            real = np.s_[:, : row["input_ids"].shape[1]]
            for name, part in (("sentence_embedding", np.s_[:]), ("last_hidden_state", real)):
                assert rms_error(answers[name][part], wanted[name][part]) < WORST[scheme]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_mask_that_counts_tokens_stays_float(scheme, exported_tflite, write_npu, sentence_rows):
    base = exported_tflite("longformer")
    own = [{n: v for n, v in row.items() if n != "token_type_ids"} for row in sentence_rows]
    path = write_npu(scheme, base=base, rows=own)
    assert measure_error(base, path, own) < WORST[scheme]
    left = count_float_operators(path)
    assert left["CUMSUM"]
    assert not leaves_products(left)
    assert "SOFTMAX" not in left


def test_the_range_of_a_mask_is_not_too_wide_and_not_too_narrow(made, source, write_npu, sentence_rows, monkeypatch):
    right = measure_error(source, made[Scheme.A16W8], sentence_rows)
    monkeypatch.setattr(npu, "_DEPTH", 1e-3)
    monkeypatch.setattr(npu, "_BELOW", 0.0)
    path = write_npu(Scheme.A16W8)
    assert measure_error(source, path, sentence_rows) > 3 * right, "padding is attended to"
    monkeypatch.setattr(npu, "_DEPTH", 1e4)
    monkeypatch.setattr(npu, "_BELOW", 1e4)
    with pytest.raises(GateError, match="the constant of the mask is in their range"):
        write_npu(Scheme.A8W8)
    assert measure_error(source, path, sentence_rows) > WORST[Scheme.A8W8]


def test_factors_of_norms_have_room_for_tokens_that_no_row_had(made, write_npu, monkeypatch):
    def read_largest(path: Path) -> list[float]:
        graph = TfliteGraph(path)
        return [graph.tensors[op.outputs[0]].step * 32767 for op in graph.operators if op.name == "RSQRT"]

    monkeypatch.setattr(npu, "ROOM", 1.0)
    tight = read_largest(write_npu(Scheme.A16W8))
    assert len(tight) > 4
    np.testing.assert_allclose(read_largest(made[Scheme.A16W8]), np.multiply(tight, 2.0), rtol=1e-5)


@pytest.mark.parametrize(("kind", "count"), [("FULLY_CONNECTED", 0), ("BATCH_MATMUL", 4), ("SOFTMAX", 2)])
def test_an_operator_that_is_left_float_is_found(kind, count, write_npu, monkeypatch):
    right = npu._quantizer_recipe

    def forgetful(*given: Any) -> Any:
        skipped = {"regex": ".*", "operation": TFLOperationName[kind].value, "algorithm_key": AlgorithmName.NO_QUANTIZE}
        return [*right(*given), {**right(*given)[-1], **skipped}]

    monkeypatch.setattr(npu, "_quantizer_recipe", forgetful)
    if kind == "FULLY_CONNECTED":
        with pytest.raises(GateError, match="still float: "):
            write_npu(Scheme.A16W8)
        return
    left = count_float_operators(write_npu(Scheme.A16W8))
    assert left[kind] == count
    assert leaves_products(left) is (kind == "BATCH_MATMUL")


def test_a_quantizer_that_leaves_the_graph_float_is_found_out(write_npu, monkeypatch):
    products = static._quantizer_recipe(b"", Plan(Format.TFLITE, Scheme.A8W8, Runtime.NPU))
    monkeypatch.setattr(npu, "_quantizer_recipe", lambda *_: products)
    with pytest.raises(GateError, match="only matrix products are computed in integers"):
        write_npu(Scheme.A8W8)


def test_graphs_that_cannot_be_written_in_integers_are_refused(source, write_npu, tmp_path):
    family = find_family("longformer")
    module = prepare(tiny_classifier("longformer", 2, ("a", "b", "c")), family, CLASSIFY, Format.TFLITE)
    windows = export_file(module, family, tmp_path / "windows.tflite", (4, 40))
    model, names = load_model(source.read_bytes()), tflite_schema().BuiltinOperator
    graph, kinds = model.subgraphs[0], {}
    for op in graph.operators:
        kinds.setdefault(operator_code(model, op), graph.tensors[op.inputs[-1 if len(op.inputs) < 2 else 1]])
    kinds[names.FULLY_CONNECTED].buffer = kinds[names.EMBEDDING_LOOKUP].buffer
    tied = tmp_path / "tied.tflite"
    tied.write_bytes(dump_model(model))
    with pytest.raises(InputError, match=r"other operators than those for long ones.*--lengths 512"):
        write_npu(Scheme.A16W8, base=windows)
    with pytest.raises(InputError, match="a matrix product reads the word table"):
        write_npu(Scheme.A16W8, base=tied)
    assert not (tmp_path / "a.tflite").exists()
