"""Ranges of activations: laws of the streaming histogram, and what gives no range."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pocketbert.core.errors import GateError, InputError
from pocketbert.core.types import Calibration
from pocketbert.quantize.calibration import BINS, Histogram, Ranges

Numbers = NDArray[np.float32]


def count(*parts: Numbers) -> Histogram:
    made = Histogram()
    for part in parts:
        made.add(part)
    return made


def draw(seed: int, size: int = 4000, scale: float = 1.0) -> Numbers:
    return np.asarray(np.random.default_rng(seed).normal(0.3, 1, size) * scale, np.float32)


@given(st.integers(0, 99), st.integers(1, 3999), st.floats(1e-6, 1e6))
@settings(max_examples=25)
def test_a_range_holds_zero_lies_within_the_numbers_and_hardly_depends_on_their_parts(seed, cut, scale):
    values = draw(seed, scale=scale)
    once, twice = count(values), count(values[:cut], values[cut:])
    bin_width = 4 * float(np.abs(values).max()) / BINS
    for method in Calibration:
        low, high = once.range(method)
        assert min(0.0, float(values.min())) <= low <= 0 <= high <= max(0.0, float(values.max())), method
        assert np.allclose((low, high), twice.range(method), rtol=0, atol=2 * bin_width), method


def test_a_percentile_leaves_out_what_is_rare_and_minmax_does_not():
    values = draw(1, 100_000)
    made = count(values, np.array([900], np.float32))
    assert made.range(Calibration.MINMAX)[1] == 900
    low, high = made.range(Calibration.PERCENTILE)
    assert high < 6
    assert np.mean((values >= low) & (values <= high)) == pytest.approx(0.9999, abs=0.0005)


def test_the_least_error_is_smaller_than_that_of_the_full_range():
    values = np.append(draw(2, 50_000), np.float32(60))
    made = count(values)

    def error(low: float, high: float) -> float:
        step = (high - low) / 255
        return float(np.mean((np.clip(np.rint((values - low) / step), 0, 255) * step + low - values) ** 2))

    best = made.range(Calibration.MSE)
    assert error(*best) < error(*made.range(Calibration.MINMAX))
    tried = [error(made.low * part, made.high * part) for part in np.linspace(0.2, 1, 41)]
    assert error(*best) < 1.1 * min(tried)


def test_memory_does_not_depend_on_the_number_of_rows():
    def measure_peak(rows: int) -> int:
        ranges, row = Ranges(["a"], Calibration.MSE), {"a": draw(0, 20_000)}
        tracemalloc.start()
        for _ in range(rows):
            ranges.add(row)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert measure_peak(40) < 1.2 * measure_peak(2)


@pytest.mark.parametrize("method", Calibration)
@pytest.mark.parametrize(
    ("values", "said"),
    [([1, np.nan], "NaN or infinite"), ([np.inf, 0], "NaN or infinite"), ([0, 0], "nothing but zeros")],
)
def test_numbers_that_give_no_range_are_named(method, values, said):
    ranges = Ranges(["good", "bad"], method)
    ranges.add({"good": draw(0), "bad": np.array(values, np.float32)})
    with pytest.raises(GateError, match=f"model: {said}.*: bad ") as caught:
        ranges.chosen("model")
    assert "good" not in str(caught.value)


def test_no_rows_are_refused():
    with pytest.raises(InputError, match="no row to measure ranges on"):
        Ranges(["a"], Calibration.MINMAX).chosen("model")
