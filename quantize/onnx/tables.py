"""Embedding tables in 4 bits, looked up with standard operators.

Byte j of a row holds column j in its low half and column j + H/2 in its high half. A lookup gathers bytes, splits them by
arithmetic, subtracts 8 and multiplies with scales that 32 neighbouring columns share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.weight_records import digest_of

# --- blocks ---
# Numbers in blocks of 32 that share a scale, as MatMulNBits and GatherBlockQuantized of ONNX Runtime store them.


BLOCK = 32
"""Numbers that share a scale."""
_SMALLEST = 16
"""ONNX Runtime takes no smaller blocks."""


@dataclass(frozen=True)
class Blocks:
    """Rows of numbers in blocks.

    Attributes:
        codes: [rows, blocks, numbers of a block], uint8; the last block of a row is filled up with zeros of the model.
        scales: [rows, blocks], fp32: a number is (code - 2 ** (bits - 1)) * scale.
        bits: Bits of a code, 4 or 8.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    bits: int

    @property
    def packed(self) -> NDArray[np.uint8]:
        """[rows, blocks, bytes of a block]; of 4-bit codes the first of two is in the low half of a byte."""
        if self.bits == 8:
            return self.codes
        return np.asarray(self.codes[..., 0::2] | self.codes[..., 1::2] << 4, np.uint8)


def block_of(width: int) -> int | None:
    """Return the block size for rows of a width that are looked up: 32, or 16 where 32 does not divide it, else None."""
    return next((size for size in (BLOCK, _SMALLEST) if width % size == 0), None)


