"""The types of MIL, the language of Core ML programs: what a program declares about each value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

MAX_RANK = 16
"""Core ML itself stops at 5; the bound only keeps absurd files out."""


class Dtype(StrEnum):
    """Element types by their MIL names."""

    BOOL = "bool"
    STRING = "string"
    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    INT4 = "int4"
    UINT1 = "uint1"
    UINT2 = "uint2"
    UINT3 = "uint3"
    UINT4 = "uint4"
    UINT6 = "uint6"

    @property
    def bits(self) -> int:
        """Size of one packed element; 8 for booleans, 0 for strings."""
        return _BITS[self]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The dtype of the same name; elements below one byte take a whole one."""
        return _NUMPY[self]

    @property
    def storage(self) -> np.dtype[np.generic]:
        """What the evaluator computes with: fp16 numbers are held, exactly, in float32."""
        return _FLOAT32 if self is Dtype.FP16 else _NUMPY[self]

    @property
    def is_float(self) -> bool:
        """Whether it is fp16, fp32 or fp64."""
        return self in (Dtype.FP16, Dtype.FP32, Dtype.FP64)


_FLOAT32 = np.dtype(np.float32)
_NUMPY: dict[Dtype, np.dtype[np.generic]] = {
    Dtype.BOOL: np.dtype(np.bool_),
    Dtype.STRING: np.dtype(object),
    Dtype.FP16: np.dtype(np.float16),
    Dtype.FP32: _FLOAT32,
    Dtype.FP64: np.dtype(np.float64),
    Dtype.INT8: np.dtype(np.int8),
    Dtype.INT16: np.dtype(np.int16),
    Dtype.INT32: np.dtype(np.int32),
    Dtype.INT64: np.dtype(np.int64),
    Dtype.UINT8: np.dtype(np.uint8),
    Dtype.UINT16: np.dtype(np.uint16),
    Dtype.UINT32: np.dtype(np.uint32),
    Dtype.UINT64: np.dtype(np.uint64),
    Dtype.INT4: np.dtype(np.int8),
    Dtype.UINT1: np.dtype(np.uint8),
    Dtype.UINT2: np.dtype(np.uint8),
    Dtype.UINT3: np.dtype(np.uint8),
    Dtype.UINT4: np.dtype(np.uint8),
    Dtype.UINT6: np.dtype(np.uint8),
}
_BITS = {d: _NUMPY[d].itemsize * 8 for d in Dtype} | {
    Dtype.STRING: 0,
    Dtype.INT4: 4,
    Dtype.UINT1: 1,
    Dtype.UINT2: 2,
    Dtype.UINT3: 3,
    Dtype.UINT4: 4,
    Dtype.UINT6: 6,
}
_CODES = {
    1: Dtype.BOOL, 2: Dtype.STRING, 10: Dtype.FP16, 11: Dtype.FP32, 12: Dtype.FP64, 21: Dtype.INT8, 22: Dtype.INT16,
    23: Dtype.INT32, 24: Dtype.INT64, 25: Dtype.INT4, 31: Dtype.UINT8, 32: Dtype.UINT16, 33: Dtype.UINT32,
    34: Dtype.UINT64, 35: Dtype.UINT4, 36: Dtype.UINT2, 37: Dtype.UINT1, 38: Dtype.UINT6, 39: Dtype.UINT3,
}  # fmt: skip
"""MIL.proto's DataType; bfloat16 and the 8-bit floats are in no program that this project writes."""

Shape = tuple[int | None, ...]
"""Sizes by axis; None where the program leaves it open."""


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor.

    Attributes:
        dtype: Of its elements.
        shape: Sizes; None for an axis that depends on the input's length.
    """

    dtype: Dtype
    shape: Shape

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape where every axis is fixed, else None."""
        fixed = tuple(n for n in self.shape if n is not None)
        return fixed if len(fixed) == len(self.shape) else None

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether a value of that shape has the declared rank and every fixed size."""
        return len(shape) == len(self.shape) and all(
            want is None or want == have for want, have in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        """As in ``fp16[1, ?, 384]``."""
        return f"{self.dtype}[{', '.join('?' if n is None else str(n) for n in self.shape)}]"


@dataclass(frozen=True)
class ListType:
    """A list, in practice the labels of a classifier."""

    dtype: Dtype

    def __str__(self) -> str:
        """As in ``list<string>``."""
        return f"list<{self.dtype}>"


@dataclass(frozen=True)
class DictionaryType:
    """A dictionary, in practice label to probability."""

    key: Dtype
    value: Dtype

    def __str__(self) -> str:
        """As in ``dictionary<string, fp64>``."""
        return f"dictionary<{self.key}, {self.value}>"


ValueType = TensorType | ListType | DictionaryType


def read_type(message: pb.ValueType) -> ValueType:
    """The type in a message.

    Raises:
        ValueError: For types that no program of this project has: tuples, states, variadic ranks, exotic floats.
    """
    kind = message.WhichOneof("type")
    if kind == "tensorType":
        tensor = message.tensorType
        if tensor.rank != len(tensor.dimensions) or tensor.rank > MAX_RANK:
            raise ValueError(f"a tensor of rank {tensor.rank} with {len(tensor.dimensions)} dimensions")
        return TensorType(_dtype(tensor.dataType), tuple(_size(d) for d in tensor.dimensions))
    if kind == "listType":
        return ListType(_scalar(message.listType.type))
    if kind == "dictionaryType":
        return DictionaryType(_scalar(message.dictionaryType.keyType), _scalar(message.dictionaryType.valueType))
    raise ValueError(f"a value of {kind or 'no'} type")


def _dtype(code: int) -> Dtype:
    if code not in _CODES:
        raise ValueError(f"element type {code}")
    return _CODES[code]


def _size(dimension: pb.Dimension) -> int | None:
    kind = dimension.WhichOneof("dimension")
    if kind == "constant":
        return int(dimension.constant.size)
    if kind != "unknown" or dimension.unknown.variadic:
        raise ValueError("a dimension that is neither a number nor unknown")
    return None


def _scalar(message: pb.ValueType) -> Dtype:
    inner = read_type(message)
    if not isinstance(inner, TensorType) or inner.shape:
        raise ValueError(f"a list or dictionary of {inner}")
    return inner.dtype
