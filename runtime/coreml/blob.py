"""Core ML's weight file, "blob v2": blobs behind 64-byte headers, read through a memory map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem
from pocketbert.runtime.coreml.limits import Budget
from pocketbert.runtime.coreml.mil_types import Dtype

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


class BlobFile:
    """A weight file. Everything it says is compared with its length before it is used.

    Args:
        path: ``weight.bin``.

    Raises:
        InputError: If it is missing or no blob file of version 2.
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
        self.count = int(header["count"])
        """Blobs in the file, as it says."""

    def read(self, offset: int, dtype: Dtype, shape: tuple[int, ...], budget: Budget) -> NDArray[np.generic]:
        """One tensor.

        Args:
            offset: Of the blob's metadata, in bytes.
            dtype: What the program declares.
            shape: What the program declares.
            budget: Pays for elements that must be unpacked; whole-byte ones stay in the map.

        Returns:
            The elements, `shape`, read-only; elements below one byte as 8-bit integers.

        Raises:
            InputError: If offset, sentinel, type or size do not agree with the file or the program.
        """
        metadata = self._metadata(offset)
        found = _CODES.get(int(metadata["dtype"]))
        if found is not dtype:
            raise self._problem(f"holds {found or int(metadata['dtype'])} at offset {offset}, the program says {dtype}")
        size, start = int(metadata["bytes"]), int(metadata["offset"])
        elements = _product(shape)
        need = (elements * dtype.bits + 7) // 8
        # the writer counts whole bytes for sub-byte elements, and says how many bits of them are padding
        if size != need:
            raise self._problem(f"holds {size} bytes at offset {offset}; {dtype}{list(shape)} takes {need}")
        if start % _ALIGNMENT or start > self._bytes.size or size > self._bytes.size - start:
            raise self._problem(
                f"says that {size} bytes lie at {start}; it has {self._bytes.size} (aligned to {_ALIGNMENT})"
            )
        data = self._bytes[start : start + size]
        if dtype.bits < 8:
            budget.take(elements)
            return unpack(data, dtype, elements).reshape(shape)
        return np.asarray(data).view(dtype.numpy.newbyteorder("<")).reshape(shape)

    def _metadata(self, offset: int) -> np.void:
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


def unpack(data: NDArray[np.uint8], dtype: Dtype, elements: int) -> NDArray[np.generic]:
    """Elements of 1, 2, 3, 4 or 6 bits, packed from the least significant bit on.

    Args:
        data: The bytes, at least `elements` × bits / 8 of them.
        dtype: Which bits.
        elements: How many.

    Returns:
        [elements] uint8, or int8 for int4.
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


def _product(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:  # Python's integers do not overflow where numpy's would
        out *= n
    return out
