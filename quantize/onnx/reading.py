"""Read what is stored in ONNX files: `read_weight_types` and `read_stored_numbers` are the reader of the format.

Three functions on graphs are also used by the quantizer for Qualcomm's NPU: `find_size_tensors` (tensors that depend on
nothing but the sizes of the inputs, such as positions, which are constants for an engine with a fixed shape),
`find_read_elsewhere` and `find_matrices`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.model_files import load_onnx
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.onnx.tables import PackedLookup, find_packed_lookups, find_row_scales
from pocketbert.quantize.table import Reader, SchemeRow, register_reader
from pocketbert.quantize.weights import COARSEST, ExpectedForm, ExpectedWeights, Use, WeightTypes, WeightUse

_FLOAT, _UINT8, _INT8, _UINT16, _INT16, _INT32, _INT64, _BOOL, _FLOAT16 = 1, 2, 3, 4, 5, 6, 7, 9, 10
"""Numbers of types in ONNX (onnx.proto, TensorProto.DataType)."""
_WHOLE_NUMBERS = (_INT32, _INT64, _BOOL)
_TYPE_NAMES = {_FLOAT: "float32", _UINT8: "int8", _INT8: "int8", _FLOAT16: "float16"}
_INTEGER_PRODUCTS = ("MatMulInteger", "ConvInteger")
_WEIGHT_READERS = (*_INTEGER_PRODUCTS, "MatMul", "Gemm", "Gather")
"""Standard operators that read weights."""
_MOVES = ("Transpose", "DequantizeLinear", "Concat", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators behind which a stored weight is still the same weight."""
_UNCOUNTED = ("QuantizeLinear", "DynamicQuantizeLinear", "Shape", "Constant", "Gather", "Slice", "Expand", *_MOVES)
"""Operators that compute nothing, or look something up."""


def read_weight_types(path: Path) -> WeightTypes:
    """Read the storage type of every weight in an ONNX file."""
    model, numbers = load_onnx(path)
    graph, bytes_by_type = model.graph, Counter[str]()
    for tensor in graph.initializer:
        bytes_by_type[_TYPE_NAMES.get(tensor.data_type, "")] += numbers[tensor.name].nbytes
    return WeightTypes(
        uses=list(_weight_uses(graph, numbers)),
        int8_bytes=bytes_by_type["int8"],
        float_bytes=bytes_by_type["float32"] + bytes_by_type["float16"],
        operators=dict(Counter(n.op_type for n in graph.node)),
        coarse=_coarse_scores(graph, numbers),
        **_computed_operators(graph),
    )


