"""The types of MIL, the language of Core ML programs, and how the evaluator holds their values.

`read_type` reads the type that a program declares for a value. `Budget` and `check_elements` refuse values that would take too
much memory, before anything is allocated. `round_half` rounds float32 numbers to fp16.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb


_MAX_RANK = 16
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
        """Size of one packed element in bits: 8 for booleans, 0 for strings."""
        return _BITS[self]

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The dtype of the same name. Elements below one byte take a whole one."""
        return _NUMPY[self]

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The dtype in which the evaluator computes: fp16 numbers are stored, exactly, as float32."""
        return _FLOAT32 if self is Dtype.FP16 else _NUMPY[self]

    @property
    def is_float(self) -> bool:
        """Whether the type is fp16, fp32 or fp64."""
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
    """The declared type of a tensor: dtype and shape.

    Attributes:
        dtype: Type of the elements.
        shape: Sizes; None for an axis that depends on the input's length.
    """

    dtype: Dtype
    shape: Shape

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The shape if every axis is fixed, else None."""
        fixed = tuple(n for n in self.shape if n is not None)
        return fixed if len(fixed) == len(self.shape) else None

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a value of this shape has the declared rank and every fixed size."""
        return len(shape) == len(self.shape) and all(
            declared is None or declared == size for declared, size in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        """Format the type as in ``fp16[1, ?, 384]``."""
        return f"{self.dtype}[{', '.join('?' if n is None else str(n) for n in self.shape)}]"


@dataclass(frozen=True)
class ListType:
    """The declared type of a list, such as the labels of a classifier."""

    dtype: Dtype

    def __str__(self) -> str:
        """Format the type as in ``list<string>``."""
        return f"list<{self.dtype}>"


@dataclass(frozen=True)
class DictionaryType:
    """The declared type of a dictionary, such as a classifier's probability by label."""

    key: Dtype
    value: Dtype

    def __str__(self) -> str:
        """Format the type as in ``dictionary<string, fp64>``."""
        return f"dictionary<{self.key}, {self.value}>"


ValueType = TensorType | ListType | DictionaryType


def read_type(message: pb.ValueType) -> ValueType:
    """Read a value's declared type from a protobuf message.

    Raises:
        ValueError: For types that programs of this project do not have: tuples, states, tensors of unknown rank,
            bfloat16 and 8-bit floats.
    """
    kind = message.WhichOneof("type")
    if kind == "tensorType":
        tensor = message.tensorType
        if tensor.rank != len(tensor.dimensions) or tensor.rank > _MAX_RANK:
            raise ValueError(f"a tensor of rank {tensor.rank} with {len(tensor.dimensions)} dimensions")
        return TensorType(_read_dtype(tensor.dataType), tuple(_read_size(d) for d in tensor.dimensions))
    if kind == "listType":
        return ListType(_read_scalar_dtype(message.listType.type))
    if kind == "dictionaryType":
        return DictionaryType(
            _read_scalar_dtype(message.dictionaryType.keyType), _read_scalar_dtype(message.dictionaryType.valueType)
        )
    raise ValueError(f"a value of {kind or 'no'} type")


def _read_dtype(code: int) -> Dtype:
    if code not in _CODES:
        raise ValueError(f"element type {code}")
    return _CODES[code]


def _read_size(dimension: pb.Dimension) -> int | None:
    """Return the declared size of an axis; None if the program leaves the size open."""
    kind = dimension.WhichOneof("dimension")
    if kind == "constant":
        return int(dimension.constant.size)
    if kind != "unknown" or dimension.unknown.variadic:
        raise ValueError("a dimension that is neither a number nor unknown")
    return None


def _read_scalar_dtype(message: pb.ValueType) -> Dtype:
    """Return the dtype of the items of a list or dictionary, which must be scalars."""
    inner = read_type(message)
    if not isinstance(inner, TensorType) or inner.shape:
        raise ValueError(f"a list or dictionary of {inner}")
    return inner.dtype


# --- limits, checked before anything is allocated ------------------------------------------------------------------------

MODEL_BYTES = 16 << 20
"""Largest ``model.mlmodel``: programs of encoders take well under one MiB, and parsed messages ten times their bytes."""
_CONSTANT_BYTES = 4 << 30
"""Largest number of bytes of all expanded constants of a program."""
RESULT_ELEMENTS = 1 << 28
"""Largest number of elements of one result: 1 GiB of float32, twice the largest vocabulary times 512 tokens."""
RUN_BYTES = 8 << 30
"""Largest number of bytes of all results that are kept at one time; views are counted as if they were copies."""


