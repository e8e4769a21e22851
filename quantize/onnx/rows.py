"""Embedding tables in int8 with a scale for each row, looked up with standard operators.

ONNX Runtime's quantizer gives a table one scale, which the largest of its numbers decides: rows without such a number keep
few of the 256 steps. Here a lookup gathers int8 rows and their scales, and multiplies them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.quantize.onnx.left import stored_left
from pocketbert.quantize.onnx.tables import is_lookup, put_in_place

_LARGEST = 127


def pack_rows(model: Any, left: frozenset[str] = frozenset(), tied: Collection[str] = ()) -> None:
    """Store every fp32 table that nothing but lookups read in int8 with a scale for each row.

    Args:
        model: An ONNX model; changed in place.
        left: Digests of tables that stay as they are.
        tied: Names of tables that get the numbers of a matrix.
    """
    from onnx import TensorProto, numpy_helper

    graph = model.graph
    kept = stored_left(graph, left).union(tied)
    matrices = [t for t in graph.initializer if len(t.dims) == 2 and t.data_type == TensorProto.FLOAT]
    for tensor in (t for t in matrices if t.name not in kept):
        readers = [n for n in graph.node if tensor.name in n.input]
        if not readers or not all(is_lookup(n, tensor.name) for n in readers):
            continue
        codes, scales = int8_along(numpy_helper.to_array(tensor), 0)
        table, of_rows = f"{tensor.name}_int8", f"{tensor.name}_row_scales"
        graph.initializer.remove(tensor)
        graph.initializer.extend([numpy_helper.from_array(codes, table), numpy_helper.from_array(scales, of_rows)])
        for node in readers:
            put_in_place(graph, node, row_lookup(node, table, of_rows))


def int8_along(value: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round numbers to int8, with a scale for each index of an axis; zero stays zero.

    Args:
        value: The numbers; a table's rows are [V, H], along axis 0.
        axis: The axis.

    Returns:
        Steps, and scales that keep the other axes with one index each, [V, 1] for rows.
    """
    others = tuple(i for i in range(value.ndim) if i != axis)
    largest = np.abs(value).max(others, keepdims=True)
    scales = np.maximum(largest, np.finfo(np.float32).tiny * _LARGEST) / _LARGEST
    return np.rint(value / scales).astype(np.int8), scales.astype(np.float32)


def row_lookup(lookup: Any, table: str, scales: str, axis: str | None = None) -> list[Any]:
    """Return the nodes that look up int8 rows and multiply them with their scales.

    Args:
        lookup: The Gather of a table [V, H] that they stand for.
        table: Name of the int8 numbers [V, H].
        scales: Name of the scales [V, 1]; [V] where `axis` is given.
        axis: Name of a stored [-1], for scales without a second axis.
    """
    from onnx import TensorProto, helper

    indices, out = lookup.input[1], lookup.output[0]
    codes, steps, found = f"{out}_codes", f"{out}_steps", f"{out}_row_scales"
    nodes = [
        helper.make_node("Gather", [table, indices], [codes]),
        helper.make_node("Cast", [codes], [steps], to=TensorProto.FLOAT),
        helper.make_node("Gather", [scales, indices], [found]),
    ]
    if axis is not None:
        nodes.append(helper.make_node("Unsqueeze", [found, axis], [f"{out}_scale_column"]))
    return [*nodes, helper.make_node("Mul", [steps, nodes[-1].output[0]], [out])]


def scales_of_rows(graph: Any) -> dict[str, str]:
    """Find the scales of every lookup that is followed as `row_lookup` writes it.

    Args:
        graph: An ONNX graph.

    Returns:
        Name of the table's scales, by the name of the lookup's result.
    """
    makers = {name: node for node in graph.node for name in node.output}

    def lookup(name: str, through: str) -> Any:
        """The Gather that made a tensor, through one operator where that is between."""
        node = makers.get(name)
        node = makers.get(node.input[0]) if node is not None and node.op_type == through else node
        return node if node is not None and node.op_type == "Gather" else None

    out = {}
    for node in graph.node:
        if node.op_type != "Mul":
            continue
        rows, scales = lookup(node.input[0], "Cast"), lookup(node.input[1], "Unsqueeze")
        if rows is not None and scales is not None and rows.input[1] == scales.input[1]:
            out[rows.output[0]] = scales.input[0]
    return out