def in_blocks(values: NDArray[np.float32], bits: int, block: int = BLOCK) -> Blocks:
    """Round rows of numbers to few bits, each block with its own scale.

    The scale is negative where the largest magnitude is positive: there is one code more below the middle than above, and
    it goes to the side that reaches further. No number is clipped.

    Args:
        values: [rows, width].
        bits: 4 or 8.
        block: Numbers that share a scale.
    """
    rows, width = values.shape
    filled = np.zeros((rows, -(-width // block) * block), np.float32)
    filled[:, :width] = values
    parts = filled.reshape(rows, -1, block)
    middle = 2 ** (bits - 1)
    up, down = parts.max(-1), -parts.min(-1)
    near, far = np.minimum(up, down), np.maximum(up, down)
    sizes = np.maximum(near / (middle - 1), far / middle)
    sizes = np.where(sizes < np.finfo(np.float32).tiny, np.float32(1), sizes)
    scales = np.where(up > down, -sizes, sizes).astype(np.float32)
    codes = np.rint(parts / scales[..., None]) + middle
    return Blocks(np.clip(codes, 0, 2 * middle - 1).astype(np.uint8), scales, bits)


def unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the codes behind `Blocks.packed`, with twice as many numbers on the last axis where they have 4 bits."""
    if bits == 8:
        return packed
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    out[..., 0::2], out[..., 1::2] = packed & 15, packed >> 4
    return out


# --- left ---
# Nodes whose weights a plan leaves as they were exported.


def stored_left(graph: Any, left: frozenset[str]) -> set[str]:
    """Name the stored weights of a graph that have one of some digests."""
    from onnx import TensorProto, numpy_helper

    floats = [t for t in graph.initializer if t.data_type == TensorProto.FLOAT] if left else []
    return {t.name for t in floats if digest_of(numpy_helper.to_array(t)) in left}


def nodes_left(graph: Any, left: frozenset[str]) -> list[str]:
    """Name the nodes of a graph that read them, and what ONNX Runtime's quantizer calls a Gemm once it is a MatMul."""
    stored = stored_left(graph, left)
    names = [n.name for n in graph.node if stored.intersection(n.input)]
    return [*names, *(f"{name}_MatMul" for name in names)]


BITS = 4
_MIDDLE = 8
_HALF = 16.0
_CONSTANTS = {
    "pb_table_16": np.array(_HALF, np.float32),
    "pb_table_1_16": np.array(1 / _HALF, np.float32),
    "pb_table_8": np.array(_MIDDLE, np.float32),
}


def largest_table(graph: Any) -> str | None:
    """Name of the largest table whose rows are gathered; None where a graph has none.

    Only this one is worth 4 bits: an error of a position or a segment is the same for every text, and moves the answers as
    much as the rounding of all words (measured on the demo's student: 0.048, 0.046 and 0.047 of the logits' spread).

    Args:
        graph: An fp32 ONNX graph.
    """
    stored = {t.name: math.prod(t.dims) for t in graph.initializer if len(t.dims) == 2 and t.data_type == 1}
    read = [n.input[0] for n in graph.node if n.input and is_lookup(n, n.input[0]) and n.input[0] in stored]
    return max(read, key=stored.__getitem__, default=None)


def pack_largest(model: Any, chosen: frozenset[str] | None = None) -> None:
    """Store the largest table in 4 bits.

    One that is multiplied too (the head of fill-mask) stays as it is: the quantizer of products stores it.

    Args:
        model: An fp32 ONNX model; changed in place.
        chosen: Digests of the weights that may be stored so; None for all.

    Raises:
        InputError: If the width of the table is not a multiple of 16.
    """
    from onnx import numpy_helper

    graph = model.graph
    name = largest_table(graph)
    readers = [n for n in graph.node if name in n.input]
    if name is None or not all(is_lookup(n, name) for n in readers):
        return
    stored = next(t for t in graph.initializer if t.name == name)
    if chosen is not None and digest_of(numpy_helper.to_array(stored)) not in chosen:
        return
    _store(graph, name, numpy_helper.to_array(stored))
    graph.initializer.remove(stored)
    graph.initializer.extend(numpy_helper.from_array(value, constant) for constant, value in _CONSTANTS.items())
    for node in readers:
        _replace(graph, node, name)


def is_lookup(node: Any, table: str) -> bool:
    """Whether a node gathers rows of a table."""
    return bool(
        node.op_type == "Gather" and node.input[0] == table and not any(a.i for a in node.attribute if a.name == "axis")
    )


def _store(graph: Any, name: str, table: NDArray[np.float32]) -> None:
    """Store a table's packed codes, scales, and which scale each column has."""
    from onnx import numpy_helper

    width = table.shape[1]
    block = block_of(width)
    if block is None:
        raise InputError(
            Problem(
                name,
                f"has rows of {width} numbers; 4-bit tables have blocks of 32 or 16.",
                "Choose the scheme int8, or a student whose hidden size is a multiple of 16.",
            )
        )
    found = in_blocks(table, BITS, block)
    codes = found.codes.reshape(len(table), -1)
    scales = found.scales.astype(np.float16)
    columns = np.repeat(np.arange(width // block), block)
    for end, value in (
        ("int4", codes[:, : width // 2] | codes[:, width // 2 :] << 4),
        ("scales", scales),
        ("columns", columns.astype(np.int64)),
    ):
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"{name}_{end}"))


def _replace(graph: Any, node: Any, name: str) -> None:
    """Write the lookup of a packed table in place of a Gather."""
    from onnx import TensorProto, helper

    out, indices = node.output[0], node.input[1]

    def at(what: str) -> str:
        return f"{out}_{what}"

    nodes = [
        helper.make_node("Gather", [f"{name}_int4", indices], [at("packed")]),
        helper.make_node("Cast", [at("packed")], [at("bytes")], to=TensorProto.FLOAT),
        helper.make_node("Mul", [at("bytes"), "pb_table_1_16"], [at("shifted")]),
        helper.make_node("Floor", [at("shifted")], [at("high")]),
        helper.make_node("Mul", [at("high"), "pb_table_16"], [at("high_16")]),
        helper.make_node("Sub", [at("bytes"), at("high_16")], [at("low")]),
        helper.make_node("Concat", [at("low"), at("high")], [at("codes")], axis=-1),
        helper.make_node("Sub", [at("codes"), "pb_table_8"], [at("steps")]),
        helper.make_node("Gather", [f"{name}_scales", indices], [at("row_halves")]),
        helper.make_node("Cast", [at("row_halves")], [at("row_scales")], to=TensorProto.FLOAT),
        helper.make_node("Gather", [at("row_scales"), f"{name}_columns"], [at("scales")], axis=-1),
        helper.make_node("Mul", [at("steps"), at("scales")], [out]),
    ]
    put_in_place(graph, node, nodes)


def put_in_place(graph: Any, node: Any, nodes: list[Any]) -> None:
    """Write nodes in the place of one; the graph stays sorted."""
    place = list(graph.node).index(node)
    graph.node.remove(node)
    for i, new in enumerate(nodes):
        graph.node.insert(place + i, new)


@dataclass(frozen=True)
class PackedLookup:
    """A lookup of a 4-bit table as `pack_tables` writes it.

    Attributes:
        table: Name of the packed codes [V, H/2].
        scales: Name of the scales [V, blocks].
        columns: Name of the scale's place of each column [H].
        indices: Name of the looked-up places.
        output: Name of the rows.
        inside: Names of all tensors between.
    """

    table: str
    scales: str
    columns: str
    indices: str
    output: str
    inside: frozenset[str]

    def values(self, stored: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the table's codes less 8 [V, H], and the scale of each of them.

        Args:
            stored: The file's stored arrays.
        """
        packed = stored[self.table]
        codes = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32) - _MIDDLE
        return codes, stored[self.scales].astype(np.float32)[:, stored[self.columns]]


def packed_lookups(graph: Any, stored: Mapping[str, NDArray[Any]]) -> Iterator[PackedLookup]:
    """Find every lookup of a 4-bit table whose operators and constants are all as they are written here.

    Args:
        graph: An ONNX graph.
        stored: Its stored arrays by name.
    """
    makers = {name: node for node in graph.node for name in node.output}

    def is_constant(name: str, value: float) -> bool:
        return name in stored and stored[name].size == 1 and float(stored[name]) == value

    def made(name: str, kind: str) -> list[str] | None:
        node = makers.get(name)
        return list(node.input) if node is not None and node.op_type == kind else None

    for last in graph.node:
        if last.op_type != "Mul":
            continue
        steps, spread = (made(n, k) for n, k in zip(last.input, ("Sub", "Gather"), strict=True))
        both = made(steps[0], "Concat") if steps and is_constant(steps[1], _MIDDLE) else None
        cast = made(spread[0], "Cast") if spread and spread[1] in stored else None
        scales = made(cast[0], "Gather") if cast else None
        if not (steps and both and len(both) == 2 and spread and cast and scales and scales[0] in stored):
            continue
        low, floor = made(both[0], "Sub"), made(both[1], "Floor")
        times, shift = made(low[1], "Mul") if low else None, made(floor[0], "Mul") if floor else None
        if not (low and times and shift and times[0] == both[1] and shift[0] == low[0]):
            continue
        data = made(low[0], "Cast")
        table = made(data[0], "Gather") if data else None
        right = is_constant(times[1], _HALF) and is_constant(shift[1], 1 / _HALF)
        if (
            right
            and data
            and table
            and table[0] in stored
            and stored[table[0]].dtype == np.uint8
            and table[1] == scales[1]
        ):
            names = (
                *last.input,
                *both,
                steps[0],
                spread[0],
                cast[0],
                low[0],
                low[1],
                floor[0] if floor else "",
                data[0],
            )
            yield PackedLookup(table[0], scales[0], spread[1], table[1], last.output[0], frozenset(names))


# --- rows ---
# Embedding tables in int8 with a scale for each row, looked up with standard operators.
#
# ONNX Runtime's quantizer gives a table one scale, which the largest of its numbers decides: rows without such a number keep
# few of the 256 steps. Here a lookup gathers int8 rows and their scales, and multiplies them.


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


# --- tied ---
# Tables that are also matrices: fill-mask heads read the embedding table, turned round.
#
# The exporter stores such a table once and transposes it in the graph. ONNX Runtime's quantizer takes only what is stored
# as the matrix itself, so it would leave the largest product of the model and its table in fp32, and say nothing.
# Here the matrix is quantized like every other, and the table then reads the matrix's numbers: one copy in the file, and a
# scale for each word in the table as well.


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
