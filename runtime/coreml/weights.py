"""Read the constants of a Core ML program: those written in the program, and those in its weight file.

`ConstantReader.read` returns the `Constant` of a message. The weight file, "blob v2", holds blobs with 64-byte headers
and is read through a memory map; `unpack_bits` unpacks elements below one byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.package import Package
from pocketbert.runtime.coreml.types import Budget, Dtype, ListType, TensorType, ValueType, read_type

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

_FIELDS = {
    Dtype.BOOL: "bools",
    Dtype.FP32: "floats",
    Dtype.FP64: "doubles",
    Dtype.INT32: "ints",
    Dtype.INT16: "ints",
    Dtype.UINT16: "ints",
    Dtype.INT64: "longInts",
    Dtype.UINT64: "longInts",
    Dtype.STRING: "strings",
}
"""The message's field for immediate elements; all other types are raw bytes."""

_Value = NDArray[Any] | str | tuple[str, ...]


@dataclass
class Constant:
    """A constant of a program: its declared type and its value.

    Attributes:
        type: The declared type.
        value: An array in the declared dtype, a text, or a tuple of texts.
    """

    type: ValueType
    value: _Value

    def widened(self, budget: Budget) -> _Value:
        """Return the value as kernels read it.

        An fp16 array is converted to float32 once, and stored as float32 from then on.
        """
        if isinstance(self.value, np.ndarray) and self.value.dtype == np.float16:
            budget.take(self.value.size * 4)
            self.value = self.value.astype(np.float32)
            self.value.flags.writeable = False
        return self.value


class ConstantReader:
    """Reads the constants of one package from its program and its weight file.

    Args:
        package: The package whose weight files are read.
        budget: Counts the memory that is allocated.
    """

    def __init__(self, package: Package, budget: Budget) -> None:
        self._package, self._budget = package, budget
        self._files: dict[str, _BlobFile] = {}

    def read(self, message: pb.Value) -> Constant:
        """Return the constant that a protobuf message contains, or refers to in the weight file.

        Raises:
            InputError: If the weight file does not contain the constant.
            ValueError: If the message contradicts itself.
        """
        declared = read_type(message.type)
        kind = message.WhichOneof("value")
        if kind == "immediateValue" and isinstance(declared, ListType):
            items = [self.read(v).value for v in message.immediateValue.list.values]
            return Constant(declared, tuple(v if isinstance(v, str) else str(np.asarray(v).item()) for v in items))
        if not isinstance(declared, TensorType) or declared.sizes is None:
            raise ValueError(f"a constant of type {declared}")
        if kind == "blobFileValue":
            name, offset = message.blobFileValue.fileName, message.blobFileValue.offset
            if name not in self._files:
                self._files[name] = _BlobFile(self._package.weights(name))
            return Constant(declared, self._files[name].read(offset, declared.dtype, declared.sizes, self._budget))
        if kind != "immediateValue" or message.immediateValue.WhichOneof("value") != "tensor":
            raise ValueError(f"a constant of type {declared} without elements")
        return Constant(declared, _read_immediate(message.immediateValue.tensor, declared.dtype, declared.sizes))


def _read_immediate(message: pb.TensorValue, dtype: Dtype, shape: tuple[int, ...]) -> _Value:
    """Return a tensor stored in the message itself.

    Raises ValueError if it is in the wrong field for its type, or has another number of elements than its shape.
    """
    field = _FIELDS.get(dtype, "bytes")
    if message.WhichOneof("value") != field:
        raise ValueError(f"{dtype} elements in the field {message.WhichOneof('value')}")
    values = getattr(message, field).values
    count = math.prod(shape)
    if field == "bytes":
        if len(values) != (count * dtype.bits + 7) // 8:
            raise ValueError(f"{len(values)} bytes for {dtype}{list(shape)}")
        raw = np.frombuffer(values, np.uint8)
        if dtype.bits < 8:
            return unpack_bits(raw, dtype, count).reshape(shape)
        return raw.view(dtype.numpy.newbyteorder("<")).reshape(shape)
    if len(values) != count:
        raise ValueError(f"{len(values)} elements for {dtype}{list(shape)}")
    if dtype is Dtype.STRING:
        return str(values[0]) if not shape else tuple(str(v) for v in values)
    return np.array(values, dtype.numpy).reshape(shape)


_SENTINEL = 0xDEADBEEF
_VERSION = 2
_HEADER = np.dtype([("count", "<u4"), ("version", "<u4")])
_METADATA = np.dtype([("sentinel", "<u4"), ("dtype", "<u4"), ("bytes", "<u8"), ("offset", "<u8"), ("padding", "<u8")])
_ALIGNMENT = 64
_CODES = {
    1: Dtype.FP16,
    2: Dtype.FP32,
    3: Dtype.UINT8,
    4: Dtype.INT8,
    6: Dtype.INT16,
    7: Dtype.UINT16,
    8: Dtype.INT4,
    9: Dtype.UINT1,
    10: Dtype.UINT2,
    11: Dtype.UINT4,
    12: Dtype.UINT3,
    13: Dtype.UINT6,
    14: Dtype.INT32,
    15: Dtype.UINT32,
}


