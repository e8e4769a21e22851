"""Weights that several products share, turned into uint8 in memory for processors on which int8 saturates.

Int8 products saturate on x86 processors without VNNI unless ONNX Runtime is told to make weights uint8, and it cannot (1.31)
where one weight has several readers, as the layers of ALBERT. Files keep int8: two uint8 operands take several times as long
with VNNI, and half as long again on Arm processors without dot products. Both hold the same numbers.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_UINT8, _INT8, _MIDDLE = 2, 3, 128
_OPTIONAL, _REPEATED = 1, 3
_INTEGER, _STRING, _MESSAGE, _BYTES = 5, 9, 11, 12
_FIELDS: dict[str, dict[str, tuple[int, int, int, str | None]]] = {
    "Model": {"graph": (7, _OPTIONAL, _MESSAGE, "Graph")},
    "Graph": {"node": (1, _REPEATED, _MESSAGE, "Node"), "initializer": (5, _REPEATED, _MESSAGE, "Tensor")},
    "Node": {"input": (1, _REPEATED, _STRING, None), "op_type": (4, _OPTIONAL, _STRING, None)},
    "Tensor": {
        "data_type": (2, _OPTIONAL, _INTEGER, None),
        "int32_data": (5, _REPEATED, _INTEGER, None),
        "name": (8, _OPTIONAL, _STRING, None),
        "raw_data": (9, _OPTIONAL, _BYTES, None),
    },
}
"""The fields of onnx.proto that are read: number, label, type and message. Protobuf keeps all others as they are."""


def unsigned(path: Path) -> bytes | None:
    """Read an ONNX file, and make the int8 weights that several of its integer products share uint8 with the zero point 128.

    Args:
        path: The file.

    Returns:
        The changed file; None if it has no such weights, or is no ONNX file.
    """
    from google.protobuf.message import DecodeError

    model = _message("Model")()
    try:
        model.ParseFromString(path.read_bytes())
    except (DecodeError, RuntimeError):
        return None
    stored = {t.name: t for t in model.graph.initializer if t.data_type == _INT8}
    uses = Counter(name for node in model.graph.node for name in node.input if name in stored)
    products = [n for n in model.graph.node if n.op_type == "MatMulInteger" and len(n.input) == 4]
    reads = Counter((n.input[1], n.input[3]) for n in products)
    shared = {pair for pair, count in reads.items() if uses[pair[0]] == uses[pair[1]] == count > 1}
    for name in {name for pair in shared for name in pair}:
        tensor = stored[name]
        numbers = np.array(tensor.int32_data, np.int8) if tensor.int32_data else np.frombuffer(tensor.raw_data, np.int8)
        tensor.raw_data = (numbers.astype(np.int16) + _MIDDLE).astype(np.uint8).tobytes()
        tensor.data_type = _UINT8
        tensor.ClearField("int32_data")
    return bytes(model.SerializeToString()) if shared else None


@cache
def _message(name: str) -> Any:
    """The class of a message of `_FIELDS`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "pocketbert.onnx"
    file = descriptor_pb2.FileDescriptorProto(name="pocketbert/onnx.proto", package=package)
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for field, (number, label, kind, of) in fields.items():
            made.field.add(
                name=field, number=number, label=label, type=kind, type_name=f".{package}.{of}" if of else None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
