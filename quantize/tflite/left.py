"""Operators whose weights a plan leaves as they were exported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from pocketbert.core.families.digests import digest_of
from pocketbert.core.packages.tflite import dump_model, load_model, tflite_schema

if TYPE_CHECKING:
    from ai_edge_quantizer.recipe_manager import RecipeManager


def name_results(model: Any) -> None:
    """Give every operator's result a name that no other tensor has; inputs and outputs of the graphs keep theirs.

    The converter's names are those of modules; they repeat, and some belong to another module.

    Args:
        model: What `pocketbert.core.packages.tflite.load_model` returned; changed in place.
    """
    for number, graph in enumerate(model.subgraphs):
        ends = {int(i) for i in (*graph.inputs, *graph.outputs)}
        for at, operator in enumerate(graph.operators):
            for place, index in enumerate(operator.outputs):
                if int(index) not in ends:
                    graph.tensors[index].name = f"operator{at:04d}_{place}_signature{number}".encode()


def named(content: bytes) -> bytes:
    """Return a copy of a file in which all results have different names."""
    model = load_model(content)
    name_results(model)
    return dump_model(model)


def results_left(content: bytes, left: frozenset[str]) -> list[str]:
    """Name the results of the operators that read weights with one of some digests, in every signature."""
    if not left:
        return []
    model, kind, digests = load_model(content), tflite_schema().TensorType.FLOAT32, dict[int, str | None]()

    def digest(tensor: Any) -> str | None:
        data = model.buffers[tensor.buffer].data
        if tensor.type != kind or data is None or not len(data):
            return None
        if tensor.buffer not in digests:
            numbers = np.frombuffer(np.asarray(data, np.uint8).tobytes(), np.float32)
            digests[tensor.buffer] = digest_of(numbers.reshape(tensor.shape))
        return digests[tensor.buffer]

    return [
        graph.tensors[operator.outputs[0]].name.decode()
        for graph in model.subgraphs
        for operator in graph.operators
        if any(i >= 0 and digest(graph.tensors[i]) in left for i in operator.inputs)
    ]


def exactly(result: str) -> str:
    """Return the pattern by which ai-edge-quantizer finds the operator with a result."""
    return f"^{re.escape(result)}(;|$)"


def leave(manager: RecipeManager, results: list[str]) -> None:
    """Tell ai-edge-quantizer, after everything else, to leave the operators with these results."""
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import TFLOperationName

    for name in results:
        manager.add_quantization_config(
            exactly(name), TFLOperationName.ALL_SUPPORTED, algorithm_key=AlgorithmName.NO_QUANTIZE
        )
