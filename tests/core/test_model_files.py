"""ONNX files are read and written without copies of their large weights, with the same numbers and the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from pocketbert.core.model_files import LARGE_WEIGHT, load_onnx, write_onnx


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Large and small tensors of several types; fields before and behind the graph, and behind a tensor's data."""
    draws = np.random.default_rng(0)
    arrays = {
        "table": draws.normal(size=(600, 512)).astype(np.float32),
        "bytes": draws.integers(-128, 128, (1100, 1024)).astype(np.int8),
        "half": draws.normal(size=(1 << 20,)).astype(np.float16),
        "bias": np.arange(4, dtype=np.float32),
        "one": np.array(7, np.int64),
    }
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    tensors[1].doc_string = "behind the data"
    tensors.append(helper.make_tensor("packed", TensorProto.INT4, (2048, 2048), bytes(1 << 21), raw=True))
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 512])
    graph = helper.make_graph(nodes, "graph", [ids], [rows], tensors)
    model = helper.make_model(graph, producer_name="test", opset_imports=[helper.make_opsetid("", 20)])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_numbers_are_those_of_onnx_and_large_ones_stay_in_the_file(file: Path) -> None:
    model, numbers = load_onnx(file)
    whole = onnx.load(file)
    assert list(numbers) == [t.name for t in whole.graph.initializer]
    for tensor in whole.graph.initializer:
        expected, found = numpy_helper.to_array(tensor), numbers[tensor.name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(found, expected)
    is_empty = {t.name: not t.raw_data for t in model.graph.initializer}
    # four bits have no type of numpy
    assert is_empty == {"table": True, "bytes": True, "half": True, "bias": False, "one": False, "packed": False}
    assert model.ByteSize() < LARGE_WEIGHT + (1 << 21)
    assert not numbers["table"].flags.writeable


def test_a_file_is_written_with_the_same_bytes(file: Path, tmp_path: Path) -> None:
    model, numbers = load_onnx(file)
    large = {t.name: numbers[t.name] for t in model.graph.initializer if not t.raw_data}
    again = tmp_path / "again.onnx"
    write_onnx(model, large, again)
    assert again.read_bytes() == file.read_bytes()
    for tensor in model.graph.initializer:  # as exporters give them: without rows until they are written
        if tensor.name in large:
            tensor.dims[0] = 0
    write_onnx(model, large, again)
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("length", [0, 1, 100, 50_000, 2_000_000, -1])
def test_a_file_that_is_cut_or_no_model_is_refused(file: Path, length: int) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:length])
    with pytest.raises(DecodeError):
        load_onnx(file)


@pytest.mark.parametrize("content", [b"\xff" * 5_000_000, b"\x3a\x02\x2a\x7f", b"\x3f"])
def test_bytes_that_are_no_model_are_refused_at_once(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(DecodeError, match="is no ONNX file"):
        load_onnx(file)


def test_data_beside_the_file_is_read_and_sizes_that_differ_from_the_data_are_refused(file: Path) -> None:
    expected = load_onnx(file)[1]
    outside = file.with_name("outside.onnx")
    onnx.save(onnx.load(file), outside, save_as_external_data=True, location="outside.data")
    found = load_onnx(outside)[1]
    assert all(np.array_equal(found[name], numbers) for name, numbers in expected.items())
    model = onnx.load(file)
    model.graph.initializer[0].dims[0] = 599
    file.write_bytes(model.SerializeToString())
    with pytest.raises(DecodeError, match="reshape"):
        load_onnx(file)
