"""Weights that several products share, as layers do that run more than once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import Any


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
