"""Nodes whose weights a plan leaves as they were exported."""

from __future__ import annotations

from typing import Any

from pocketbert.core.families.digests import digest_of


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
