"""Finds what a graph computes from nothing but the sizes of its inputs, such as positions: constants, once an engine knows them."""

from __future__ import annotations

from typing import Any


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
