"""Rounding by its definition: steps of one size, halves as numpy rounds them, blocks and palettes."""

import numpy as np
import pytest
import torch

from pocketbert.core.types import Scheme
from pocketbert.quantize import rounding
from pocketbert.quantize.rounding import Simulation, choose_palette, nearest_in_palette
from pocketbert.quantize.table import SchemeRow, list_rows

WRITTEN = [r for r in list_rows() if r.write is not None]


def test_every_scheme_in_8_bits_has_a_simulation_and_tables_are_simulated_as_they_are_stored():
    def is_complete(row: SchemeRow) -> bool:
        if row.scheme is Scheme.FP16:  # files in fp16 have the least bound of all
            return row.simulation is None
        others = row.weights.other_tables
        if row.simulation is None or others is None:
            return row.simulation is not None
        own = row.simulation.other_tables
        return own is not None and (others == row.weights.tables) == (own is row.simulation.tables)

    assert [row.title for row in WRITTEN if not is_complete(row)] == []


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (rounding.per_row, (3, -1)),
        (rounding.per_row_with_offset, (3, -1)),
        (rounding.per_token, (-1, 500)),
        (rounding.per_tensor, (1, -1)),
    ],
)
def test_each_group_has_at_most_256_steps_of_one_size_and_zero_is_one(kind, shape):
    values = torch.randn(3, 4, 500)
    values[0] = 0
    values[:, 1] += 2
    for one, before in zip(kind(values).reshape(shape).double(), values.reshape(shape).double(), strict=True):
        size = (before.max().clamp(min=0) - before.min().clamp(max=0)) / 255
        if kind is rounding.per_row:
            size = before.abs().max() / 127
        steps = one / size.clamp(min=1e-30)
        assert (steps - steps.round()).abs().max() < 1e-3
        assert steps.round().unique().numel() <= 256
        assert (one - before).abs().max() <= 0.51 * size
    assert kind(torch.zeros(2, 3)).abs().max() == 0


@pytest.mark.parametrize("kind", [rounding.per_row, rounding.per_row_with_offset, rounding.per_row_in_fp16])
def test_a_table_that_is_rounded_in_portions_is_rounded_as_its_rows_are(kind):
    values = torch.randn(41, 16)
    assert torch.equal(kind(values.repeat(500, 1)), kind(values).repeat(500, 1))


def test_halves_are_rounded_as_numpy_does_in_fp16():
    values = torch.randn(40, 500)
    values[0], values[1] = 0, values[1].abs()
    halves = values.numpy().astype(np.float16)
    low, high = np.minimum(halves.min(1, keepdims=True), 0), np.maximum(halves.max(1, keepdims=True), 0)
    with np.errstate(all="ignore"):
        scale = (high - low) / np.float16(255)
        zero = np.round((np.float16(-128) * high - np.float16(127) * low) / (high - low))
        steps = np.clip(np.round(halves / scale) + zero, -128, 127)
        wanted = np.nan_to_num(((steps.astype(np.float32) - zero) * scale.astype(np.float32)).astype(np.float16))
    found = rounding.per_row_in_fp16(values)
    assert np.array_equal(found.numpy(), wanted.astype(np.float32))
    assert (found != rounding.per_row_with_offset(values).half()).float().mean() > 0.01
    vector = torch.randn(10_000)  # has one scale
    assert torch.equal(rounding.per_row_in_fp16(vector), rounding.per_row_in_fp16(vector[:, None].T.contiguous())[0])


def test_only_files_made_from_halves_are_rounded_as_halves():
    how = Simulation(rounding.per_row, rounding.per_tensor, small=7, halves=rounding.per_row_in_fp16)
    assert how.made_from(Scheme.FP32) == how
    made = how.made_from(Scheme.FP16)
    assert made.weights is made.tables is rounding.per_row_in_fp16
    assert made.small == 7
    assert Simulation(rounding.per_row, rounding.per_row).made_from(Scheme.FP16).weights is rounding.per_row


@pytest.mark.parametrize(
    "kind", [rounding.tflite_int4_blocks, rounding.per_block_with_offset, rounding.per_block_in_fp16]
)
def test_4_bits_leave_16_numbers_in_each_block_and_small_errors(kind):
    values = torch.randn(7, 96)
    values[0] = 0
    values[1] /= 1000
    found = kind(values)
    for one, before in zip(found.reshape(-1, 32), values.reshape(-1, 32), strict=True):
        step = max(before.max().clamp(min=0) - before.min().clamp(max=0), 2 * before.abs().max()) / 14
        assert one.unique().numel() <= 16
        assert (one - before).abs().max() <= 0.6 * step
    assert (found[0] == 0).all()
    if kind is not rounding.tflite_int4_blocks:
        assert torch.equal(kind(values.reshape(7, 96, 1, 1)).reshape(7, 96), found), "of a convolution"


@pytest.mark.parametrize(("kind", "size"), [(rounding.palette_of_16, 16), (rounding.palette_of_64, 64)])
def test_a_palette_is_where_its_numbers_are_and_never_worse_than_equal_steps(kind, size):
    draw = np.random.default_rng(0)
    values = draw.standard_t(3, 50_000).astype(np.float16)  # with tails, as the weights of a trained model
    palette, wide = choose_palette(values, size), values.astype(np.float32)
    places = nearest_in_palette(values, palette)
    assert palette.shape == (size,)
    assert (np.diff(palette) > 0).all()
    error = np.mean((palette[places] - wide) ** 2)
    assert error == pytest.approx(np.mean((palette[np.abs(wide[:, None] - palette).argmin(1)] - wide) ** 2))
    means = [values[places == i].astype(np.float64).mean() for i in range(size)]
    np.testing.assert_allclose(palette, means, rtol=2e-3, atol=2e-4)
    equal = np.linspace(values.min(), values.max(), size).astype(np.float32)
    assert error < 0.2 * np.mean((equal[nearest_in_palette(values, equal)] - wide) ** 2)
    assert np.array_equal(places, nearest_in_palette(wide, palette))
    assert np.array_equal(kind(torch.from_numpy(wide)).numpy(), palette[places])


def test_a_weight_with_fewer_numbers_than_its_palette_is_exact():
    values = np.array([[0.5, -1, 0.25], [0, 0.5, 0.5]], np.float16)
    palette = choose_palette(values, 16)
    assert np.array_equal(palette[nearest_in_palette(values, palette)].reshape(2, 3), values)
