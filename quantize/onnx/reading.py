"""Reads what is stored in ONNX files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.onnx.tables import PackedLookup, packed_lookups, scales_of_rows
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.weights import COARSEST, ExpectedWeights, Use, Wanted, WeightTypes, WeightUse

# --- sizes ---
# Finds what a graph computes from nothing but the sizes of its inputs, such as positions: constants, once an engine knows them.


def from_sizes(graph: Any) -> set[str]:
    """Name the tensors that depend on sizes of the inputs, and on nothing that the inputs hold.

    Rows of a table are none of them, since a table is a weight whatever is looked up; nor is what DequantizeLinear makes,
    which operators read in integers.

    Args:
        graph: An ONNX graph.
    """
    fixed, weights, out = {t.name for t in graph.initializer}, matrices(graph), set[str]()
    for node in graph.node:
        data = [n for n in node.input if n and n not in fixed]
        if node.op_type == "Shape":
            out.update(node.output)
        elif not data:
            fixed.update(node.output)
            weights.update(() if weights.isdisjoint(node.input) else node.output)
        elif out.issuperset(data) and node.op_type != "DequantizeLinear" and weights.isdisjoint(node.input):
            out.update(node.output)
    return out


def read_elsewhere(graph: Any, names: set[str]) -> list[str]:
    """Name those of some tensors that nodes with other results read."""
    readers = (node for node in graph.node if names.isdisjoint(node.output))
    return list(dict.fromkeys(n for node in readers for n in node.input if n in names))


def matrices(graph: Any) -> set[str]:
    """Name the stored tensors with more than one axis of more than one number."""
    return {t.name for t in graph.initializer if sum(size > 1 for size in t.dims) > 1}


_INTEGER = ("MatMulInteger", "ConvInteger")
_READERS = (*_INTEGER, "MatMul", "Gemm", "Gather")
"""Standard operators that read weights."""
_MOVES = ("Transpose", "DequantizeLinear", "Concat", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators behind which a stored weight is still the same weight."""
_UNCOUNTED = ("QuantizeLinear", "DynamicQuantizeLinear", "Shape", "Constant", "Gather", "Slice", "Expand", *_MOVES)
"""Operators that compute nothing, or look something up."""