def read_stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Yield (name, value) of every initializer (array stored in the graph) of an ONNX file."""
    yield from load_onnx(path)[1].items()


# --- uses of weights ---


def _weight_uses(graph: Any, numbers: Mapping[str, NDArray[Any]]) -> Iterator[WeightUse]:
    """Yield a `WeightUse` for each operator that reads a stored weight, in the order of the nodes; `numbers` are the initializers."""
    weights = {t.name: t for t in graph.initializer}
    makers = _node_by_output(graph)
    # no fp32 weight is part of the lookup of a packed table
    others = {n: numbers[n] for n, w in weights.items() if w.data_type != _FLOAT or math.prod(w.dims) == 1}
    lookup_by_table = {lookup.table: lookup for lookup in find_packed_lookups(graph, others)}
    row_scales = find_row_scales(graph)
    scales = {*row_scales.values(), *(lookup.scales for lookup in lookup_by_table.values())}
    for node in graph.node:
        if node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
            yield _block_weight_use(node, weights, makers)
        elif node.op_type == "Gather" and node.input[0] in lookup_by_table:
            yield _packed_table_use(weights, lookup_by_table[node.input[0]])
        elif node.op_type in _WEIGHT_READERS and not (node.op_type == "Gather" and node.input[0] in scales):
            yield from _standard_uses(node, weights, makers, row_scales.get(node.output[0]))


def _standard_uses(
    node: Any, weights: Mapping[str, Any], makers: Mapping[str, Any], row_scales: str | None
) -> Iterator[WeightUse]:
    """Yield a `WeightUse` for each stored weight that a standard operator such as MatMul or Gather reads.

    Args:
        node: The operator.
        weights: The stored tensors by name.
        makers: The node that computes each tensor.
        row_scales: Name of the scales by which the rows of a table are multiplied after a Gather; None if there are
            none.
    """
    is_integer, is_table = node.op_type in _INTEGER_PRODUCTS, node.op_type == "Gather"
    operands = node.input[:1] if is_table else node.input[:2]
    # static int8 is written as DequantizeLinear with a stored scale before both operands: engines compute it in int8
    fused = len(operands) > 1 and all(_dequantizing_scale(name, makers) in weights for name in operands)
    before = makers.get(node.input[0])
    ranged = is_integer and before is not None and before.op_type == "QuantizeLinear" and before.input[1] in weights
    for operand in operands:
        for name, dequantized in _stored_sources([operand], makers):
            tensor = weights.get(name)
            if tensor is None or len(tensor.dims) < 2:
                continue
            has_zero_point = is_integer and len(node.input) > 3
            scales = node.input[3] if has_zero_point else row_scales or _dequantizing_scale(operand, makers)
            yield WeightUse(
                name=name,
                use=Use.TABLE if is_table else Use.MATMUL,
                dtype=_TYPE_NAMES.get(tensor.data_type, str(tensor.data_type)),
                numbers=math.prod(tensor.dims),
                dequantized=dequantized and not fused,
                per_channel=_is_per_channel(weights.get(scales or ""), tensor),
                bits=_activation_bits(operands, makers, weights) if fused else 8 if ranged else None,
                fused=fused,
            )


def _block_weight_use(node: Any, weights: Mapping[str, Any], makers: Mapping[str, Any]) -> WeightUse:
    """Return a `WeightUse` for the weight of a MatMulNBits or GatherBlockQuantized node."""
    attributes = {a.name: a.i for a in node.attribute}
    bits, is_table = attributes["bits"], node.op_type == "GatherBlockQuantized"
    name = next(n for n, _ in _stored_sources([node.input[0 if is_table else 1]], makers))
    return WeightUse(
        name=name,
        use=Use.TABLE if is_table else Use.MATMUL,
        dtype=f"int{bits}",
        numbers=math.prod(weights[name].dims) * 8 // bits if is_table else attributes["K"] * attributes["N"],
        per_channel=True,
        block=attributes["block_size"],
    )


def _packed_table_use(weights: Mapping[str, Any], lookup: PackedLookup) -> WeightUse:
    """Return a `WeightUse` for a 4-bit table in which standard operators look up rows."""
    rows, width = weights[lookup.table].dims[0], 2 * weights[lookup.table].dims[1]
    block = width // weights[lookup.scales].dims[1]
    return WeightUse(
        name=lookup.table, use=Use.TABLE, dtype="int4", numbers=rows * width, per_channel=True, block=block
    )


def _is_per_channel(scales: Any, tensor: Any) -> bool | None:
    """Return whether a weight has a scale per output channel; False without scales, None if it has a single channel."""
    if scales is None:
        return False
    if scales.dims and scales.dims[0] > 1:
        return True
    return None if 1 in tensor.dims else False


def _activation_bits(operands: Iterable[str], makers: Mapping[str, Any], weights: Mapping[str, Any]) -> int:
    """Return the bits, 8 or 16, of the operand that is a dequantized activation; 8 if none is."""
    nodes = [_dequantizing_node(name, makers) for name in operands]
    zeros = [weights[n.input[2]] for n in nodes if n is not None and n.input[0] not in weights and len(n.input) > 2]
    return 16 if any(z.data_type in (_UINT16, _INT16) for z in zeros) else 8


# --- operators that compute in integers or floats ---


def _computed_operators(graph: Any) -> dict[str, list[str]]:
    """Return the operators that compute in integers and those that compute in floats, as fields of `WeightTypes`.

    An operator computes in integers if engines can fuse it with the DequantizeLinear before its inputs and the
    QuantizeLinear after its result. Matrix products with weights and embedding lookups are not listed, and neither are
    operators that move numbers, whose results are not floats, or that become constants once the length is fixed.
    """
    makers = _node_by_output(graph)
    constants = {t.name for t in graph.initializer}
    not_floats = _whole_number_tensors(graph) | find_size_tensors(graph)
    quantized = {n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
    stored = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear" and n.input[0] in constants}
    integers, floats = list[str](), list[str]()
    for node in graph.node:
        data = [n for n in node.input if n and n not in constants and n not in stored]
        if node.op_type in _UNCOUNTED or not data or node.output[0] in not_floats:
            continue
        dequantized = [makers[n].op_type == "DequantizeLinear" for n in data if n in makers]
        if not all(dequantized) or node.output[0] not in quantized:
            floats.append(f"{node.op_type} '{node.name}'")
        elif not stored.intersection(node.input) or node.op_type not in _WEIGHT_READERS:
            integers.append(node.op_type)
    return {"integers": integers, "floats": floats}


def _whole_number_tensors(graph: Any) -> set[str]:
    """Return the names of tensors of whole numbers or booleans that are not rounded floats: ids, masks, positions."""
    names = {t.name for t in graph.initializer if t.data_type in _WHOLE_NUMBERS}
    names |= {v.name for v in graph.input if v.type.tensor_type.elem_type in _WHOLE_NUMBERS}
    for node in graph.node:
        if node.op_type == "Cast":
            is_whole = any(a.i in _WHOLE_NUMBERS for a in node.attribute if a.name == "to")
        elif node.op_type in ("Constant", "ConstantOfShape"):
            is_whole = any(a.t.data_type in _WHOLE_NUMBERS for a in node.attribute if a.name == "value")
        else:
            is_whole = node.op_type == "Shape" or all(name in names for name in node.input if name)
        if is_whole:
            names.update(node.output)
    return names


def _coarse_scores(graph: Any, numbers: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the names of attention scores that are stored with quantization steps too large for an exact softmax."""
    stored = {t.name: t for t in graph.initializer}
    makers = _node_by_output(graph)
    coarse = []
    for node in (n for n in graph.node if n.op_type == "Softmax"):
        names = [node.input[0]]
        while names and (name := names.pop()):
            scale = numbers.get(_dequantizing_scale(name, makers) or "")
            bits = _activation_bits([name], makers, stored)
            if scale is not None and float(scale.max()) > COARSEST[bits]:
                coarse.append(name)
            maker = makers.get(name)
            while maker is not None and maker.op_type in (*_MOVES, "QuantizeLinear"):
                maker = makers.get(maker.input[0])
            names += maker.input if maker is not None and maker.op_type == "Add" else ()
    return list(dict.fromkeys(coarse))