class _BlobFile:
    """A package's weight file, ``weight.bin``, read through a memory map.

    Args:
        path: The file ``weight.bin``.

    Raises:
        InputError: If the file is missing or no blob file of version 2.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise InputError(Problem(str(path), "file not found."))
        try:
            size = path.stat().st_size
            self._bytes = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
        except (OSError, ValueError) as error:
            raise InputError(Problem(str(path), f"cannot be read: {error}.")) from error
        if self._bytes.size < _ALIGNMENT:
            raise self._problem(f"has {self._bytes.size} bytes, less than its header")
        header = self._bytes[: _HEADER.itemsize].view(_HEADER)[0]
        if header["version"] != _VERSION:
            raise self._problem(f"is not a weight file of version {_VERSION} (it says {header['version']})")

    def read(self, offset: int, dtype: Dtype, shape: tuple[int, ...], budget: Budget) -> NDArray[np.generic]:
        """Read one tensor from the weight file, and check its type and size.

        Args:
            offset: Where the tensor's header begins, in bytes.
            dtype: The dtype that the program declares.
            shape: The shape that the program declares.
            budget: Counts the memory of elements that must be unpacked; elements of whole bytes stay memory-mapped.

        Returns:
            The elements in shape `shape`, read-only; elements smaller than a byte as 8-bit integers.

        Raises:
            InputError: If offset, sentinel, type or size do not agree with the file or the program.
        """
        metadata = self._metadata(offset)
        stored_dtype = _CODES.get(int(metadata["dtype"]))
        if stored_dtype is not dtype:
            holds = stored_dtype or int(metadata["dtype"])
            raise self._problem(f"holds {holds} at offset {offset}, the program says {dtype}")
        size, start = int(metadata["bytes"]), int(metadata["offset"])
        elements = math.prod(shape)
        expected_size = (elements * dtype.bits + 7) // 8
        # the writer counts whole bytes for sub-byte elements, and notes how many bits of them are padding
        if size != expected_size:
            raise self._problem(f"holds {size} bytes at offset {offset}; {dtype}{list(shape)} takes {expected_size}")
        if start % _ALIGNMENT or start > self._bytes.size or size > self._bytes.size - start:
            raise self._problem(
                f"says that {size} bytes lie at {start}; it has {self._bytes.size} (aligned to {_ALIGNMENT})"
            )
        data = self._bytes[start : start + size]
        if dtype.bits < 8:
            budget.take(elements)
            return unpack_bits(data, dtype, elements).reshape(shape)
        return np.asarray(data).view(dtype.numpy.newbyteorder("<")).reshape(shape)

    def _metadata(self, offset: int) -> np.void:
        """Read the 64-byte header of the tensor at an offset; raise InputError if there is none."""
        if offset % _ALIGNMENT or offset + _ALIGNMENT > self._bytes.size:
            raise self._problem(
                f"has {self._bytes.size} bytes; there is no blob at offset {offset} (aligned to {_ALIGNMENT})"
            )
        metadata: np.void = self._bytes[offset : offset + _METADATA.itemsize].view(_METADATA)[0]
        if metadata["sentinel"] != _SENTINEL:
            raise self._problem(f"has no blob at offset {offset}")
        return metadata

    def _problem(self, what: str) -> InputError:
        return InputError(Problem(str(self.path), f"{what}.", "The file is damaged: write it again."))


def unpack_bits(data: NDArray[np.uint8], dtype: Dtype, elements: int) -> NDArray[np.generic]:
    """Unpack numbers of 1, 2, 3, 4 or 6 bits from bytes, least significant bit first.

    Args:
        data: The bytes, at least `elements` × bits / 8 of them.
        dtype: Type of the elements.
        elements: Number of elements.

    Returns:
        The numbers, [elements] uint8, or int8 for int4.
    """
    n = dtype.bits
    # eight elements take n bytes: rows of n bytes become rows of eight elements, without a byte per bit
    rows = -(-elements // 8)
    padded = np.zeros(rows * n, np.uint8)
    used = (elements * n + 7) // 8
    padded[:used] = data[:used]
    octets = padded.reshape(rows, n)
    out = np.empty((rows, 8), np.uint8)
    mask = (1 << n) - 1
    for i in range(8):
        byte, shift = divmod(i * n, 8)
        bits = octets[:, byte] >> shift
        if shift + n > 8:
            bits = bits | (octets[:, byte + 1] << (8 - shift))
        out[:, i] = bits & mask
    flat = out.reshape(-1)[:elements]
    if dtype is Dtype.INT4:
        return ((flat ^ 8).astype(np.int8) - np.int8(8)).astype(np.int8)
    return flat
