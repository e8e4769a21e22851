"""Rounding in blocks of 32: no number is further than half a step from its own, and packing loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.quantize.onnx.tables import BLOCK, block_size_of, quantize_blocks, unpack_codes


@given(
    st.integers(0, 999),
    st.integers(1, 5),
    st.integers(1, 100),
    st.sampled_from([4, 8]),
    st.floats(-3, 3),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_number_is_half_a_step_from_its_own(
    seed: int, rows: int, width: int, bits: int, shift: float, zeros: bool
) -> None:
    values = np.random.default_rng(seed).normal(shift, 1, (rows, width)).astype(np.float32)
    if zeros:
        values[0] = 0
    found = quantize_blocks(values, bits)
    assert found.codes.shape == (rows, -(-width // BLOCK), BLOCK)
    middle = 2 ** (bits - 1)
    back = (found.codes.astype(np.float32) - middle) * found.scales[..., None]
    steps = np.repeat(np.abs(found.scales), BLOCK, axis=1)[:, :width]
    back = back.reshape(rows, -1)
    assert np.all(np.abs(back[:, :width] - values) <= steps * 0.5001)
    assert not back[:, width:].any(), "what fills up the last block is zero"
    # one code more on one side: the step is never larger than that of equal sides
    largest = np.abs(values).max()
    assert steps.max(initial=0) <= max(largest / (middle - 1), 1) * 1.0001


@given(st.integers(0, 999), st.sampled_from([4, 8]))
@settings(max_examples=20, deadline=None)
def test_packing_loses_nothing(seed: int, bits: int) -> None:
    found = quantize_blocks(np.random.default_rng(seed).normal(0, 1, (3, 96)).astype(np.float32), bits)
    assert found.packed.shape == (3, 3, BLOCK * bits // 8)
    assert np.array_equal(unpack_codes(found.packed, bits), found.codes)


@pytest.mark.parametrize(("width", "block"), [(384, 32), (16, 16), (48, 16), (312, None), (8, None)])
def test_blocks_divide_the_rows_of_a_table(width: int, block: int | None) -> None:
    assert block_size_of(width) == block
