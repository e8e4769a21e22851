"""Dynamic int8 for ONNX: weights per output channel, embeddings too, by ONNX Runtime's quantizer."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from pocketbert.core.errors import GateError, MissingBackendError
from pocketbert.core.versions import version_of

SMALL = 4096
"""Weights with fewer numbers (a classifier's last row, a type table) may stay fp32; nothing is won there."""


class WeightTypes(BaseModel):
    """What the weights of a graph are stored as.

    Attributes:
        int8_matmuls: Matrix products with int8 weights.
        int8_embeddings: Lookup tables in int8.
        per_channel: Whether every int8 matrix has a scale per output channel.
        float_left: Names of float matrices and tables that should have been quantized.
        int8_bytes: Bytes of int8 data.
        float_bytes: Bytes of float data.
        operators: Operator counts.
    """

    int8_matmuls: int
    int8_embeddings: int
    per_channel: bool
    float_left: list[str]
    int8_bytes: int
    float_bytes: int
    operators: dict[str, int]


def quantize_int8(source: Path, target: Path) -> WeightTypes:
    """Write a dynamic int8 copy of an fp32 file.

    Args:
        source: A file with fp32 weights.
        target: Where to write.

    Returns:
        The types found in the written file.

    Raises:
        MissingBackendError: If onnx is not installed.
        GateError: If the quantizer left weights as they were.
    """
    if version_of("onnx") is None:
        raise MissingBackendError("onnx", "pip install 'pocketbert[onnx]'")
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    del model.graph.value_info[:]  # stale after dynamo's folding; the quantizer's shape inference trips on it
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        plain = Path(folder) / "plain.onnx"
        onnx.save(model, plain)
        with _quiet_root():
            quantize_dynamic(
                plain, target, per_channel=True, reduce_range=False, weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul", "Gemm", "Gather"],
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )  # fmt: skip
    types = weight_types(target)
    problems = type_problems(types, target.name)
    if problems:
        raise GateError(problems)
    return types


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
    integer = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    matmuls = tables = 0
    per_channel = True
    left = []
    for node in model.graph.node:
        if (
            node.op_type in ("MatMulInteger", "ConvInteger")
            and len(node.input) > 1
            and node.input[1] in weights
        ):
            matmuls += weights[node.input[1]].data_type in integer
            zero = weights.get(node.input[3]) if len(node.input) > 3 else None
            per_channel &= zero is not None and bool(zero.dims) and zero.dims[0] > 1
        for name in node.input:
            tensor = weights.get(name)
            if tensor is None or len(tensor.dims) < 2:
                continue
            numbers = 1
            for d in tensor.dims:
                numbers *= d
            if node.op_type == "Gather" and tensor.data_type in integer:
                tables += 1
            if (
                node.op_type in ("MatMul", "Gemm", "Gather")
                and tensor.data_type == onnx.TensorProto.FLOAT
                and numbers >= SMALL
            ):
                left.append(name)
    size = Counter[bool]()
    for tensor in model.graph.initializer:
        size[tensor.data_type in integer] += numpy_helper.to_array(tensor).nbytes
    return WeightTypes(
        int8_matmuls=matmuls, int8_embeddings=tables, per_channel=per_channel and matmuls > 0, float_left=left,
        int8_bytes=size[True], float_bytes=size[False], operators=dict(Counter(n.op_type for n in model.graph.node)),
    )  # fmt: skip


def type_problems(types: WeightTypes, name: str) -> list[str]:
    """What is wrong with an int8 file's types; empty when it is what its name says."""
    out = []
    if not types.int8_matmuls:
        out.append(f"{name}: no matrix product has int8 weights; the quantizer did nothing.")
    elif not types.per_channel:
        out.append(f"{name}: int8 weights have one scale per matrix, not per output channel.")
    if not types.int8_embeddings:
        out.append(f"{name}: no embedding table is int8.")
    if types.float_left:
        out.append(
            f"{name}: still float: {', '.join(types.float_left[:5])} ({len(types.float_left)} in all)."
        )
    return out
