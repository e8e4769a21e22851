"""Store embedding tables and weight blocks of quantized ONNX files, and find them again.

- Blocks: `quantize_blocks` rounds rows in blocks of 32 that share a scale, as ONNX Runtime's MatMulNBits and
  GatherBlockQuantized store them.
- Tables in 4 bits: `pack_largest_table` stores the table of words in blocks and looks it up with standard operators.
  Byte j of a row holds column j in its low half and column j + H/2 in its high half; a lookup gathers bytes, splits
  them by arithmetic, subtracts 8 and multiplies with scales that 32 neighbouring columns share. `find_packed_lookups`
  finds these lookups again.
- Tables in int8: `pack_tables_int8` gives each row its own scale. ONNX Runtime's quantizer gives a table one scale,
  which its largest number decides: rows without such a number use few of the 256 steps. `find_row_scales` finds these
  lookups again.
- Tied embeddings: a fill-mask head reads the embedding table transposed. The exporter stores such a table once and
  transposes it in the graph. ONNX Runtime's quantizer only quantizes what is stored as the matrix itself, so it would
  leave the largest product of the model and its table in fp32 without a warning. `untie_embeddings` stores the matrix
  for it; `retie_embeddings` then lets the table read the quantized matrix: one copy in the file, with a scale for each
  word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import matrix_digest

BLOCK = 32
"""Numbers that share a scale."""
_SMALLEST_BLOCK = 16
"""ONNX Runtime takes no smaller blocks."""
_BITS = 4
_MIDDLE = 8
_HALF_BYTE = 16.0
_CONSTANTS = {
    "pb_table_16": np.array(_HALF_BYTE, np.float32),
    "pb_table_1_16": np.array(1 / _HALF_BYTE, np.float32),
    "pb_table_8": np.array(_MIDDLE, np.float32),
}
_INT8_MAX = 127
_ROWS_AT_ONCE = 8192
_QUANTIZED, _SCALE, _ZERO_POINT = "_quantized", "_scale", "_zero_point"
"""What ONNX Runtime's quantizer appends to the name of a weight."""


# --- blocks ---


@dataclass(frozen=True)
class Blocks:
    """Rows of numbers rounded in blocks, each of which has its own scale.

    Attributes:
        codes: Code of each number, [rows, blocks, numbers of a block], uint8; the last block of a row is padded with
            the code of zero.
        scales: Scale of each block, [rows, blocks], fp32: a number is (code - 2 ** (bits - 1)) * scale.
        bits: Bits of a code, 4 or 8.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    bits: int

    @property
    def packed(self) -> NDArray[np.uint8]:
        """The codes as bytes, [rows, blocks, bytes of a block]. The first of two 4-bit codes is in the low half."""
        if self.bits == 8:
            return self.codes
        return np.asarray(self.codes[..., 0::2] | self.codes[..., 1::2] << 4, np.uint8)


def block_size_of(width: int) -> int | None:
    """Return the block size for table rows of this width: 32, else 16, else None."""
    return next((size for size in (BLOCK, _SMALLEST_BLOCK) if width % size == 0), None)


def quantize_blocks(values: NDArray[np.float32], bits: int, block: int = BLOCK) -> Blocks:
    """Round rows of numbers to 4 or 8 bits in blocks that each have their own scale.

    There is one more code below zero than above. It is used for the side with the larger magnitude: the scale is
    negative if that side is positive. No number is clipped.

    Args:
        values: The numbers, [rows, width].
        bits: Bits of a rounded number, 4 or 8.
        block: Count of numbers in a block.
    """
    rows, width = values.shape
    padded = np.zeros((rows, -(-width // block) * block), np.float32)
    padded[:, :width] = values
    parts = padded.reshape(rows, -1, block)
    middle = 2 ** (bits - 1)
    up, down = parts.max(-1), -parts.min(-1)
    near, far = np.minimum(up, down), np.maximum(up, down)
    sizes = np.maximum(near / (middle - 1), far / middle)
    sizes = np.where(sizes < np.finfo(np.float32).tiny, np.float32(1), sizes)
    scales = np.where(up > down, -sizes, sizes).astype(np.float32)
    codes = np.rint(parts / scales[..., None]) + middle
    return Blocks(np.clip(codes, 0, 2 * middle - 1).astype(np.uint8), scales, bits)


def unpack_codes(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Unpack codes from bytes that `Blocks.packed` packed. With 4 bits, the last axis becomes twice as long."""
    if bits == 8:
        return packed
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = packed & 15, packed >> 4
    return codes


