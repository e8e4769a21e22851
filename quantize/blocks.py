"""Numbers in blocks of 32 that share a scale, as MatMulNBits and GatherBlockQuantized of ONNX Runtime store them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Numbers that share a scale."""
_SMALLEST = 16
"""ONNX Runtime takes no smaller blocks."""


@dataclass(frozen=True)
class Blocks:
    """Rows of numbers in blocks.

    Attributes:
        codes: [rows, blocks, numbers of a block], uint8; the last block of a row is filled up with zeros of the model.
        scales: [rows, blocks], fp32: a number is (code - 2 ** (bits - 1)) * scale.
        bits: Bits of a code, 4 or 8.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    bits: int

    @property
    def packed(self) -> NDArray[np.uint8]:
        """[rows, blocks, bytes of a block]; of 4-bit codes the first of two is in the low half of a byte."""
        if self.bits == 8:
            return self.codes
        return np.asarray(self.codes[..., 0::2] | self.codes[..., 1::2] << 4, np.uint8)


def block_of(width: int) -> int | None:
    """Return the block size for rows of a width that are looked up: 32, or 16 where 32 does not divide it, else None."""
    return next((size for size in (BLOCK, _SMALLEST) if width % size == 0), None)


def in_blocks(values: NDArray[np.float32], bits: int, block: int = BLOCK) -> Blocks:
    """Round rows of numbers to few bits, each block with its own scale.

    The scale is negative where the largest magnitude is positive: there is one code more below the middle than above, and
    it goes to the side that reaches further. No number is clipped.

    Args:
        values: [rows, width].
        bits: 4 or 8.
        block: Numbers that share a scale.
    """
    rows, width = values.shape
    filled = np.zeros((rows, -(-width // block) * block), np.float32)
    filled[:, :width] = values
    parts = filled.reshape(rows, -1, block)
    middle = 2 ** (bits - 1)
    up, down = parts.max(-1), -parts.min(-1)
    near, far = np.minimum(up, down), np.maximum(up, down)
    sizes = np.maximum(near / (middle - 1), far / middle)
    sizes = np.where(sizes < np.finfo(np.float32).tiny, np.float32(1), sizes)
    scales = np.where(up > down, -sizes, sizes).astype(np.float32)
    codes = np.rint(parts / scales[..., None]) + middle
    return Blocks(np.clip(codes, 0, 2 * middle - 1).astype(np.uint8), scales, bits)


def unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the codes behind `Blocks.packed`, with twice as many numbers on the last axis where they have 4 bits."""
    if bits == 8:
        return packed
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    out[..., 0::2], out[..., 1::2] = packed & 15, packed >> 4
    return out
