"""Schemes simulated in torch: what is rounded, measured ranges, planted outliers; files are off by what the simulation says."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.formats import _MIN_BOUND, FORMATS
from pocketbert.core.predict.predictor import Arrays, Predictor, join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.export.adapters.outliers import divide_outliers
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.quantize import Plan, find_row, quantize, rounding
from pocketbert.quantize.rounding import Simulation
from pocketbert.quantize.simulated import SimulatedPredictor, measure_product_ranges
from pocketbert.quantize.table import list_rows
from pocketbert.runtime.engines import open_file
from support import outliers
from support.quantized import CLASSIFY, SUFFIX, Feed, export_file, pad_row
from support.tiny import EXPORTED, NAMES, tiny_classifier
from support.tiny_tokenizers import write_tokenizer


class Exact:
    """A module behind the predictor protocol: one input, one output."""

    engine, engine_version, lengths = "exact", "1", ()
    inputs, outputs = ("x",), ("y",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        with torch.inference_mode():
            return {"y": self.module(torch.from_numpy(inputs["x"])).numpy()}


def simulate(
    module: nn.Module, x: torch.Tensor, rows: torch.Tensor | None = None, how: Simulation | None = None, **more: Any
) -> torch.Tensor:
    """The answer of a module in a scheme, which is per row and static unless one is given."""
    how = how or Simulation(rounding.per_row, rounding.per_row, static=True, **more)
    calibration = [] if rows is None else [{"x": rows.numpy()}]
    return torch.from_numpy(SimulatedPredictor(Exact(module), how, calibration).run({"x": x.numpy()})["y"])


def test_tables_and_weights_are_rounded_and_small_or_constant_ones_are_not():
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

    def compute(table: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return (table[ids] + model.places.weight[:3]) @ matrix.T @ model.last.weight.T

    wanted = compute(rounding.per_tensor(model.words.weight), rounding.per_row(model.product.weight))
    torch.testing.assert_close(simulate(model, ids, how=how), wanted, rtol=1e-5, atol=1e-6)
    model.product.weight = model.words.weight  # a tied table is stored once: as the matrix
    matrix = rounding.per_row(model.words.weight)
    torch.testing.assert_close(simulate(model, ids, how=how), compute(matrix, matrix), rtol=1e-5, atol=1e-6)


def test_static_ranges_are_those_of_the_calibration_rows_and_probabilities_stay_float():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(16, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = torch.matmul(self.query(x), x.transpose(1, 2))
            return torch.matmul(torch.softmax(scores, -1), x)

    model, rows = Attention(), torch.randn(1, 40, 16)
    x = 3 * torch.randn(1, 6, 16)  # beyond the measured range
    with torch.no_grad():
        rounded = rounding.round_between(x, float(rows.min()), float(rows.max()))
        most = float(model.query(rows).abs().max())
    left = rounding.round_symmetric(rounded @ rounding.per_row(model.query.weight).T, most)
    right = rounding.round_symmetric(x, float(rows.abs().max()))
    wanted = torch.softmax(left @ right.transpose(1, 2), -1) @ x
    torch.testing.assert_close(simulate(model, x, rows, products=True), wanted, rtol=1e-4, atol=1e-4)


def test_results_of_products_softmax_and_activations_are_rounded_where_the_scheme_says_so():
    rows = torch.randn(1, 40, 16)
    linear, x = nn.Linear(16, 5), rows[:, :6]  # results beyond the measured range would be cut
    results = linear(rows).detach()
    apart = (simulate(linear, x, rows, outputs=True) - simulate(linear, x, rows)).abs().max()
    assert 0 < apart <= (results.max() - results.min()) / 255
    assert len(simulate(nn.GELU(), rows, rows, results=True).unique()) <= 256 < len(rows.unique())
    exact = rows.softmax(-1)
    assert torch.equal(simulate(nn.Softmax(-1), rows, rows), exact)
    # what softmax reads has room for a mask, 8 below the lowest score: its steps are those of the wider range
    step = (rows.max() - rows.min() + 8) / 255
    assert (
        0 < (simulate(nn.Softmax(-1), rows, rows, results=True) - exact).abs().max() <= exact.max() * (step + 1 / 255)
    )


# Planted outliers ruin int8, and dividing them brings the error back.

BERT, LENGTH = find_family("bert"), 24


def list_outlier_rows() -> list[Feed]:
    """Rows [1, L] without padding."""
    lengths = [(batch, i, n) for batch in outliers.ROWS for i, n in enumerate(batch["attention_mask"].sum(1))]
    return [{name: value[i : i + 1, :n] for name, value in batch.items()} for batch, i, n in lengths]


def make_modules(format: Format) -> dict[str, nn.Module]:
    """A healthy module, the same with planted outliers, and that one treated; all answer alike in fp32."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    healthy = prepare(tiny_classifier("bert", 1, NAMES, **sizes), BERT, CLASSIFY, format)
    planted = copy.deepcopy(healthy)
    outliers.plant(planted, BERT.inputs)
    treated = copy.deepcopy(planted)
    assert divide_outliers(treated, BERT.inputs, outliers.ROWS)
    return {"healthy": healthy, "planted": planted, "treated": treated}


