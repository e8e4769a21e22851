"""Embedding tables of ONNX files: a scale for each row, blocks of 32, and the table that a decoder reads too."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper, numpy_helper

from pocketbert.core.families.weight_records import matrix_digest
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.files import quantize
from pocketbert.quantize.onnx.reading import read_weight_types
from pocketbert.quantize.onnx.tables import (
    BLOCK,
    block_size_of,
    find_row_scales,
    pack_tables_int8,
    quantize_blocks,
    quantize_int8,
    unpack_codes,
)
from pocketbert.quantize.table import Plan
from pocketbert.quantize.weights import Use

TABLES = arrays(np.float32, (5, 8), elements=st.floats(-1e4, 1e4, width=32))


@settings(max_examples=25)
@given(table=TABLES)
def test_every_int8_number_is_within_half_a_step_of_its_row(table):
    codes, scales = quantize_int8(table, 0)
    assert (codes.dtype, scales.shape) == (np.int8, (5, 1))
    largest = np.abs(table).max(1, keepdims=True)
    assert (np.abs(codes * scales - table) <= largest / 127 * 0.51 + 1e-30).all()
    assert (codes[table == 0] == 0).all()


def test_rows_of_a_large_table_are_rounded_as_alone():
    table = np.random.default_rng(0).normal(size=(20_000, 4)).astype(np.float32)
    codes, scales = quantize_int8(table, 0)
    for row in (0, 8191, 8192, 19_999):
        alone, scale = quantize_int8(table[row : row + 1], 0)
        assert np.array_equal(codes[row : row + 1], alone)
        assert scales[row] == scale[0]


@settings(max_examples=25)
@given(
    st.integers(0, 999),
    st.integers(1, 5),
    st.integers(1, 100),
    st.sampled_from([4, 8]),
    st.floats(-3, 3),
    st.booleans(),
)
def test_a_number_in_blocks_is_half_a_step_from_its_own_and_packing_loses_nothing(
    seed, rows, width, bits, shift, zeros
):
    values = np.random.default_rng(seed).normal(shift, 1, (rows, width)).astype(np.float32)
    if zeros:
        values[0] = 0
    found = quantize_blocks(values, bits)
    blocks = -(-width // BLOCK)
    assert found.codes.shape == (rows, blocks, BLOCK)
    assert found.packed.shape == (rows, blocks, BLOCK * bits // 8)
    assert np.array_equal(unpack_codes(found.packed, bits), found.codes)
    middle = 2 ** (bits - 1)
    back = ((found.codes.astype(np.float32) - middle) * found.scales[..., None]).reshape(rows, -1)
    steps = np.repeat(np.abs(found.scales), BLOCK, axis=1)[:, :width]
    assert np.all(np.abs(back[:, :width] - values) <= steps * 0.5001)
    assert not back[:, width:].any(), "what fills up the last block is zero"
    # one code more on one side: the step is never larger than that of equal sides
    assert steps.max(initial=0) <= max(np.abs(values).max() / (middle - 1), 1) * 1.0001


@pytest.mark.parametrize(("width", "block"), [(384, 32), (16, 16), (48, 16), (312, None), (8, None)])
def test_blocks_divide_the_rows_of_a_table(width, block):
    assert block_size_of(width) == block


def build_lookup(table: np.ndarray[Any, Any], also_added: bool = False) -> Any:
    """A graph that looks up rows of a table; where wanted, one that adds the whole table's sum too."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    if also_added:
        nodes += [helper.make_node("ReduceSum", ["table"], ["sum"]), helper.make_node("Add", ["rows", "sum"], ["out"])]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
    out = helper.make_tensor_value_info("out" if also_added else "rows", TensorProto.FLOAT, ["batch", "length", 8])
    graph = helper.make_graph(nodes, "lookup", [ids], [out], [numpy_helper.from_array(table, "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_the_graph_looks_up_what_was_rounded():
    sizes = np.array([[1], [9], [0], [0.1], [3]], np.float32)
    table = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32) * sizes
    model = build_lookup(table)
    pack_tables_int8(model)
    onnx.checker.check_model(model, full_check=True)
    codes, scales = quantize_int8(table, 0)
    ids = np.array([[4, 0, 2], [1, 1, 3]])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"ids": ids})[0], (codes * scales)[ids])
    assert {t.data_type for t in model.graph.initializer if len(t.dims) == 2 and t.dims[1] > 1} == {TensorProto.INT8}
    assert find_row_scales(model.graph) == {"rows_codes": "table_row_scales"}


@pytest.mark.parametrize("why", ["left", "tied", "another reader"])
def test_a_table_stays_float_where_it_must(why):
    table = np.arange(40, dtype=np.float32).reshape(5, 8)
    model = build_lookup(table, also_added=why == "another reader")
    before = model.SerializeToString()
    left = frozenset([matrix_digest(table)] if why == "left" else ())
    pack_tables_int8(model, left, ["table"] if why == "tied" else ())
    assert model.SerializeToString() == before


@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.SMALL])
def test_a_large_row_does_not_coarsen_the_others(scheme, exported, tmp_path):
    model = onnx.load(exported("bert"))
    (table,) = [t for t in model.graph.initializer if t.name.endswith("position_embeddings.weight")]
    numbers = numpy_helper.to_array(table).copy()
    numbers[3] *= 100
    table.CopyFrom(numpy_helper.from_array(numbers, table.name))
    onnx.save(model, tmp_path / "model.onnx")
    types = quantize(tmp_path / "model.onnx", tmp_path / "small.onnx", Plan(Format.ONNX, scheme))
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "small.onnx").graph.initializer}
    (name,) = [n for n in stored if n.startswith(table.name) and stored[n].shape == numbers.shape]
    scales = np.abs(numbers).max(1, keepdims=True) / 127
    assert (np.abs(stored[name] * scales - numbers) <= 0.51 * scales).all()
    tables = [u for u in types.uses if u.use is Use.TABLE]
    assert len(tables) >= 3
    assert all(u.per_channel for u in tables)
    assert read_weight_types(tmp_path / "small.onnx").uses == types.uses