# --- tables in 4 bits ---


def find_largest_table(graph: Any) -> str | None:
    """Return the name of the largest embedding table; None if the graph looks nothing up.

    Only the largest table is worth 4 bits: an error of a position or a segment is the same for every text, and changes
    the outputs as much as the rounding of all words (measured on the demo's student: 0.048, 0.046 and 0.047 of the
    logits' spread).

    Args:
        graph: An fp32 ONNX graph.
    """
    sizes = {t.name: math.prod(t.dims) for t in graph.initializer if len(t.dims) == 2 and t.data_type == 1}
    tables = [n.input[0] for n in graph.node if n.input and is_lookup(n, n.input[0]) and n.input[0] in sizes]
    return max(tables, key=sizes.__getitem__, default=None)


def is_lookup(node: Any, table: str) -> bool:
    """Return whether a node is a Gather of rows of this table."""
    return bool(
        node.op_type == "Gather" and node.input[0] == table and not any(a.i for a in node.attribute if a.name == "axis")
    )


def pack_largest_table(model: Any, digests: frozenset[str] | None = None) -> None:
    """Store the largest embedding table of a model in 4 bits, unless a node that is no lookup reads it (fill-mask).

    Args:
        model: An fp32 ONNX model; changed in place.
        digests: Digests of the weights that may be stored in 4 bits; None for all. If the table's is not among them,
            nothing is changed.

    Raises:
        InputError: If the table's width is not a multiple of 16.
    """
    from onnx import numpy_helper

    graph = model.graph
    name = find_largest_table(graph)
    readers = [n for n in graph.node if name in n.input]
    if name is None or not all(is_lookup(n, name) for n in readers):
        return
    table = next(t for t in graph.initializer if t.name == name)
    if digests is not None and matrix_digest(numpy_helper.to_array(table)) not in digests:
        return
    _store_packed_table(graph, name, numpy_helper.to_array(table))
    graph.initializer.remove(table)
    graph.initializer.extend(numpy_helper.from_array(value, constant) for constant, value in _CONSTANTS.items())
    for node in readers:
        _replace_node(graph, node, _packed_lookup_nodes(node, name))