# --- graphs ---


def find_size_tensors(graph: Any) -> set[str]:
    """Return the names of the tensors that depend only on the sizes of the graph's inputs, not on their contents.

    Rows of an embedding table are not among them, because a table counts as a weight. Results of DequantizeLinear are
    not either, because operators read them as integers.

    Args:
        graph: An ONNX graph.
    """
    fixed, weights, sizes = {t.name for t in graph.initializer}, find_matrices(graph), set[str]()
    for node in graph.node:
        data = [n for n in node.input if n and n not in fixed]
        if node.op_type == "Shape":
            sizes.update(node.output)
        elif not data:
            fixed.update(node.output)
            weights.update(() if weights.isdisjoint(node.input) else node.output)
        elif sizes.issuperset(data) and node.op_type != "DequantizeLinear" and weights.isdisjoint(node.input):
            sizes.update(node.output)
    return sizes


def find_read_elsewhere(graph: Any, names: set[str]) -> list[str]:
    """Return those of the named tensors that are read by a node whose results are not among the names."""
    readers = (node for node in graph.node if names.isdisjoint(node.output))
    return list(dict.fromkeys(n for node in readers for n in node.input if n in names))


def find_matrices(graph: Any) -> set[str]:
    """Return the names of the stored tensors that have at least two axes of more than one number."""
    return {t.name for t in graph.initializer if sum(size > 1 for size in t.dims) > 1}


def _node_by_output(graph: Any) -> dict[str, Any]:
    return {name: node for node in graph.node for name in node.output}


def _stored_sources(names: Iterable[str], makers: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the name of the stored tensor or graph input behind each operand, and whether it is dequantized on the way.

    Nodes that only move or dequantize numbers may stand between the two; behind a Concat there are several tensors. For
    an operand that another node computes, nothing is yielded.
    """
    for name in names:
        node = makers.get(name)
        if node is None:
            yield name, False
        elif node.op_type in _MOVES:
            for source, dequantized in _stored_sources(
                node.input if node.op_type == "Concat" else node.input[:1], makers
            ):
                yield source, dequantized or node.op_type == "DequantizeLinear"


def _dequantizing_scale(name: str, makers: Mapping[str, Any]) -> str | None:
    """Return the name of the scale with which an operand is dequantized; None if it is not dequantized."""
    node = _dequantizing_node(name, makers)
    return None if node is None else str(node.input[1])


def _dequantizing_node(name: str, makers: Mapping[str, Any]) -> Any:
    """Return the DequantizeLinear node that computes an operand, or None.

    Between the two may be nodes that only move numbers.
    """
    node = makers.get(name)
    while node is not None and node.op_type in _MOVES and node.op_type != "DequantizeLinear":
        node = makers.get(node.input[0])
    return node if node is not None and node.op_type == "DequantizeLinear" else None


register_reader(Format.ONNX, Reader(read_weight_types, read_stored_numbers))
FP32_ROW = SchemeRow(Format.ONNX, Scheme.FP32, ExpectedWeights(ExpectedForm("float32"), ExpectedForm("float32")))