class Budget:
    """Limits the memory that the constants of one package may take.

    Args:
        where: The package, for the error.
        limit: Largest number of bytes in all.
    """

    def __init__(self, where: str, limit: int = _CONSTANT_BYTES) -> None:
        self._where, self._limit = where, limit
        self._left = limit

    def take(self, size: int) -> None:
        """Subtract `size` bytes, about to be allocated, from the budget.

        Raises:
            InputError: If the package's constants would take more than the limit.
        """
        self._left -= size
        if self._left < 0:
            what = f"its constants take more than {self._limit >> 20} MiB expanded; refused."
            raise InputError(Problem(self._where, what))


def check_elements(shape: Sequence[int]) -> None:
    """Check that a result of this shape is not too large, before numpy allocates it.

    Raises:
        ValueError: For negative sizes, and for results above `RESULT_ELEMENTS`.
    """
    if any(n < 0 for n in shape):
        raise ValueError(f"a result of shape {tuple(shape)}")
    if math.prod(map(int, shape)) > RESULT_ELEMENTS:  # Python's integers do not overflow where numpy's would
        raise ValueError(f"a result of shape {tuple(shape)} is larger than {RESULT_ELEMENTS} elements")


# --- fp16 numbers --------------------------------------------------------------------------------------------------------

LARGEST_FP16 = 65504.0
"""Largest finite fp16 number."""
SMALLEST_FP16 = 2.0**-24
"""Smallest fp16 number above 0."""

_ROUNDED_AT_ONCE = 1 << 24
_ROUNDED_BY_TORCH = 1 << 15
"""Numbers that torch rounds at once, in one thread: more would be divided among threads, beside those that run rows."""
_FEWEST_FOR_TORCH = 1 << 12
_EXPONENT = np.uint32(0x7F800000)
_NORMAL = np.uint32(0x38800000)  # the exponent of 2**-14, where fp16's steps stop getting finer
_MAGIC = np.uint32((13 << 23) | (1 << 22))  # times 1.5 * 2**13


def round_half(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round float32 numbers to the nearest fp16 numbers, halves to even. The result is still float32.

    numpy's own conversion takes six times as long, and as long again to convert back. Adding and subtracting 1.5 *
    2**13 times a number's power of two lets the float32 unit round to the 11 bits that fp16 has; below 2**-14 the power
    stays that of the smallest normal number, as fp16's steps do. torch, which exports have imported, has the CPU's
    instruction for it, and takes a half to a fifth of that.

    Args:
        value: Array of float32, of any shape.

    Returns:
        A new array of the same shape; infinite for numbers beyond 65520. It equals
        ``value.astype(float16).astype(float32)``, except for the sign of zero.
    """
    if not value.ndim:  # numpy answers with scalars, which cannot be written to
        return value.astype(np.float16).astype(np.float32)
    if (torch := _find_torch(value)) is not None:
        return _write_half(torch, value, np.empty_like(value))
    if value.size > _ROUNDED_AT_ONCE and len(value) > 1:  # the bits of a large table need as much memory as the table
        rounded, count = np.empty_like(value), max(1, _ROUNDED_AT_ONCE * len(value) // value.size)
        for start in range(0, len(value), count):
            rounded[start : start + count] = round_half(value[start : start + count])
        return rounded
    flat = value.ravel(order="K")
    # a sum of squares within fp16's range proves, in one pass of BLAS, that nothing overflows and nothing is NaN
    if not (float(np.dot(flat, flat)) < LARGEST_FP16 * LARGEST_FP16 or bool((np.abs(flat) <= LARGEST_FP16).all())):
        return value.astype(np.float16).astype(np.float32)
    bits = value.view(np.uint32) & _EXPONENT
    np.maximum(bits, _NORMAL, out=bits)
    bits += _MAGIC
    magic = bits.view(np.float32)
    out: NDArray[np.float32] = value + magic
    out -= magic
    return out


def convert_to_half(value: NDArray[np.float32]) -> NDArray[np.float16]:
    """Convert float32 numbers to fp16, halves to even: ``value.astype(float16)``, by torch if it is imported."""
    if (torch := _find_torch(value)) is None:
        return value.astype(np.float16)
    return _write_half(torch, value, np.empty_like(value, np.float16))


def _find_torch(value: NDArray[np.float32]) -> Any:
    """Return the module torch if something else has imported it, and it converts an array faster than numpy; else None."""
    torch = sys.modules.get("torch") if value.size >= _FEWEST_FOR_TORCH and value.flags.writeable else None
    return torch if hasattr(torch, "from_numpy") else None  # another thread may be importing it


def _write_half(torch: Any, value: NDArray[np.float32], target: NDArray[Any]) -> NDArray[Any]:
    """Write float32 numbers, rounded to fp16 by torch in one thread, into an array of the same layout, and return it."""
    # both in the order in memory, and sharing it
    numbers, written = (torch.from_numpy(array.ravel(order="K")) for array in (value, target))
    for start in range(0, value.size, _ROUNDED_BY_TORCH):
        end = start + _ROUNDED_BY_TORCH
        written[start:end].copy_(numbers[start:end].half())
    return target