def _store_packed_table(graph: Any, name: str, table: NDArray[np.float32]) -> None:
    """Store an embedding table in 4 bits in a graph: codes [V, H/2], fp16 scales [V, blocks], block of each column [H].

    Raises InputError if no block size divides the table's width.
    """
    from onnx import numpy_helper

    width = table.shape[1]
    block = block_size_of(width)
    if block is None:
        raise InputError(
            Problem(
                name,
                f"has rows of {width} numbers; 4-bit tables have blocks of 32 or 16.",
                "Choose the scheme int8, or a student whose hidden size is a multiple of 16.",
            )
        )
    blocks = quantize_blocks(table, _BITS, block)
    codes = blocks.codes.reshape(len(table), -1)
    for ending, value in (
        ("int4", codes[:, : width // 2] | codes[:, width // 2 :] << 4),
        ("scales", blocks.scales.astype(np.float16)),
        ("columns", np.repeat(np.arange(width // block), block).astype(np.int64)),
    ):
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"{name}_{ending}"))


def _packed_lookup_nodes(gather: Any, table: str) -> list[Any]:
    """Build nodes of standard operators that look up rows of a 4-bit embedding table, in place of a Gather."""
    from onnx import TensorProto, helper

    out, indices = gather.output[0], gather.input[1]

    def make(op_type: str, inputs: list[str], name: str, **attributes: Any) -> Any:
        return helper.make_node(op_type, inputs, [f"{out}_{name}"], **attributes)

    return [
        make("Gather", [f"{table}_int4", indices], "packed"),
        make("Cast", [f"{out}_packed"], "bytes", to=TensorProto.FLOAT),
        make("Mul", [f"{out}_bytes", "pb_table_1_16"], "shifted"),
        make("Floor", [f"{out}_shifted"], "high"),
        make("Mul", [f"{out}_high", "pb_table_16"], "high_16"),
        make("Sub", [f"{out}_bytes", f"{out}_high_16"], "low"),
        make("Concat", [f"{out}_low", f"{out}_high"], "codes", axis=-1),
        make("Sub", [f"{out}_codes", "pb_table_8"], "steps"),
        make("Gather", [f"{table}_scales", indices], "row_halves"),
        make("Cast", [f"{out}_row_halves"], "row_scales", to=TensorProto.FLOAT),
        make("Gather", [f"{out}_row_scales", f"{table}_columns"], "scales", axis=-1),
        helper.make_node("Mul", [f"{out}_steps", f"{out}_scales"], [out]),
    ]


def _replace_node(graph: Any, node: Any, nodes: list[Any]) -> None:
    """Put nodes in the place of one node. The graph stays sorted."""
    place = list(graph.node).index(node)
    graph.node.remove(node)
    for i, new in enumerate(nodes):
        graph.node.insert(place + i, new)


@dataclass(frozen=True)
class PackedLookup:
    """The names of the tensors in one lookup of a 4-bit table, as `pack_largest_table` writes it.

    Attributes:
        table: Name of the packed codes [V, H/2].
        scales: Name of the scales [V, blocks].
        columns: Name of the block of each column [H].
        indices: Name of the looked-up indices.
        output: Name of the resulting rows.
        inside: Names of all tensors between the stored ones and the resulting rows.
    """

    table: str
    scales: str
    columns: str
    indices: str
    output: str
    inside: frozenset[str]

    def values(self, stored: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the table's codes minus 8, [V, H], and the scale of each code.

        Args:
            stored: The arrays stored in the file, by name.
        """
        packed = stored[self.table]
        codes = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32) - _MIDDLE
        return codes, stored[self.scales].astype(np.float32)[:, stored[self.columns]]


def find_packed_lookups(graph: Any, stored: Mapping[str, NDArray[Any]]) -> Iterator[PackedLookup]:
    """Yield every lookup of a 4-bit table in a graph, recognized by its operators and constants.

    Args:
        graph: An ONNX graph.
        stored: The graph's stored arrays by name.
    """
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        lookup = _match_packed_lookup(node, makers, stored) if node.op_type == "Mul" else None
        if lookup is not None:
            yield lookup


def _match_packed_lookup(
    product: Any, makers: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]
) -> PackedLookup | None:
    """Return the lookup in a 4-bit embedding table of which the Mul `product` is the last node.

    None if the nodes before it are not those that `_packed_lookup_nodes` writes.
    """

    def inputs(name: str, op_type: str) -> list[str] | None:
        node = makers.get(name)
        return list(node.input) if node is not None and node.op_type == op_type else None

    def is_constant(name: str, value: float) -> bool:
        return name in stored and stored[name].size == 1 and float(stored[name]) == value

    steps, spread = inputs(product.input[0], "Sub"), inputs(product.input[1], "Gather")
    if not steps or not is_constant(steps[1], _MIDDLE) or not spread or spread[1] not in stored:
        return None
    halves, cast = inputs(steps[0], "Concat"), inputs(spread[0], "Cast")
    scales = inputs(cast[0], "Gather") if cast else None
    if not halves or len(halves) != 2 or not cast or not scales or scales[0] not in stored:
        return None
    low, high = inputs(halves[0], "Sub"), inputs(halves[1], "Floor")
    times_16, shifted = inputs(low[1], "Mul") if low else None, inputs(high[0], "Mul") if high else None
    if not low or not high or not times_16 or not shifted or times_16[0] != halves[1] or shifted[0] != low[0]:
        return None
    if not is_constant(times_16[1], _HALF_BYTE) or not is_constant(shifted[1], 1 / _HALF_BYTE):
        return None
    as_float = inputs(low[0], "Cast")
    table = inputs(as_float[0], "Gather") if as_float else None
    if not as_float or not table or table[0] not in stored:
        return None
    if stored[table[0]].dtype != np.uint8 or table[1] != scales[1]:
        return None
    inside = (*product.input, *halves, steps[0], spread[0], cast[0], low[0], low[1], high[0], as_float[0])
    return PackedLookup(table[0], scales[0], spread[1], table[1], product.output[0], frozenset(inside))


# --- tables in int8 ---


def pack_tables_int8(model: Any, left: frozenset[str] = frozenset(), tied: Collection[str] = ()) -> None:
    """Replace the fp32 embedding tables that are only read by Gather by int8 tables with a scale for each row.

    Args:
        model: An ONNX model; changed in place.
        left: Digests of the tables that stay float; see `matrix_digest`.
        tied: Names of tables that are not changed here, because they will share the quantized numbers of a matrix.
    """
    from onnx import TensorProto, numpy_helper

    graph = model.graph
    skipped = find_weights_left(graph, left).union(tied)
    matrices = [t for t in graph.initializer if len(t.dims) == 2 and t.data_type == TensorProto.FLOAT]
    for tensor in (t for t in matrices if t.name not in skipped):
        readers = [n for n in graph.node if tensor.name in n.input]
        if not readers or not all(is_lookup(n, tensor.name) for n in readers):
            continue
        codes, scales = quantize_int8(numpy_helper.to_array(tensor), 0)
        table, row_scales = f"{tensor.name}_int8", f"{tensor.name}_row_scales"
        graph.initializer.remove(tensor)
        graph.initializer.extend([numpy_helper.from_array(codes, table), numpy_helper.from_array(scales, row_scales)])
        for node in readers:
            _replace_node(graph, node, int8_lookup_nodes(node, table, row_scales))


def quantize_int8(value: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round numbers to int8 symmetrically, with a scale for each index of an axis.

    Args:
        value: The numbers, such as the rows of a table, [V, H].
        axis: The axis whose indices have a scale each; 0 for one per row of a table.

    Returns:
        Integers, and scales that keep the other axes with one index each, [V, 1] for rows.
    """
    others = tuple(i for i in range(value.ndim) if i != axis)
    largest = np.maximum(value.max(others, keepdims=True), -value.min(others, keepdims=True))
    scales = np.maximum(largest, np.finfo(np.float32).tiny * _INT8_MAX) / _INT8_MAX
    codes = np.empty(value.shape, np.int8)
    for start in range(0, len(value), _ROWS_AT_ONCE):  # a table of 250,000 words would be in memory three times
        rows = slice(start, start + _ROWS_AT_ONCE)
        codes[rows] = np.rint(value[rows] / (scales if len(scales) == 1 else scales[rows]))
    return codes, scales.astype(np.float32)


def int8_lookup_nodes(gather: Any, table: str, scales: str, last_axis: str | None = None) -> list[Any]:
    """Build the nodes that gather rows of an int8 embedding table, and multiply each row by its scale.

    Args:
        gather: The Gather on the fp32 table [V, H] that the nodes replace.
        table: Name of the table's int8 numbers [V, H].
        scales: Name of the scales, [V, 1], or [V] if `last_axis` is given.
        last_axis: Name of a stored [-1], for scales without a second axis.
    """
    from onnx import TensorProto, helper

    indices, out = gather.input[1], gather.output[0]
    codes, steps, row_scales = f"{out}_codes", f"{out}_steps", f"{out}_row_scales"
    nodes = [
        helper.make_node("Gather", [table, indices], [codes]),
        helper.make_node("Cast", [codes], [steps], to=TensorProto.FLOAT),
        helper.make_node("Gather", [scales, indices], [row_scales]),
    ]
    if last_axis is not None:
        nodes.append(helper.make_node("Unsqueeze", [row_scales, last_axis], [f"{out}_scale_column"]))
    return [*nodes, helper.make_node("Mul", [steps, nodes[-1].output[0]], [out])]


def find_row_scales(graph: Any) -> dict[str, str]:
    """Find the embedding lookups (Gather) in int8 tables with a scale for each row, as `int8_lookup_nodes` writes them.

    Args:
        graph: An ONNX graph.

    Returns:
        The name of the table's scales, by the name of the Gather's result.
    """
    makers = {name: node for node in graph.node for name in node.output}

    def find_gather(name: str, through: str) -> Any:
        """Return the Gather whose result a tensor is, directly or through one operator of type `through`, or None."""
        node = makers.get(name)
        node = makers.get(node.input[0]) if node is not None and node.op_type == through else node
        return node if node is not None and node.op_type == "Gather" else None

    scales_by_rows = {}
    for node in graph.node:
        if node.op_type != "Mul":
            continue
        rows, scales = find_gather(node.input[0], "Cast"), find_gather(node.input[1], "Unsqueeze")
        if rows is not None and scales is not None and rows.input[1] == scales.input[1]:
            scales_by_rows[rows.output[0]] = scales.input[0]
    return scales_by_rows


# --- tied embeddings ---


def untie_embeddings(model: Any, left: frozenset[str] = frozenset()) -> dict[str, str]:
    """Store a transposed copy of each matrix that the graph transposes for MatMul only, and remove the Transpose.

    A fill-mask head reads the embedding table so. ONNX Runtime's quantizer quantizes no result of a Transpose. The
    original is removed if no other node reads it.

    Args:
        model: An ONNX model; changed in place.
        left: Digests of tables that stay float.

    Returns:
        For originals that stay because lookups read them: name of the table [V, H], by the name of its transposed copy
        [H, V].
    """
    from onnx import numpy_helper

    graph, tables_by_matrix = model.graph, dict[str, str]()
    stored = {t.name: t for t in graph.initializer}
    skipped = find_weights_left(graph, left)
    for node in list(graph.node):
        if node.op_type != "Transpose" or node.input[0] not in stored or node.input[0] in skipped:
            continue
        readers = [n for n in graph.node if node.output[0] in n.input]
        table = stored[node.input[0]]
        if len(table.dims) != 2 or any(n.op_type != "MatMul" for n in readers):
            continue
        transposed = numpy_helper.to_array(table).T.copy()
        graph.initializer.append(numpy_helper.from_array(transposed, node.output[0]))
        graph.node.remove(node)
        others = [n for n in graph.node if table.name in n.input]
        if not others:
            graph.initializer.remove(table)
        elif all(n.op_type == "Gather" and n.input[0] == table.name for n in others):
            tables_by_matrix[node.output[0]] = table.name
    return tables_by_matrix


def retie_embeddings(model: Any, tables_by_matrix: Mapping[str, str]) -> None:
    """Replace embedding tables by the transpose of their quantized matrix, so that a file stores the numbers once.

    Args:
        model: The model that ONNX Runtime's quantizer has written from the result of `untie_embeddings`; changed in
            place.
        tables_by_matrix: The result of `untie_embeddings`.

    Raises:
        ValueError: If the quantizer wrote another graph than expected: with a zero point other than 0, or without a
            lookup in the table.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    for matrix_name, table_name in tables_by_matrix.items():
        stored = {t.name: t for t in graph.initializer}
        matrix, zeros = stored.get(matrix_name + _QUANTIZED), stored.get(matrix_name + _ZERO_POINT)
        lookups = [n for n in graph.node if n.op_type == "Gather" and n.input[0] == table_name]
        if matrix is None or zeros is None or numpy_helper.to_array(zeros).any() or not lookups:
            raise ValueError(f"{table_name}: the quantizer wrote no symmetric matrix, or no lookup")
        rows = numpy_helper.to_array(matrix).T.copy()
        graph.initializer.remove(matrix)
        graph.initializer.remove(stored[table_name])
        table, last_axis = table_name + _QUANTIZED, f"{table_name}_last_axis"
        graph.initializer.append(numpy_helper.from_array(rows, table))
        graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), last_axis))
        for lookup in lookups:
            _replace_node(graph, lookup, int8_lookup_nodes(lookup, table, matrix_name + _SCALE, last_axis))
        # folded by ONNX Runtime when it opens the file
        graph.node.insert(0, helper.make_node("Transpose", [table], [matrix.name], perm=[1, 0]))


# --- weights that stay as they were exported ---


def find_weights_left(graph: Any, left: frozenset[str]) -> set[str]:
    """Return the names of the stored fp32 weights whose digest is in `left`."""
    from onnx import TensorProto, numpy_helper

    floats = [t for t in graph.initializer if t.data_type == TensorProto.FLOAT] if left else []
    return {t.name for t in floats if matrix_digest(numpy_helper.to_array(t)) in left}


def find_nodes_left(graph: Any, left: frozenset[str]) -> list[str]:
    """Return the names of nodes that read weights with a digest in `left`.

    The names that ONNX Runtime's quantizer gives to such nodes, if they are Gemms, are added.
    """
    weights = find_weights_left(graph, left)
    names = [n.name for n in graph.node if weights.intersection(n.input)]
    return [*names, *(f"{name}_MatMul" for name in names)]
