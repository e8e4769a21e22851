"""Laws of the parts that compute: rounding, the error function, bit packing, Einstein sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.runtime.coreml.kernels.elementwise import _erf, _softmax
from pocketbert.runtime.coreml.kernels.linear import _einsum
from pocketbert.runtime.coreml.kernels.shapes import _gather
from pocketbert.runtime.coreml.types import Dtype, round_half
from pocketbert.runtime.coreml.weights import unpack_bits


@given(st.lists(st.floats(width=32), max_size=40))
def test_rounding_equals_numpys_conversion(values: list[float]) -> None:
    value = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(round_half(value), value.astype(np.float16).astype(np.float32))


def test_rounding_equals_numpys_conversion_on_every_half_and_between_them() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    for value in (
        halves,
        -halves,
        middles,
        np.nextafter(middles, 0),
        np.nextafter(middles, np.float32(np.inf)),
    ):
        np.testing.assert_array_equal(round_half(value), value.astype(np.float16).astype(np.float32))


def test_rounding_overflows_where_fp16_does_and_leaves_its_argument_alone() -> None:
    value = np.array([65504, 65519.9, 65520, -1e9, np.nan, np.inf], np.float32)
    before = value.copy()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(round_half(value), [65504, 65504, np.inf, -np.inf, np.nan, np.inf])
    np.testing.assert_array_equal(value, before)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (4, 5, 6)])
def test_rounding_keeps_shapes_and_takes_transposed_arrays(shape: tuple[int, ...]) -> None:
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32).T
    np.testing.assert_array_equal(round_half(value), value.astype(np.float16).astype(np.float32))


def test_the_error_function_is_exact_to_float32() -> None:
    x = np.concatenate([np.linspace(-7, 7, 200_001), np.geomspace(1e-30, 1, 1000), [0, 1e30, np.inf]])
    x = x.astype(np.float32)
    want = np.array([math.erf(v) for v in x.tolist()])
    with np.errstate(over="ignore"):
        have = _erf(x)
    assert np.abs(have - want).max() < 1.5e-7
    small = np.abs(want) > 0
    assert (np.abs(have - want)[small] / np.abs(want)[small]).max() < 1e-6
    assert np.isnan(_erf(np.array([np.nan], np.float32)))[0]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(_erf(-x), -have)


def test_softmax_of_a_fully_masked_row_is_even() -> None:
    np.testing.assert_allclose(_softmax(np.full((1, 4), -1e4, np.float32)), 0.25)


@given(st.sampled_from([d for d in Dtype if 0 < d.bits < 8]), st.data())
def test_unpacking_reads_bits_from_the_least_significant_on(dtype: Dtype, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 50))
    raw = data.draw(st.binary(min_size=(count * dtype.bits + 7) // 8, max_size=(count * dtype.bits + 7) // 8))
    big = int.from_bytes(raw, "little")
    want = [(big >> (i * dtype.bits)) % (1 << dtype.bits) for i in range(count)]
    if dtype is Dtype.INT4:
        want = [v - 16 if v > 7 else v for v in want]
    assert unpack_bits(np.frombuffer(raw, np.uint8), dtype, count).tolist() == want


@given(st.data())
def test_einstein_sums_equal_numpys(data: st.DataObject) -> None:
    letters = "abcdef"
    first = data.draw(st.lists(st.sampled_from(letters), min_size=1, max_size=4, unique=True))
    second = data.draw(st.lists(st.sampled_from(letters), min_size=1, max_size=4, unique=True))
    every = sorted({*first, *second})
    out = data.draw(st.lists(st.sampled_from(every), max_size=len(every), unique=True))
    sizes = {t: data.draw(st.integers(1, 3)) for t in every}
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, [sizes[t] for t in side]).astype(np.float32) for side in (first, second))
    equation = f"{''.join(first)},{''.join(second)}->{''.join(out)}"
    np.testing.assert_array_equal(_einsum((a, b), equation), np.einsum(equation, a, b))


@pytest.mark.parametrize("equation", ["aa,ab->b", "ab,bc->ad", "ab,bc", "a1,1b->ab", "ab,bc,cd->ad"])
def test_einstein_sums_of_another_kind_are_refused(equation: str) -> None:
    with pytest.raises(ValueError):
        _einsum((np.ones((2, 2), np.float32),) * 2, equation)


def test_negative_indices_count_from_the_end_before_ios_17_only() -> None:
    table, last = np.arange(6.0).reshape(3, 2), np.array([-1])
    np.testing.assert_array_equal(_gather(table, last, opset=6), [[4, 5]])
    for indices, opset in ((last, 7), (np.array([3]), 7), (np.array([-4]), 6), (np.array([3]), 6)):
        with pytest.raises(IndexError, match="outside a table of 3"):
            _gather(table, indices, opset=opset)
