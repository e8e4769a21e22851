"""Dynamic int8 for ONNX: weights per output channel, embeddings too, by ONNX Runtime's quantizer."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.versions import version_of
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.onnx_shared import straighten
from pocketbert.quantize.onnx_tied import retie, untie
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import per_row, per_tensor
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Use, Wanted, WeightTypes, WeightUse

_MOVES = ("Transpose", "DequantizeLinear", "Concat", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators behind which a stored weight is still the same weight."""


def _write_int8(source: Path, destination: Path, plan: Plan) -> None:
    """Write a dynamic int8 copy of an fp32 file.

    Raises:
        MissingBackendError: If onnx is not installed.
    """
    if version_of("onnx") is None:
        raise MissingBackendError("onnx", "pip install 'pocketbert[onnx]'")
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    del model.graph.value_info[:]  # stale after dynamo's folding; the quantizer's shape inference trips on it
    ties = untie(model)
    straighten(model)
    with temporary_folder(destination.parent) as folder:
        plain = folder / "plain.onnx"
        onnx.save(model, plain)
        with _quiet_root():
            quantize_dynamic(
                plain,
                destination,
                per_channel=True,
                reduce_range=False,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul", "Gemm", "Gather"],
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )
    if ties:
        model = onnx.load(destination)
        retie(model, ties)
        onnx.save(model, destination)


@contextlib.contextmanager
def _quiet_root() -> Iterator[None]:
    """The quantizer advises on the root logger, which belongs to the application."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def weight_types(path: Path) -> WeightTypes:
    """Read the types of all weights in a graph."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    weights = {t.name: t for t in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    kinds = {onnx.TensorProto.INT8: "int8", onnx.TensorProto.UINT8: "int8", onnx.TensorProto.FLOAT: "float32"}
    uses = []
    for node in model.graph.node:
        integer = node.op_type in ("MatMulInteger", "ConvInteger")
        if not integer and node.op_type not in ("MatMul", "Gemm", "Gather"):
            continue
        table = node.op_type == "Gather"
        operands = node.input[:1] if table else node.input[:2]
        # static int8 is written as DequantizeLinear with a stored scale before both operands: engines compute it in int8
        static = len(operands) > 1 and all(_widened(name, producers) in weights for name in operands)
        for operand in operands:
            for name, dequantized in _sources([operand], producers):
                tensor = weights.get(name)
                if tensor is None or len(tensor.dims) < 2:
                    continue
                scales = node.input[3] if integer and len(node.input) > 3 else _widened(operand, producers)
                uses.append(
                    WeightUse(
                        name=name,
                        use=Use.TABLE if table else Use.MATMUL,
                        dtype=kinds.get(tensor.data_type, str(tensor.data_type)),
                        numbers=math.prod(tensor.dims),
                        dequantized=dequantized and not static,
                        per_channel=_per_channel(weights.get(scales or ""), tensor),
                        static=static,
                    )
                )
    size = Counter[bool]()
    for tensor in model.graph.initializer:
        size[tensor.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)] += numpy_helper.to_array(
            tensor
        ).nbytes
    return WeightTypes(
        uses=uses,
        int8_bytes=size[True],
        float_bytes=size[False],
        operators=dict(Counter(n.op_type for n in model.graph.node)),
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
    node = producers.get(name)
    if node is None or node.op_type not in _MOVES:
        return None
    return str(node.input[1]) if node.op_type == "DequantizeLinear" else _widened(node.input[0], producers)


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
register_scheme(
    SchemeRow(
        Format.ONNX,
        Scheme.INT8,
        ExpectedWeights(products=Wanted("int8", per_channel=True), tables=Wanted("int8")),
        _write_int8,
        simulation=Simulation(weights=per_row, tables=per_tensor, inputs=per_tensor, saturates=True),
    )
)