def weight_types(path: Path) -> WeightTypes:
    """Read the types of all weights in a graph."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    size = Counter[bool]()
    for tensor in graph.initializer:
        size[tensor.data_type in (TensorTypes.INT8, TensorTypes.UINT8)] += numpy_helper.to_array(tensor).nbytes
    return WeightTypes(
        uses=list(_uses(graph)),
        int8_bytes=size[True],
        float_bytes=size[False],
        operators=dict(Counter(n.op_type for n in graph.node)),
        coarse=_coarse(graph),
        **_computed(graph),
    )


class TensorTypes:
    """Numbers of types in ONNX (onnx.proto, TensorProto.DataType)."""

    UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL = 2, 3, 4, 5, 6, 7, 9
    COUNTS = (INT32, INT64, BOOL)


_KINDS = {1: "float32", TensorTypes.UINT8: "int8", TensorTypes.INT8: "int8", 10: "float16"}


def _uses(graph: Any) -> Iterator[WeightUse]:
    """Every use of a stored weight, in the order of the nodes."""
    from onnx import numpy_helper

    weights = {t.name: t for t in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    # fp32 weights have no part in the lookup of a packed table
    others = {n: numpy_helper.to_array(w) for n, w in weights.items() if w.data_type != 1 or math.prod(w.dims) == 1}
    packed = list(packed_lookups(graph, others))
    rows = scales_of_rows(graph)
    scales = {*rows.values(), *(p.scales for p in packed)}
    of_table = {p.table: p for p in packed}
    for node in graph.node:
        if node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
            yield _in_blocks(node, weights, producers)
            continue
        if node.op_type == "Gather" and node.input[0] in of_table:
            yield _packed_table(weights, of_table[node.input[0]])
            continue
        if node.op_type not in _READERS or (node.op_type == "Gather" and node.input[0] in scales):
            continue
        yield from _plain(node, weights, producers, rows.get(node.output[0]))


def _plain(
    node: Any, weights: Mapping[str, Any], producers: Mapping[str, Any], of_rows: str | None
) -> Iterator[WeightUse]:
    """The stored weights that a standard operator reads; `of_rows` names the scales that looked-up rows have."""
    integer, table = node.op_type in _INTEGER, node.op_type == "Gather"
    operands = node.input[:1] if table else node.input[:2]
    # static int8 is written as DequantizeLinear with a stored scale before both operands: engines compute it in int8
    fused = len(operands) > 1 and all(_widened(name, producers) in weights for name in operands)
    before = producers.get(node.input[0])
    fixed = integer and before is not None and before.op_type == "QuantizeLinear" and before.input[1] in weights
    for operand in operands:
        for name, dequantized in _sources([operand], producers):
            tensor = weights.get(name)
            if tensor is None or len(tensor.dims) < 2:
                continue
            scales = node.input[3] if integer and len(node.input) > 3 else of_rows or _widened(operand, producers)
            yield WeightUse(
                name=name,
                use=Use.TABLE if table else Use.MATMUL,
                dtype=_KINDS.get(tensor.data_type, str(tensor.data_type)),
                numbers=math.prod(tensor.dims),
                dequantized=dequantized and not fused,
                per_channel=_per_channel(weights.get(scales or ""), tensor),
                bits=_bits(operands, producers, weights) if fused else 8 if fixed else None,
                fused=fused,
            )


def _bits(operands: Iterable[str], producers: Mapping[str, Any], weights: Mapping[str, Any]) -> int:
    """Bits of the number that a weight is multiplied with: of both widened operands, the one that is not stored."""
    units = [_widening(name, producers) for name in operands]
    zeros = [weights[n.input[2]] for n in units if n is not None and n.input[0] not in weights and len(n.input) > 2]
    return 16 if any(z.data_type in (TensorTypes.UINT16, TensorTypes.INT16) for z in zeros) else 8


def _computed(graph: Any) -> dict[str, list[str]]:
    """Operators between integers and with floats, as `WeightTypes` names them; products with weights and lookups are neither.

    An operator computes in integers where engines fuse it with the DequantizeLinear in front of what it reads and the
    QuantizeLinear behind its result. What moves numbers, what makes no floats and what becomes a constant once the length is
    fixed counts as neither.
    """
    producers, counts = {name: node for node in graph.node for name in node.output}, _counts(graph) | from_sizes(graph)
    quantized = {n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
    constants = {t.name for t in graph.initializer}
    stored = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in constants}
    out: dict[str, list[str]] = {"integers": [], "floats": []}
    for node in graph.node:
        data = [n for n in node.input if n and n not in constants and n not in stored]
        if node.op_type in _UNCOUNTED or not data or node.output[0] in counts:
            continue
        widened = [producers[n].op_type == "DequantizeLinear" for n in data if n in producers]
        if not all(widened) or node.output[0] not in quantized:
            out["floats"].append(f"{node.op_type} '{node.name}'")
        elif not stored.intersection(node.input) or node.op_type not in _READERS:
            out["integers"].append(node.op_type)
    return out


def _counts(graph: Any) -> set[str]:
    """Names of whole numbers and truth values that no floats were rounded to: ids, masks, and the positions made of them."""
    out = {t.name for t in graph.initializer if t.data_type in TensorTypes.COUNTS}
    out |= {v.name for v in graph.input if v.type.tensor_type.elem_type in TensorTypes.COUNTS}
    for node in graph.node:
        if node.op_type == "Cast":
            made = any(a.i in TensorTypes.COUNTS for a in node.attribute if a.name == "to")
        elif node.op_type in ("Constant", "ConstantOfShape"):
            made = any(a.t.data_type in TensorTypes.COUNTS for a in node.attribute if a.name == "value")
        else:
            made = node.op_type == "Shape" or all(name in out for name in node.input if name)
        if made:
            out.update(node.output)
    return out


def _coarse(graph: Any) -> list[str]:
    """Inputs of softmax, and what was added to make them, that were integers with steps in which probabilities are lost."""
    from onnx import numpy_helper

    stored = {t.name: t for t in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    out = []
    for node in (n for n in graph.node if n.op_type == "Softmax"):
        names = [node.input[0]]
        while names and (name := names.pop()):
            scale = stored.get(_widened(name, producers) or "")
            bits = _bits([name], producers, stored)
            if scale is not None and float(numpy_helper.to_array(scale).max()) > COARSEST[bits]:
                out.append(name)
            source = _source(name, producers)
            names += source.input if source is not None and source.op_type == "Add" else ()
    return list(dict.fromkeys(out))


def _source(name: str, producers: Mapping[str, Any]) -> Any:
    """The node that computed a number before it was made an integer and a float again; None of a stored one."""
    node = producers.get(name)
    if node is None or node.op_type not in (*_MOVES, "QuantizeLinear"):
        return node
    return _source(node.input[0], producers)


def _in_blocks(node: Any, weights: Mapping[str, Any], producers: Mapping[str, Any]) -> WeightUse:
    """The weight of an operator of ONNX Runtime with blocks."""
    flags = {a.name: a.i for a in node.attribute}
    table = node.op_type == "GatherBlockQuantized"
    name = next(n for n, _ in _sources([node.input[0 if table else 1]], producers))
    numbers = math.prod(weights[name].dims) * 8 // flags["bits"] if table else flags["K"] * flags["N"]
    return WeightUse(
        name=name,
        use=Use.TABLE if table else Use.MATMUL,
        dtype=f"int{flags['bits']}",
        numbers=numbers,
        per_channel=True,
        block=flags["block_size"],
    )


def _packed_table(weights: Mapping[str, Any], lookup: PackedLookup) -> WeightUse:
    rows, width = weights[lookup.table].dims[0], 2 * weights[lookup.table].dims[1]
    block = width // weights[lookup.scales].dims[1]
    return WeightUse(
        name=lookup.table, use=Use.TABLE, dtype="int4", numbers=rows * width, per_channel=True, block=block
    )


def _sources(names: Iterable[str], producers: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """What is stored behind operands, through operators that only move or widen it; and whether one of them widens."""
    for name in names:
        node = producers.get(name)
        if node is None:
            yield name, False
        elif node.op_type in _MOVES:
            for source, widened in _sources(node.input if node.op_type == "Concat" else node.input[:1], producers):
                yield source, widened or node.op_type == "DequantizeLinear"


def _widened(name: str, producers: Mapping[str, Any]) -> str | None:
    """Name of the scale that an operand was made fp32 with; None where it always was."""
    node = _widening(name, producers)
    return None if node is None else str(node.input[1])


def _widening(name: str, producers: Mapping[str, Any]) -> Any:
    """The node that made an operand fp32; None where it always was."""
    node = producers.get(name)
    if node is None or node.op_type not in _MOVES:
        return None
    return node if node.op_type == "DequantizeLinear" else _widening(node.input[0], producers)


def _per_channel(scales: Any, tensor: Any) -> bool | None:
    """Whether an integer weight has a scale or zero point for each output channel; None where there is one channel."""
    if scales is None:
        return False
    if scales.dims and scales.dims[0] > 1:
        return True
    return None if 1 in tensor.dims else False


def stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Name and value of everything stored in a file."""
    import onnx
    from onnx import numpy_helper

    for tensor in onnx.load(path).graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)


register_reader(Format.ONNX, Reader(weight_types, stored_numbers))
register_scheme(SchemeRow(Format.ONNX, Scheme.FP32, ExpectedWeights(Wanted("float32"), Wanted("float32"))))
