"""a16w8 and a8w8 for NPUs: the whole graph in integers, padding masked in set ranges, and what the constant 1e4 does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.families import find_family
from pocketbert.core.model_files import dump_model, load_model, tflite_schema
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export import tflite
from pocketbert.export.prepare import prepare
from pocketbert.quantize import weights
from pocketbert.quantize.files import quantize
from pocketbert.quantize.table import Plan
from pocketbert.quantize.tflite import npu
from pocketbert.quantize.tflite.npu import count_float_operators, leaves_products
from pocketbert.quantize.tflite.reading import TfliteGraph
from pocketbert.quantize.tflite.rewrites import operator_code
from pocketbert.runtime.tflite import TflitePredictor
from support.exact import exact_bert
from support.learned import learned_of
from support.tiny import noisy_model, tiny_classifier

Exported = Callable[[str], Path]
Rows = list[dict[str, Any]]
SCHEMES = (Scheme.A16W8, Scheme.A8W8)
WORST = {Scheme.A16W8: 0.1, Scheme.A8W8: 0.3}
"""RMS errors that files of the tiny model stay below."""


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


@pytest.fixture(scope="module")
def rows(open_tiny: Callable[..., Any]) -> Rows:
    """Calibration rows without padding."""
    tokenizer = open_tiny("bert", 2)[2]
    return [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]


def plan(scheme: Scheme, rows: Rows) -> Plan:
    return Plan(Format.TFLITE, scheme, Runtime.NPU, lambda: rows)


@pytest.fixture(scope="module")
def made(exported_tflite: Exported, rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> dict[Scheme, Path]:
    folder = tmp_path_factory.mktemp("npu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SMALL", 512)
        for scheme in SCHEMES:
            quantize(exported_tflite("bert"), folder / f"{scheme}.tflite", plan(scheme, rows))
    return {scheme: folder / f"{scheme}.tflite" for scheme in SCHEMES}


def error(exact: Path, path: Path, rows: Rows) -> float:
    """RMS error of padded rows against unpadded ones in fp32."""
    one, other = TflitePredictor(exact, 1), TflitePredictor(path, 1)
    [length] = other.lengths

    def answer(predictor: TflitePredictor, row: dict[str, Any], tokens: int) -> Any:
        more = tokens - row["input_ids"].shape[1]
        return predictor.run({k: np.pad(v, ((0, 0), (0, more))) for k, v in row.items()})["logits"]

    fitting = [min(n for n in one.lengths if n >= row["input_ids"].shape[1]) for row in rows]
    right = np.concatenate([answer(one, row, n) for row, n in zip(rows, fitting, strict=True)])
    return rms_error(np.concatenate([answer(other, row, length) for row in rows]), right)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_whole_graph_is_in_integers_and_padding_is_masked(
    scheme: Scheme, made: dict[Scheme, Path], exported_tflite: Exported, rows: Rows
) -> None:
    assert error(exported_tflite("bert"), made[scheme], rows) < WORST[scheme]
    left = count_float_operators(made[scheme])
    assert set(left) <= {"RESHAPE", "CAST", "EMBEDDING_LOOKUP", "QUANTIZE", "DEQUANTIZE"}
    assert left["DEQUANTIZE"] == 1  # the answer
    assert not leaves_products(left)
    graph = TfliteGraph(made[scheme])
    kinds = {op.name: {graph.tensors[op.outputs[0]].dtype} for op in graph.operators}
    assert kinds["SOFTMAX"] == {"int16" if scheme is Scheme.A16W8 else "int8"}
    assert kinds["RSQRT"] == {"int16"}  # norms and sums, in both schemes
    made_by = {o: op for op in graph.operators for o in op.outputs}
    norms = [op for op in graph.operators if op.name == "RSQRT"]
    while norms:  # back to the sums: nothing on the way of a norm has 8 bits
        before = [made_by[i] for i in norms.pop().inputs if i in made_by]
        assert all(graph.tensors[op.outputs[0]].dtype == "int16" for op in before)
        norms += [op for op in before if op.name != "ADD" or graph.tensors[op.inputs[-1]].numbers == 1]
    narrowing = [
        graph.tensors[op.outputs[0]].dtype
        for op in graph.operators
        if op.name == "FULLY_CONNECTED" and graph.tensors[op.inputs[1]].shape[0] < graph.tensors[op.inputs[1]].shape[1]
    ]
    assert narrowing.count("int16") >= 2  # the second product of each feed-forward part
    assert TflitePredictor(made[scheme], 1).signature.outputs[0].dtype == "float32"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sentence_embeddings_count_their_tokens_and_states_are_floats(
    scheme: Scheme, rows: Rows, tmp_path: Path
) -> None:
    family, task = find_family("bert"), TASKS[TaskName.FEATURE_EXTRACTION]
    model = noisy_model("bert", 2, "AutoModel", vocab_size=200)
    module = prepare(model, family, task, Format.TFLITE)
    tflite.export(module, family, task, [16, 40], tmp_path / "model.tflite")
    quantize(tmp_path / "model.tflite", tmp_path / "npu.tflite", plan(scheme, rows))
    exact, found = TflitePredictor(tmp_path / "model.tflite", 1), TflitePredictor(tmp_path / "npu.tflite", 1)
    for row in rows[::4]:
        tokens = row["input_ids"].shape[1]
        padded = {k: np.pad(v, ((0, 0), (0, 40 - tokens))) for k, v in row.items()}
        wanted, answers = exact.run(padded), found.run(padded)
        for name, real in (("sentence_embedding", np.s_[:]), ("last_hidden_state", np.s_[:, :tokens])):
            assert rms_error(answers[name][real], wanted[name][real]) < WORST[scheme]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_mask_that_counts_tokens_stays_float(
    scheme: Scheme, exported_tflite: Exported, rows: Rows, tmp_path: Path
) -> None:
    own = [{n: v for n, v in row.items() if n != "token_type_ids"} for row in rows]
    quantize(exported_tflite("longformer"), tmp_path / "a.tflite", plan(scheme, own))
    assert error(exported_tflite("longformer"), tmp_path / "a.tflite", own) < WORST[scheme]
    left = count_float_operators(tmp_path / "a.tflite")
    assert left["CUMSUM"]
    assert not leaves_products(left)
    assert "SOFTMAX" not in left


def test_a_window_that_only_long_texts_have_is_refused(rows: Rows, tmp_path: Path) -> None:
    family, task = find_family("longformer"), TASKS[TaskName.TEXT_CLASSIFICATION]
    module = prepare(tiny_classifier("longformer", 2, ("a", "b", "c")), family, task, Format.TFLITE)
    tflite.export(module, family, task, [4, 40], tmp_path / "model.tflite")
    with pytest.raises(InputError, match=r"other operators than those for long ones.*--lengths 512"):
        quantize(tmp_path / "model.tflite", tmp_path / "a.tflite", plan(Scheme.A16W8, rows))
    assert not (tmp_path / "a.tflite").exists()


def test_results_of_products_have_learned_ranges(
    made: dict[Scheme, Path], exported_tflite: Exported, rows: Rows, open_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    learned = learned_of(exact_bert(open_tiny, 2, Format.TFLITE).module, Format.TFLITE, Runtime.NPU)
    path = tmp_path / "learned.tflite"
    quantize(exported_tflite("bert"), path, replace(plan(Scheme.A8W8, rows), learned=learned))
    before, after = (_steps(p) for p in (made[Scheme.A8W8], path))
    changed = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert len(changed) == len(learned.products)
    assert [after[n] for n in changed] == pytest.approx([0.75 / 255] * len(changed), rel=0.02)


def _steps(path: Path) -> list[float]:
    """The step of the result of each product with a stored weight."""
    model, codes = load_model(path.read_bytes()), tflite_schema().BuiltinOperator
    graph = model.subgraphs[0]
    products = [op for op in graph.operators if operator_code(model, op) == codes.FULLY_CONNECTED]
    return [float(graph.tensors[int(op.outputs[0])].quantization.scale[0]) for op in products]


def test_the_constant_of_a_mask_in_a_range_ruins_int8(
    made: dict[Scheme, Path], exported_tflite: Exported, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npu, "_DEPTH", 1e4)
    monkeypatch.setattr(npu, "_BELOW", 1e4)
    broken = tmp_path / "broken.tflite"
    with pytest.raises(GateError, match="the constant of the mask is in their range"):
        quantize(exported_tflite("bert"), broken, plan(Scheme.A8W8, rows))
    assert error(exported_tflite("bert"), broken, rows) > WORST[Scheme.A8W8]


def test_factors_of_norms_have_room_for_tokens_that_no_row_had(
    made: dict[Scheme, Path], exported_tflite: Exported, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def largest(path: Path) -> list[float]:
        graph = TfliteGraph(path)
        return [graph.tensors[op.outputs[0]].step * 32767 for op in graph.operators if op.name == "RSQRT"]

    monkeypatch.setattr(npu, "ROOM", 1.0)
    quantize(exported_tflite("bert"), tmp_path / "tight.tflite", plan(Scheme.A16W8, rows))
    tight, wide = largest(tmp_path / "tight.tflite"), largest(made[Scheme.A16W8])
    assert len(tight) > 4
    np.testing.assert_allclose(wide, np.multiply(tight, 2.0), rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "told"), [("FULLY_CONNECTED", "still float: "), ("BATCH_MATMUL", ""), ("SOFTMAX", "")]
)
def test_an_operator_that_is_left_float_is_found(
    kind: str, told: str, exported_tflite: Exported, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import TFLOperationName

    right, path = npu._quantizer_recipe, tmp_path / "a.tflite"

    def forgetful(*given: Any) -> Any:
        skipped = {"regex": ".*", "operation": TFLOperationName[kind].value, "algorithm_key": AlgorithmName.NO_QUANTIZE}
        return [*right(*given), {**right(*given)[-1], **skipped}]

    monkeypatch.setattr(npu, "_quantizer_recipe", forgetful)
    if told:
        with pytest.raises(GateError, match=told):
            quantize(exported_tflite("bert"), path, plan(Scheme.A16W8, rows))
    else:
        quantize(exported_tflite("bert"), path, plan(Scheme.A16W8, rows))
        left = count_float_operators(path)
        assert left[kind] == (4 if kind == "BATCH_MATMUL" else 2)
        assert leaves_products(left) is (kind == "BATCH_MATMUL")


def test_a_mask_without_a_set_range_is_attended_to(
    made: dict[Scheme, Path], exported_tflite: Exported, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npu, "_DEPTH", 1e-3)
    monkeypatch.setattr(npu, "_BELOW", 0.0)
    quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan(Scheme.A16W8, rows))
    right = error(exported_tflite("bert"), made[Scheme.A16W8], rows)
    assert error(exported_tflite("bert"), tmp_path / "a.tflite", rows) > 3 * right


def test_a_quantizer_that_leaves_the_graph_float_is_found_out(
    exported_tflite: Exported, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.quantize.tflite import static

    monkeypatch.setattr(npu, "_quantizer_recipe", lambda *given: static._quantizer_recipe(b"", plan(Scheme.A8W8, rows)))
    with pytest.raises(GateError, match="only matrix products are computed in integers"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan(Scheme.A8W8, rows))


def test_the_other_scheme_has_other_bits(made: dict[Scheme, Path]) -> None:
    from pocketbert.quantize import find_row, read_weight_types

    row = find_row(Format.TFLITE, Scheme.A16W8, Runtime.NPU)
    found = row.problems(read_weight_types(made[Scheme.A8W8], Format.TFLITE), "a")
    assert any("multiplied with numbers of 8 bits" in line for line in found)


def test_a_table_that_a_product_reads_is_refused(exported_tflite: Exported, rows: Rows, tmp_path: Path) -> None:
    model, names = load_model(exported_tflite("bert").read_bytes()), tflite_schema().BuiltinOperator
    graph, kinds = model.subgraphs[0], {}
    for op in graph.operators:
        kinds.setdefault(operator_code(model, op), graph.tensors[op.inputs[-1 if len(op.inputs) < 2 else 1]])
    kinds[names.FULLY_CONNECTED].buffer = kinds[names.EMBEDDING_LOOKUP].buffer
    (tmp_path / "tied.tflite").write_bytes(dump_model(model))
    with pytest.raises(InputError, match="a matrix product reads the word table"):
        quantize(tmp_path / "tied.tflite", tmp_path / "a.tflite", plan(Scheme.A8W8, rows))
    assert not (tmp_path / "a.tflite").exists()
