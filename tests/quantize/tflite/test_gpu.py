"""fp16 for a phone's GPU: one length, operands of equal rank, and what LiteRT's GPU delegate refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize import weights
from pocketbert.quantize.files import quantize
from pocketbert.quantize.table import Plan
from pocketbert.quantize.tflite.gpu import Refusal, leaves_products, list_gpu_refusals
from pocketbert.quantize.tflite.rewrites import operator_code
from pocketbert.runtime.tflite import TflitePredictor

Exported = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(exported_tflite: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "model_fp16_gpu.tflite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SMALL", 512)
        quantize(exported_tflite("bert"), path, Plan(Format.TFLITE, Scheme.FP16, Runtime.GPU))
    return path


def vendor_problems(path: Path) -> list[str]:
    """What the delegate's own check, which is in LiteRT's package, finds; its module is private there."""
    analyzer = pytest.importorskip("ai_edge_litert._pywrap_analyzer_wrapper", reason="this LiteRT has no analyzer")
    return [line for line in analyzer.ModelAnalyzer(str(path), True, True).splitlines() if "GPU COMPATIBILITY" in line]


def test_the_file_has_one_length_and_answers_as_the_exported_one(made: Path, exported_tflite: Exported) -> None:
    exact, half = TflitePredictor(exported_tflite("bert"), 1), TflitePredictor(made, 1)
    assert len(exact.lengths) > 1
    assert half.lengths == (max(exact.lengths),)
    ids = np.random.default_rng(0).integers(5, 90, (1, half.lengths[0]))
    row: dict[str, Any] = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
    row["attention_mask"][:, 7:] = 0
    found, right = half.run(row)["logits"], exact.run(row)["logits"]
    assert 0 < np.abs(found - right).max() < 5e-3
    assert made.stat().st_size < 0.7 * exported_tflite("bert").stat().st_size


def test_the_delegate_takes_every_operator_only_after_the_change(made: Path, exported_tflite: Exported) -> None:
    assert list_gpu_refusals(made) == []
    before = list_gpu_refusals(exported_tflite("bert"))
    assert {(r.operator, r.reason) for r in before} <= {
        ("ADD", "operands of different rank"),
        ("MUL", "operands of different rank"),
    }
    assert before
    assert vendor_problems(made) == []


def broken(made: Path, path: Path, kind: str, other: str) -> Path:
    """The file with every operator of one kind turned into another kind."""
    model, names = load_model(made.read_bytes()), tflite_schema().BuiltinOperator
    for op in model.subgraphs[0].operators:
        if operator_code(model, op) == getattr(names, kind):
            code = model.operatorCodes[op.opcodeIndex]
            code.builtinCode, code.deprecatedBuiltinCode = getattr(names, other), min(127, getattr(names, other))
    path.write_bytes(dump_model(model))
    return path


def test_an_operator_outside_the_list_is_named(made: Path, tmp_path: Path) -> None:
    odd = list_gpu_refusals(broken(made, tmp_path / "odd.tflite", "GELU", "GATHER_ND"))
    assert odd == [Refusal("GATHER_ND", 2, "the delegate does not know this operator")]
    assert not leaves_products(odd)
    assert leaves_products([*odd, Refusal("BATCH_MATMUL", 1, "more than 4 axes")])


def test_a_form_outside_the_list_is_named(made: Path, tmp_path: Path) -> None:
    model, names = load_model(made.read_bytes()), tflite_schema().BuiltinOperator
    graph = model.subgraphs[0]
    product = next(op for op in graph.operators if operator_code(model, op) == names.BATCH_MATMUL)
    graph.tensors[product.outputs[0]].shape = [1, 1, *graph.tensors[product.outputs[0]].shape]
    (tmp_path / "axes.tflite").write_bytes(dump_model(model))
    found = list_gpu_refusals(tmp_path / "axes.tflite")
    assert Refusal("BATCH_MATMUL", 1, "more than 4 axes") in found
    assert leaves_products(found)
