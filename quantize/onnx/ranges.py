"""Measures ranges of tensors inside an ONNX model on calibration rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pocketbert.core.families.ranges import ProductRanges, Range
from pocketbert.core.models.learned_ranges import LearnedRanges
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.plan import Plan
from pocketbert.runtime.onnx import OnnxPredictor


def measure(model: Any, names: Iterable[str], plan: Plan, path: Path, title: str) -> dict[str, Range]:
    """Run a copy of a model that has the tensors as outputs on the plan's calibration rows, and choose their ranges.

    By default nothing is clipped: the furthest numbers belong to the first token and the separators, which texts are summed
    up in. With the furthest 1e-5 of each row left out, a teacher's error grew from 0.07 to 0.15 of its logits' spread (SST-2,
    measured on rows of 384 tokens).

    Args:
        model: The fp32 model; unchanged afterwards.
        names: The tensors.
        plan: Its rows and its method.
        path: Where the copy is written.
        title: The file that the ranges are for, which errors name.

    Raises:
        InputError: If the plan has no row.
        GateError: If a tensor has NaN or infinite numbers, or nothing but zeros.
    """
    import onnx
    from onnx import TensorProto, helper

    wanted = list(dict.fromkeys(names))
    outputs = model.graph.output
    declared = {o.name for o in outputs}
    own = len(outputs)
    outputs.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in wanted if n not in declared)
    onnx.save(model, path)
    del outputs[own:]
    predictor, ranges = OnnxPredictor(path), Ranges(wanted, plan.calibration, plan.steps)
    for row in plan.rows() if plan.rows is not None else ():
        ranges.add(predictor.run(row))
    return ranges.chosen(title)


def learned_inputs(graph: Any, names: Iterable[str], learned: LearnedRanges | None) -> dict[str, Range]:
    """Find the ranges that training learned for tensors which products with stored weights read.

    Args:
        graph: The graph of the fp32 model.
        names: The tensors.
        learned: Ranges by the weights of the product; None without any.

    Returns:
        Those that were learned.
    """
    wanted = set(names)
    return {
        product.input[at]: own.inputs
        for product, at, own in learned_products(graph, learned)
        if product.input[at] in wanted and own.inputs is not None
    }


def learned_products(graph: Any, learned: LearnedRanges | None) -> Iterator[tuple[Any, int, ProductRanges]]:
    """Find the products with stored weights that training learned ranges for.

    Args:
        graph: The graph of the fp32 model.
        learned: Ranges by the weights of the product; None without any.

    Yields:
        The node, at which input its data is, and its ranges.
    """
    from onnx import numpy_helper

    if learned is None:
        return
    stored = {tensor.name: tensor for tensor in graph.initializer if len(tensor.dims) > 1}
    turned = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose"}
    for node in graph.node:
        for at in (1, 0) if node.op_type in ("MatMul", "Gemm") else ():
            name = turned.get(node.input[at], node.input[at])
            if name in stored:
                yield node, 1 - at, learned.of(numpy_helper.to_array(stored[name]))
                break
