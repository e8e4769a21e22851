"""fp16 for a phone's GPU: one length, operands of equal rank, and what LiteRT's GPU delegate refuses."""

from pathlib import Path

import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.tflite.gpu import Refusal, leaves_products, list_gpu_refusals
from pocketbert.quantize.tflite.rewrites import operator_code
from pocketbert.runtime.tflite import TflitePredictor


@pytest.fixture
def made(quantized) -> Path:
    return quantized(Format.TFLITE, Scheme.FP16, Runtime.GPU)[0]


def test_the_file_has_the_longest_length_only(made, exported_tflite):
    assert TflitePredictor(made, 1).lengths == TflitePredictor(exported_tflite("bert"), 1).lengths[-1:]


def test_the_delegate_takes_every_operator_only_after_the_change(made, exported_tflite):
    assert list_gpu_refusals(made) == []
    before = list_gpu_refusals(exported_tflite("bert"))
    assert before
    assert {r.operator for r in before} <= {"ADD", "MUL"}
    assert {r.reason for r in before} == {"operands of different rank"}
    # the delegate's own check, which is in LiteRT's package
    analyzer = pytest.importorskip("ai_edge_litert._pywrap_analyzer_wrapper", reason="this LiteRT has no analyzer")
    assert "GPU COMPATIBILITY" not in analyzer.ModelAnalyzer(str(made), True, True)


def test_operators_and_forms_outside_the_list_are_named(made, tmp_path):
    model, names = load_model(made.read_bytes()), tflite_schema().BuiltinOperator
    graph = model.subgraphs[0]
    for op in graph.operators:
        if operator_code(model, op) == names.GELU:
            code = model.operatorCodes[op.opcodeIndex]
            code.builtinCode = code.deprecatedBuiltinCode = names.GATHER_ND
    (tmp_path / "odd.tflite").write_bytes(dump_model(model))
    odd = list_gpu_refusals(tmp_path / "odd.tflite")
    assert odd == [Refusal("GATHER_ND", 2, "the delegate does not know this operator")]
    assert not leaves_products(odd)
    product = next(op for op in graph.operators if operator_code(model, op) == names.BATCH_MATMUL)
    graph.tensors[product.outputs[0]].shape = [1, 1, *graph.tensors[product.outputs[0]].shape]
    (tmp_path / "axes.tflite").write_bytes(dump_model(model))
    found = list_gpu_refusals(tmp_path / "axes.tflite")
    assert Refusal("BATCH_MATMUL", 1, "more than 4 axes") in found
    assert leaves_products(found)
