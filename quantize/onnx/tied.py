"""Tables that are also matrices: fill-mask heads read the embedding table, turned round.

The exporter stores such a table once and transposes it in the graph. ONNX Runtime's quantizer takes only what is stored
as the matrix itself, so it would leave the largest product of the model and its table in fp32, and say nothing.
Here the matrix is quantized like every other, and the table then reads the matrix's numbers: one copy in the file, and a
scale for each word in the table as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pocketbert.quantize.onnx.left import stored_left
from pocketbert.quantize.onnx.rows import row_lookup
from pocketbert.quantize.onnx.tables import put_in_place

_QUANTIZED, _SCALE, _ZERO = "_quantized", "_scale", "_zero_point"
"""What ONNX Runtime's quantizer appends to the name of a weight."""


@dataclass(frozen=True)
class Tie:
    """One stored table with two uses.

    Attributes:
        table: Name of the stored table [V, H], which rows are gathered from.
        matrix: Name of its transpose [H, V], the second operand of a product.
    """

    table: str
    matrix: str


def untie(model: Any, left: frozenset[str] = frozenset()) -> list[Tie]:
    """Store the transpose of every table that a product reads, so that the quantizer finds it.

    Args:
        model: An ONNX model; changed in place.
        left: Digests of tables that stay as they are.

    Returns:
        The tables whose rows are gathered too, to be tied again with `retie`.
    """
    from onnx import numpy_helper

    graph, out = model.graph, []
    stored = {t.name: t for t in graph.initializer}
    kept = stored_left(graph, left)
    for node in list(graph.node):
        if node.op_type != "Transpose" or node.input[0] not in stored or node.input[0] in kept:
            continue
        readers = [n for n in graph.node if node.output[0] in n.input]
        table = stored[node.input[0]]
        if len(table.dims) != 2 or any(n.op_type != "MatMul" for n in readers):
            continue
        turned = numpy_helper.to_array(table).T.copy()
        graph.initializer.append(numpy_helper.from_array(turned, node.output[0]))
        graph.node.remove(node)
        others = [n for n in graph.node if table.name in n.input]
        if not others:
            graph.initializer.remove(table)
        elif all(n.op_type == "Gather" and n.input[0] == table.name for n in others):
            out.append(Tie(table.name, node.output[0]))
    return out


def retie(model: Any, ties: list[Tie]) -> None:
    """Let tables read the numbers of their quantized matrix.

    Args:
        model: The model that ONNX Runtime's quantizer made of what `untie` left; changed in place.
        ties: What `untie` returned.

    Raises:
        ValueError: If the quantizer's graph is not as known: a zero point that is not 0, or no lookup.
    """
    for tie in ties:
        _retie(model.graph, tie)


def _retie(graph: Any, tie: Tie) -> None:
    from onnx import helper, numpy_helper

    stored = {t.name: t for t in graph.initializer}
    matrix, zeros = stored.get(tie.matrix + _QUANTIZED), stored.get(tie.matrix + _ZERO)
    lookups = [n for n in graph.node if n.op_type == "Gather" and n.input[0] == tie.table]
    if matrix is None or zeros is None or numpy_helper.to_array(zeros).any() or not lookups:
        raise ValueError(f"{tie.table}: the quantizer wrote no symmetric matrix, or no lookup")
    rows = numpy_helper.to_array(matrix).T.copy()
    graph.initializer.remove(matrix)
    graph.initializer.remove(stored[tie.table])
    table, axis = tie.table + _QUANTIZED, f"{tie.table}_last_axis"
    graph.initializer.append(numpy_helper.from_array(rows, table))
    graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), axis))
    for lookup in lookups:
        put_in_place(graph, lookup, row_lookup(lookup, table, tie.matrix + _SCALE, axis))
    # folded by ONNX Runtime when it opens the file
    graph.node.insert(0, helper.make_node("Transpose", [table], [matrix.name], perm=[1, 0]))