def measure_error(predictor: Predictor, module: nn.Module) -> float:
    """The RMS error of a predictor's logits over their spread, against a module in fp32."""
    found, right = [], []
    for row in list_outlier_rows():
        found.append(predictor.run(pad_row(row, LENGTH) if predictor.lengths else row)["logits"])
        right.append(PreparedPredictor(module, BERT, CLASSIFY).run(row)["logits"])
    return rms_error(np.concatenate(found), np.concatenate(right))


@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.A8W8])
def test_the_simulation_shows_what_outliers_do(scheme):
    how = find_row(Format.ONNX, scheme).simulation
    assert how is not None
    rows, errors = (list_outlier_rows() if how.static else ()), {}
    for name, module in make_modules(Format.ONNX).items():
        simulated = SimulatedPredictor(PreparedPredictor(module, BERT, CLASSIFY), how, rows)
        errors[name] = measure_error(simulated, module)
    assert errors["planted"] > 5 * errors["healthy"], errors
    assert errors["treated"] < 2 * errors["healthy"], errors


@pytest.mark.parametrize(
    "format",
    [Format.ONNX, *(pytest.param(f, marks=pytest.mark.slow) for f in (Format.TFLITE, Format.COREML))],
)
def test_files_with_outliers_are_ruined_and_repaired(format, tmp_path):
    modules = {name: module for name, module in make_modules(format).items() if name != "healthy"}
    sources = {n: export_file(m, BERT, tmp_path / f"{n}{SUFFIX[format]}", (LENGTH,)) for n, m in modules.items()}
    for scheme in (Scheme.INT8, Scheme.A8W8) if format is Format.ONNX else (Scheme.A8W8,):
        errors = {}
        for name, module in modules.items():
            path = tmp_path / f"{name}-{scheme}{SUFFIX[format]}"
            quantize(sources[name], path, Plan(format, scheme, rows=list_outlier_rows if scheme.static else None))
            errors[name] = measure_error(open_file(path, format), module)
        assert errors["planted"] > (5 if format is Format.ONNX else 2.5) * errors["treated"], errors


# Files of every family and scheme.

