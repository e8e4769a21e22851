"""a8w8 for TFLite: ranges of real tokens in every signature, products only, and what a mask in int8 does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, InputError, MissingBackendError
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Calibration, Format, Role, Scheme
from pocketbert.pipeline.formats.weight_roles import list_weights, resolve_schemes, simulation_of_file
from pocketbert.quantize import weights
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.files import find_weight_problems, quantize, read_weight_types
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.tflite import static
from pocketbert.quantize.weights import Use
from pocketbert.runtime.tflite import TflitePredictor
from support.exact import exact_bert
from support.learned import learned_of

Exported = Callable[[str], Path]
TASK = task_of("text-classification")


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", 512)


@pytest.fixture(scope="module")
def rows(open_tiny: Callable[..., Any]) -> list[dict[str, Any]]:
    """Calibration rows without padding."""
    tokenizer = open_tiny("bert", 2)[2]
    return [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]


def plan(rows: list[dict[str, Any]], method: Calibration = Calibration.MINMAX) -> Plan:
    return Plan(Format.TFLITE, Scheme.A8W8, rows=lambda: rows, calibration=method)


@pytest.fixture(scope="module")
def made(exported_tflite: Exported, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("static") / "a.tflite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SMALL", 512)
        quantize(exported_tflite("bert"), path, plan(rows))
    return path


def test_the_file_answers_as_its_scheme_simulated_at_every_length(
    made: Path, rows: list[dict[str, Any]], open_tiny: Callable[..., Any]
) -> None:
    exact, tokenizer = exact_bert(open_tiny, 2, Format.TFLITE), open_tiny("bert", 2)[2]
    how = find_row(Format.TFLITE, Scheme.A8W8).simulation
    assert how is not None
    encoded = [e for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]
    found, simulated, right = (
        join_texts(run_rows(p, tokenizer, encoded, TASK))
        for p in (TflitePredictor(made, 1), SimulatedPredictor(exact, how, rows), exact)
    )
    error = rms_error(simulated, right)
    assert 0.005 < error < 0.5
    assert 0.6 * error < rms_error(found, right) < 1.5 * error
    # ranges are the same in every signature: the longest one answers as the one that fits
    predictor = TflitePredictor(made, 1)
    short = next(e for e in encoded if len(e) <= min(predictor.lengths))
    answers = [predictor.run(tokenizer.pad([short], length))["logits"] for length in predictor.lengths]
    assert len(answers) > 1
    assert all(rms_error(a, answers[0]) < 0.02 for a in answers)


def test_learned_ranges_take_the_place_of_measured_ones(
    exported_tflite: Exported, rows: list[dict[str, Any]], open_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    exact, tokenizer = exact_bert(open_tiny, 2, Format.TFLITE), open_tiny("bert", 2)[2]
    learned = learned_of(exact.module, Format.TFLITE)
    path = tmp_path / "a.tflite"
    quantize(exported_tflite("bert"), path, replace(plan(rows), learned=learned))
    how = find_row(Format.TFLITE, Scheme.A8W8).simulation
    assert how is not None
    encoded = [e for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]
    found, simulated, measured = (
        join_texts(run_rows(p, tokenizer, encoded, TASK))
        for p in (
            TflitePredictor(path, 1),
            SimulatedPredictor(exact, how, rows, learned=learned),
            SimulatedPredictor(exact, how, rows),
        )
    )
    change = rms_error(simulated, measured)
    assert change > 0.3, "ranges that are far too small"
    assert rms_error(found, simulated) < 0.3 * change
    stored = static.MeasuredModel(exported_tflite("bert").read_bytes(), static._MEASURED).learned(learned)
    assert {reads for _, reads, _ in stored} == {True, False}
    assert len(stored) == 2 * len(learned.products)


def test_a_role_can_be_dynamic_and_the_gate_knows_a_file_without_it(
    exported_tflite: Exported,
    rows: list[dict[str, Any]],
    made: Path,
    open_tiny: Callable[..., Any],
    tmp_path: Path,
) -> None:
    exact, tokenizer = exact_bert(open_tiny, 2, Format.TFLITE), open_tiny("bert", 2)[2]
    row = find_row(Format.TFLITE, Scheme.A8W8)
    # the lookup of positions is a constant in the file
    held = [w for w in list_weights(exact.module) if "position" not in w.name]
    chosen = resolve_schemes(QuantizeSection(), held, row.scheme_of)
    assert {w.scheme for w in chosen if w.role is Role.FFN_DOWN} == {Scheme.INT8}
    path = tmp_path / "a.tflite"
    types = quantize(exported_tflite("bert"), path, replace(plan(rows), weights=chosen))
    products = [u for u in types.uses if u.use is Use.MATMUL]
    assert {u.dtype for u in products} == {"int8"}
    assert sum(u.bits is None for u in products) == sum(w.role is Role.FFN_DOWN for w in chosen) == 2
    encoded = [e for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]
    found, simulated, right = (
        join_texts(run_rows(p, tokenizer, encoded, TASK))
        for p in (
            TflitePredictor(path, 1),
            SimulatedPredictor(exact, simulation_of_file(row, chosen, Scheme.FP32), rows),
            exact,
        )
    )
    error = rms_error(simulated, right)
    assert 0.6 * error < rms_error(found, right) < 1.5 * error
    assert rms_error(found, simulated) < error
    alike = find_weight_problems(made, row, read_weight_types(made, Format.TFLITE), "alike", chosen)
    assert any("is to have int8 (int8), and the file has too few such weights" in line for line in alike), alike
    assert find_weight_problems(path, row, types, "mixed"), "and the other way round"


def test_padding_is_in_no_range(
    exported_tflite: Exported, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    cut = static._cut

    def watched(values: Any, axes: list[int], *how: Any) -> Any:
        out = cut(values, axes, *how)
        seen.append(out.shape[axes[0]] if axes else -1)
        return out

    monkeypatch.setattr(static, "_cut", watched)
    one = rows[0]
    tokens = one["input_ids"].shape[1]
    quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan([one]))
    assert tokens not in TflitePredictor(exported_tflite("bert"), 1).lengths
    assert set(seen) == {tokens, -1}  # and what the first token alone has
    assert seen.count(tokens) == 6 * 2  # what the products of the first layer read and write


@pytest.mark.parametrize(("left", "kept"), [(False, [0, 1, 2]), (True, [2, 3, 4])])
def test_padding_is_cut_where_the_family_has_it(left: bool, kept: list[int]) -> None:
    values = np.arange(5.0).reshape(1, 5, 1)
    assert static._cut(values, [1], 2, left).ravel().tolist() == kept


def test_a_range_can_clip(exported_tflite: Exported, rows: list[dict[str, Any]], made: Path, tmp_path: Path) -> None:
    quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan(rows, Calibration.MSE))
    assert (tmp_path / "a.tflite").read_bytes() != made.read_bytes()


class _WithMask(Ranges):
    """Ranges that do not refuse zeros, which is all that a mask adds to unpadded rows: it gets its largest instead."""

    def chosen(self, title: str) -> dict[str, tuple[float, float]]:
        found = {name: (h.low, h.high) for name, h in self._histograms.items()}
        return {name: (-1e4, 0.0) if ends == (0.0, 0.0) else ends for name, ends in found.items()}


def test_a_mask_in_int8_is_refused_and_with_reason(
    exported_tflite: Exported, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.recipe_manager import RecipeManager

    everything = RecipeManager()
    for name in ("FULLY_CONNECTED", "MUL", "ADD", "SUB"):
        everything.add_static_config(".*", TFLOperationName(name), activation_num_bits=8, weight_num_bits=8)
    everything.add_dynamic_config(".*", TFLOperationName.EMBEDDING_LOOKUP, num_bits=8)
    monkeypatch.setattr(static, "_MEASURED", ("FULLY_CONNECTED", "MUL", "ADD", "SUB"))
    monkeypatch.setattr(static, "_quantizer_recipe", lambda *_: everything.get_quantization_recipe())
    with pytest.raises(GateError, match="nothing but zeros on the calibration texts"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan(rows))
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(static, "Ranges", _WithMask)
    with pytest.raises(GateError, match=r"a.tflite: .*MUL.* computed in integers \(\d+ in all\); the attention mask"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan(rows))
    exact, broken = (TflitePredictor(p, 1) for p in (exported_tflite("bert"), tmp_path / "a.tflite"))
    length = max(exact.lengths)
    padded = [
        {name: np.pad(value, ((0, 0), (0, length - value.shape[1]))) for name, value in row.items()} for row in rows
    ]
    answers = [np.concatenate([p.run(row)["logits"] for row in padded]) for p in (exact, broken)]
    assert rms_error(answers[1], answers[0]) > 0.5  # the bound of the gate `reference`


def test_products_on_the_fly_are_not_static(
    exported_tflite: Exported, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.quantize.tflite import quantizer

    dynamic = quantizer._quantizer_recipe(Scheme.INT8)
    monkeypatch.setattr(static, "_quantizer_recipe", lambda *_: dynamic)
    with pytest.raises(GateError, match="on the fly, not in a measured range"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan(rows))


def test_wrong_rows_and_missing_libraries(
    exported_tflite: Exported, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_long = {name: np.ones((1, 41), np.int64) for name in rows[0]}
    for none in ([], [too_long]):
        with pytest.raises(InputError, match="no row to measure ranges on"):
            quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan(none))
    monkeypatch.setattr(static, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pocketbert\[tflite\]"):
        quantize(exported_tflite("bert"), tmp_path / "a.tflite", plan(rows))
    assert not list(tmp_path.iterdir())
