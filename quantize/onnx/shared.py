"""Weights that several products share, as layers do that run more than once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import Any

import numpy as np

_MIDDLE = 128
"""The zero point of uint8 numbers that stand for int8 ones."""


def straighten(model: Any) -> None:
    """Store weights that several Gemm nodes read turned round as they are multiplied with.

    ONNX Runtime's quantizer writes each Gemm as a MatMul and turns its weight in the file, once for each node: what
    several nodes read would be turned back and forth.

    Args:
        model: An ONNX model; changed in place.
    """
    from onnx import numpy_helper

    stored = {t.name: t for t in model.graph.initializer}
    for name, nodes in readers(model.graph, stored).items():
        flags = [[a for a in n.attribute if a.name == "transB" and a.i] for n in nodes]
        if len(nodes) < 2 or any(n.op_type != "Gemm" or n.input[1] != name for n in nodes) or not all(flags):
            continue
        turned = numpy_helper.to_array(stored[name]).T.copy()
        stored[name].CopyFrom(numpy_helper.from_array(turned, name))
        for node, (flag,) in zip(nodes, flags, strict=True):
            node.attribute.remove(flag)


def unsigned(model: Any) -> bool:
    """Store int8 weights that several integer products read as uint8 with the zero point 128: the same numbers.

    Int8 products saturate on x86 processors without VNNI unless ONNX Runtime is told to make weights uint8, and it cannot
    (1.31) where one weight has several readers.

    Args:
        model: A quantized ONNX model; changed in place.

    Returns:
        Whether there were such weights.
    """
    from onnx import TensorProto, numpy_helper

    stored = {t.name: t for t in model.graph.initializer}
    integers = {n: t for n, t in stored.items() if t.data_type == TensorProto.INT8}
    moved = set()
    for name, nodes in readers(model.graph, integers).items():
        if len(nodes) < 2 or any(n.op_type != "MatMulInteger" or n.input[1] != name for n in nodes):
            continue
        moved |= {name, *(n.input[3] for n in nodes)}
    for name in moved:
        numbers = numpy_helper.to_array(stored[name]).astype(np.int16) + _MIDDLE
        stored[name].CopyFrom(numpy_helper.from_array(numbers.astype(np.uint8), name))
    return bool(moved)


def readers(graph: Any, names: Container[str]) -> dict[str, list[Any]]:
    """Find the nodes that read each of some tensors; a node that reads one twice is there twice.

    Args:
        graph: The graph.
        names: The tensors.
    """
    out = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            if name in names:
                out[name].append(node)
    return out