SEEDS = {Format.ONNX: 6, Format.TFLITE: 3, Format.COREML: 2}
WIDER = {"mobilebert": {"intra_bottleneck_size": 24}}
"""Sizes of tiny models whose matrices would be too small for Core ML's quantizer."""


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize(("format", "seed"), [(f, s) for f, count in SEEDS.items() for s in range(count)])
def test_a_sound_file_is_off_by_what_the_simulation_says(format, name, seed, tmp_path):
    rows = [r for r in list_rows() if r.format is format and r.simulation]
    if any(r.runtime is Runtime.OPENVINO for r in rows):
        pytest.importorskip("openvino")
    family = find_family(name)
    write_tokenizer(tmp_path, family.tiny["pad_token_id"])
    tokenizer = TextTokenizer(tmp_path, 40, padding_side=family.padding_side)
    encoded = tokenizer.encode(list(SENTENCES))
    module = prepare(tiny_classifier(name, 2, NAMES, seed=seed, **WIDER.get(name, {})), family, CLASSIFY, format)
    base = export_file(module, family, tmp_path / f"base{SUFFIX[format]}")
    exact = PreparedPredictor(module, family, CLASSIFY)
    batches = [tokenizer.pad([row]) for row in encoded]  # what other texts reach is cut, which is no rounding

    def answer(predictor: Predictor) -> Any:
        return join_texts(run_rows(predictor, tokenizer, encoded, CLASSIFY))

    expected = answer(exact)
    for row in rows:
        path = tmp_path / f"{row.scheme}_{row.runtime}{SUFFIX[format]}"
        rows_of = (lambda: batches) if row.calibrated else None
        plan = Plan(format, row.scheme, row.runtime, rows_of, pads_left=tokenizer.padding_side == "left")
        try:
            quantize(base, path, plan)
        except InputError as refused:
            assert "blocks of 32" in str(refused)
            continue  # a tiny model whose widths blocks do not divide
        assert row.simulation is not None
        how = row.simulation.made_from(FORMATS[format].base).of_lengths(2)
        found = answer(open_file(path, format, runtime=row.runtime))
        real = rms_error(found, expected)
        simulated = rms_error(answer(SimulatedPredictor(exact, how, batches)), expected)
        print(f"{name} {seed} {row.title}: file {real:.4f}, simulated {simulated:.4f}")
        least = FORMATS[format].bounds[row.scheme, row.runtime].least
        assert real <= max(1.5 * simulated, least if least > _MIN_BOUND else _MIN_BOUND / 2)
        assert real >= simulated / 2 or simulated < _MIN_BOUND, "a simulation that is far off lets broken files pass"


class OneInput(Exact):
    """A module whose only input is called x."""

    inputs = ("input_ids",)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        return super().run({"x": inputs["input_ids"]})


def test_products_of_positions_have_a_range_for_each_length_that_rows_are_padded_to():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.distances = nn.Linear(1, 4, bias=False), nn.Linear(1, 1, bias=False)
            nn.init.constant_(self.distances.weight, 2.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.words(x[..., None].float()) + self.distances(torch.arange(x.shape[1])[None, :, None].float())

    rows = [{"input_ids": np.array([ids])} for ids in ([5, 7, 6], [4, 9])]
    found = measure_product_ranges(OneInput(Model()), rows, lengths=(4, 8))
    assert [r.before_offset for r in found["distances.weight"]] == [(0.0, 4.0), (0.0, 6.0), (0.0, 14.0)]
    assert [r.inputs for r in found["words.weight"]] == [(0.0, 9.0)]  # of the rows as they are


def test_results_that_are_joined_may_have_the_range_of_the_joined_tensor():
    class Groups(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = nn.Linear(1, 1), nn.Linear(1, 1)
            for linear, factor in ((self.small, 1.0), (self.large, -3.0)):
                nn.init.constant_(linear.weight, factor)
                nn.init.constant_(linear.bias, 1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states = x[..., None].float()
            return self.small(torch.cat([self.small(states), self.large(states)], -1)[..., :1])

    found = measure_product_ranges(OneInput(Groups()), [{"input_ids": np.array([[0, 2]])}])
    assert {r.outputs for r in found["large.weight"]} == {(-5.0, 1.0), (-5.0, 3.0)}
    assert {r.before_offset for r in found["large.weight"]} == {(-6.0, 0.0), (-6.0, 2.0)}
