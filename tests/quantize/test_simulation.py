"""Schemes simulated in torch: rounding by its definition, kinds of processors, measured ranges, and what stays float."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.types import Scheme
from pocketbert.quantize import rounding
from pocketbert.quantize.rounding import Simulation
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import SchemeRow, list_rows

WRITTEN = [r for r in list_rows() if r.write is not None]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


class Exact:
    """A module behind the predictor protocol: one input, one output."""

    engine, engine_version, lengths = "exact", "1", ()
    inputs, outputs = ("x",), ("y",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        with torch.inference_mode():
            return {"y": self.module(torch.from_numpy(inputs["x"])).numpy()}


def answers(
    module: nn.Module, simulation: Simulation, x: torch.Tensor, rows: torch.Tensor | None = None
) -> torch.Tensor:
    calibration = [] if rows is None else [{"x": rows.numpy()}]
    predictor = SimulatedPredictor(Exact(module), simulation, calibration)
    return torch.from_numpy(predictor.run({"x": x.numpy()})["y"])


@pytest.mark.parametrize("row", WRITTEN, ids=lambda row: row.title)
def test_every_scheme_in_8_bits_has_a_simulation(row: SchemeRow) -> None:
    assert (row.simulation is None) == (row.scheme is Scheme.FP16)  # files in fp16 have the least bound of all


@pytest.mark.parametrize("row", [r for r in WRITTEN if r.weights.other_tables], ids=lambda row: row.title)
def test_tables_that_files_store_in_another_way_are_simulated_so(row: SchemeRow) -> None:
    assert row.simulation is not None
    others, words = row.weights.other_tables, row.weights.tables
    assert row.simulation.other_tables is not None
    assert (others == words) == (row.simulation.other_tables is row.simulation.tables)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        (rounding.per_row, lambda v: v.reshape(len(v), -1)),
        (rounding.per_row_with_offset, lambda v: v.reshape(len(v), -1)),
        (rounding.per_token, lambda v: v.reshape(-1, v.shape[-1])),
        (rounding.per_tensor, lambda v: v.reshape(1, -1)),
    ],
)
def test_each_group_has_at_most_256_steps_of_one_size_and_zero_is_one(kind: rounding.Rounding, groups) -> None:
    values = numbers(3, 4, 500)
    values[0] = 0
    values[:, 1] += 2
    found, given = groups(kind(values)).double(), groups(values).double()
    for one, before in zip(found, given, strict=True):
        size = (before.max().clamp(min=0) - before.min().clamp(max=0)) / 255
        if kind is rounding.per_row:
            size = before.abs().max() / 127
        steps = one / size.clamp(min=1e-30)
        assert (steps - steps.round()).abs().max() < 1e-3
        assert steps.round().unique().numel() <= 256
        assert (one - before).abs().max() <= 0.51 * size
    assert kind(torch.zeros(2, 3)).abs().max() == 0


def test_halves_are_rounded_as_numpy_does_in_fp16() -> None:
    values = numbers(40, 500)
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


def test_only_files_made_from_halves_are_rounded_as_halves() -> None:
    how = Simulation(rounding.per_row, rounding.per_tensor, small=7, halves=rounding.per_row_in_fp16)
    assert how.made_from(Scheme.FP32) == how
    made = how.made_from(Scheme.FP16)
    assert made.weights is made.tables is rounding.per_row_in_fp16
    assert made.small == 7
    assert Simulation(rounding.per_row, rounding.per_row).made_from(Scheme.FP16).weights is rounding.per_row


def test_tables_and_weights_are_rounded_and_small_or_constant_ones_are_not() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(50, 16), nn.Embedding(8, 16)
            self.product, self.last = nn.Linear(16, 50, bias=False), nn.Linear(50, 2, bias=False)
            self.register_buffer("ids", torch.arange(8)[None])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states = self.words(x) + self.places(self.ids[:, : x.shape[1]])
            return self.last(self.product(states))

    model, ids = Model(), torch.tensor([[3, 7, 9]])
    how = Simulation(rounding.per_row, rounding.per_tensor, small=100, fixed_positions=True)
    found = answers(model, how, ids)
    table = rounding.per_tensor(model.words.weight)[ids]
    states = table + model.places.weight[:3]
    wanted = states @ rounding.per_row(model.product.weight).T @ model.last.weight.T
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    model.product.weight = model.words.weight  # a tied table is stored once: as the matrix
    tied = answers(model, how, ids)
    matrix = rounding.per_row(model.words.weight)
    wanted = (matrix[ids] + model.places.weight[:3]) @ matrix.T @ model.last.weight.T
    torch.testing.assert_close(tied, wanted, rtol=1e-5, atol=1e-6)


def test_static_ranges_are_those_of_the_calibration_rows_and_probabilities_stay_float() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(16, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = torch.matmul(self.query(x), x.transpose(1, 2))
            return torch.matmul(torch.softmax(scores, -1), x)

    model, rows = Attention(), numbers(1, 40, 16)
    x = 3 * numbers(1, 6, 16)  # beyond the measured range
    found = answers(model, Simulation(rounding.per_row, rounding.per_row, static=True, products=True), x, rows)
    weight = rounding.per_row(model.query.weight)
    with torch.no_grad():
        query = rounding.round_between(x, float(rows.min()), float(rows.max())) @ weight.T
        most = float(model.query(rows).abs().max())
    left, right = rounding.round_symmetric(query, most), rounding.round_symmetric(x, float(rows.abs().max()))
    wanted = torch.softmax(left @ right.transpose(1, 2), -1) @ x
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        (rounding.tflite_int4_blocks, 16),
        (rounding.per_block_with_offset, 16),
        (rounding.per_block_in_fp16, 16),
        (rounding.palette_of_16, 16),
        (rounding.palette_of_64, 64),
    ],
)
def test_few_bits_leave_few_numbers_in_each_block_and_small_errors(kind: rounding.Rounding, levels: int) -> None:
    values = numbers(7, 96)
    values[0] = 0
    values[1] /= 1000
    found = kind(values)
    assert found.shape == values.shape
    if "palette" in kind.__name__:
        assert levels / 2 < found.unique().numel() <= levels
        assert (found - values).pow(2).mean().sqrt() < 3 * values.std() / levels
        return
    for one, before in zip(found.reshape(-1, 32), values.reshape(-1, 32), strict=True):
        step = max(before.max().clamp(min=0) - before.min().clamp(max=0), 2 * before.abs().max()) / 14
        assert one.unique().numel() <= levels
        assert (one - before).abs().max() <= 0.6 * step
    assert (found[0] == 0).all()
    convolution = values.reshape(7, 96, 1, 1)
    if kind is not rounding.tflite_int4_blocks:
        assert torch.equal(kind(convolution).reshape(7, 96), found)


def test_results_of_static_products_are_rounded_where_the_scheme_says_so() -> None:
    model, rows = nn.Linear(16, 5), numbers(1, 40, 16)
    how = Simulation(rounding.per_row, rounding.per_row, static=True)
    x = rows[:, :6]  # results beyond the measured range would be cut
    inside = answers(model, how, x, rows)
    both = answers(model, Simulation(rounding.per_row, rounding.per_row, static=True, outputs=True), x, rows)
    results = model(rows).detach()
    step = float(results.max() - results.min()) / 255
    assert 0 < float((both - inside).abs().max()) <= step


def test_results_of_softmax_and_activations_are_rounded_where_the_scheme_says_so() -> None:
    class Probabilities(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.softmax(x, -1)

    rows = numbers(1, 40, 16)
    how = Simulation(rounding.per_row, rounding.per_row, static=True, results=True)
    found = answers(Probabilities(), how, rows, rows)
    exact = rows.softmax(-1)
    half = answers(nn.GELU(), how, rows, rows)
    assert len(half.unique()) <= 256 < len(rows.unique())
    # what softmax reads has room for a mask, 8 below the lowest score: its steps are those of the wider range
    step = (float(rows.max() - rows.min()) + 8) / 255
    assert 0 < float((found - exact).abs().max()) <= float(exact.max()) * (step + 1 / 255)
    plain = answers(Probabilities(), Simulation(rounding.per_row, rounding.per_row, static=True), rows, rows)
    assert torch.equal(plain, exact)
