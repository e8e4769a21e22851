"""Embedding tables of ONNX files with a scale for each row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper, numpy_helper

from pocketbert.core.families.weight_records import matrix_digest
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize import weights
from pocketbert.quantize.files import quantize
from pocketbert.quantize.onnx.reading import read_weight_types
from pocketbert.quantize.onnx.tables import find_row_scales, pack_tables_int8, quantize_int8
from pocketbert.quantize.table import Plan
from pocketbert.quantize.weights import Use

TABLES = arrays(np.float32, (5, 8), elements=st.floats(-1e4, 1e4, width=32))


def lookup_model(table: np.ndarray[Any, Any], also_added: bool = False) -> Any:
    """A graph that looks up rows of a table; where wanted, one that adds the whole table's sum too."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    if also_added:
        nodes += [helper.make_node("ReduceSum", ["table"], ["sum"]), helper.make_node("Add", ["rows", "sum"], ["out"])]
    graph = helper.make_graph(
        nodes,
        "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("out" if also_added else "rows", TensorProto.FLOAT, ["batch", "length", 8])],
        [numpy_helper.from_array(table, "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def rows_of(model: Any, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"ids": ids})[0])


@given(table=TABLES)
def test_every_number_is_within_half_a_step_of_its_row(table: np.ndarray[Any, Any]) -> None:
    codes, scales = quantize_int8(table, 0)
    assert codes.dtype == np.int8
    assert scales.shape == (5, 1)
    largest = np.abs(table).max(1, keepdims=True)
    assert (np.abs(codes * scales - table) <= largest / 127 * 0.51 + 1e-30).all()
    assert (codes[table == 0] == 0).all()


def test_the_graph_looks_up_what_was_rounded() -> None:
    table = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32) * np.array(
        [[1], [9], [0], [0.1], [3]], "f4"
    )
    model = lookup_model(table)
    pack_tables_int8(model)
    onnx.checker.check_model(model, full_check=True)
    codes, scales = quantize_int8(table, 0)
    ids = np.array([[4, 0, 2], [1, 1, 3]])
    np.testing.assert_array_equal(rows_of(model, ids), (codes * scales)[ids])
    assert {t.data_type for t in model.graph.initializer if len(t.dims) == 2 and t.dims[1] > 1} == {TensorProto.INT8}
    assert find_row_scales(model.graph) == {"rows_codes": "table_row_scales"}


@pytest.mark.parametrize("why", ["left", "tied", "another reader"])
def test_a_table_stays_float_where_it_must(why: str) -> None:
    table = np.arange(40, dtype=np.float32).reshape(5, 8)
    model = lookup_model(table, also_added=why == "another reader")
    before = model.SerializeToString()
    pack_tables_int8(
        model, frozenset([matrix_digest(table)] if why == "left" else ()), ["table"] if why == "tied" else ()
    )
    assert model.SerializeToString() == before


@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.SMALL])
def test_a_large_row_does_not_coarsen_the_others(
    scheme: Scheme, exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SMALL", 512)
    model = onnx.load(exported("bert"))
    (table,) = [t for t in model.graph.initializer if t.name.endswith("position_embeddings.weight")]
    numbers = numpy_helper.to_array(table).copy()
    numbers[3] *= 100
    table.CopyFrom(numpy_helper.from_array(numbers, table.name))
    onnx.save(model, tmp_path / "model.onnx")
    types = quantize(tmp_path / "model.onnx", tmp_path / "model_quantized.onnx", Plan(Format.ONNX, scheme))
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "model_quantized.onnx").graph.initializer}
    (name,) = [n for n in stored if n.startswith(table.name) and stored[n].shape == numbers.shape]
    scales = np.abs(numbers).max(1, keepdims=True) / 127
    assert (np.abs(stored[name] * scales - numbers) <= 0.51 * scales).all()
    tables = [u for u in types.uses if u.use is Use.TABLE]
    assert len(tables) >= 3
    assert all(u.per_channel for u in tables)
    assert read_weight_types(tmp_path / "model_quantized.onnx").uses == types.uses
