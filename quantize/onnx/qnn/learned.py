"""Ranges that training learned, by the tensors of a graph that have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pocketbert.core.families.ranges import Range
from pocketbert.core.models.learned_ranges import LearnedRanges
from pocketbert.quantize.onnx.ranges import learned_products
from pocketbert.quantize.onnx.shared import readers


@dataclass(frozen=True)
class LearnedTensors:
    """Ranges of what products with stored weights read and make.

    Attributes:
        inputs: Of what they read, by tensor.
        results: Of what they make, their offset included, by tensor.
    """

    inputs: dict[str, Range]
    results: dict[str, Range]

    @staticmethod
    def of(graph: Any, learned: LearnedRanges | None) -> LearnedTensors:
        """Find the tensors of a graph.

        Args:
            graph: The graph of the fp32 model.
            learned: Ranges by the weights of the product; None without any.
        """
        inputs, results = dict[str, Range](), dict[str, Range]()
        stored, products = {tensor.name for tensor in graph.initializer}, [*learned_products(graph, learned)]
        behind = readers(graph, {product.output[0] for product, _, _ in products})
        for product, at, own in products:
            if own.inputs is not None:
                inputs[product.input[at]] = own.inputs
            if own.outputs is not None:
                results[_result(product, behind.get(product.output[0], []), stored)] = own.outputs
        return LearnedTensors(inputs, results)


def _result(product: Any, behind: list[Any], stored: set[str]) -> str:
    """The tensor with the offset of a product, which an exporter may add in an operator of its own."""
    one = behind[0] if len(behind) == 1 else None
    apart = one is not None and one.op_type == "Add" and any(name in stored for name in one.input)
    return str(one.output[0] if one is not None and apart else product.output[0])
