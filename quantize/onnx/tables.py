"""Embedding tables in 4 bits, looked up with standard operators.

Byte j of a row holds column j in its low half and column j + H/2 in its high half. A lookup gathers bytes, splits them by
arithmetic, subtracts 8 and multiplies with scales that 32 neighbouring columns share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.digests import digest_of
from pocketbert.quantize.blocks import block_of, in_blocks

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
