"""a8w8 for Core ML: ranges of the project's evaluator, in the written package and in its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools", reason="needs pocketbert[coreml]")

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.quantize import QuantizeSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout, Role, Scheme, Shapes
from pocketbert.export import coreml as exporter
from pocketbert.export.coreml import CoremlForm, CoremlInfo
from pocketbert.export.prepare import prepare
from pocketbert.pipeline.formats.weight_roles import list_weights, resolve_schemes, simulation_of_file
from pocketbert.quantize import coreml, weights
from pocketbert.quantize.files import find_weight_problems, quantize
from pocketbert.quantize.simulated import SimulatedPredictor
from pocketbert.quantize.table import Plan, find_row
from pocketbert.quantize.weights import Use
from pocketbert.runtime.coreml.predictor import CoremlPredictor
from support.exact import exact_bert
from support.learned import SMALL, learned_of

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]


@pytest.fixture(autouse=True)
def small_matrices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have no matrix above the usual bound."""
    monkeypatch.setattr(weights, "SMALL", coreml.THRESHOLD)


@pytest.fixture(scope="module")
def exported(open_tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`exported(layout, ios)`: the fp16 package of a tiny classifier, of one layer."""
    folder = tmp_path_factory.mktemp("coreml")

    def make(layout: Layout = Layout.PLAIN, ios: int = 18) -> Path:
        path = folder / f"{layout}{ios}.mlpackage"
        if not path.exists():
            model, source, _ = open_tiny("bert", 1)
            module = prepare(model, source.family, TASK, Format.COREML, layout)
            info = CoremlInfo("One sentence.", "v", "a", "l", ("negative", "neutral", "positive"))
            form = CoremlForm() if ios == 18 else CoremlForm(ios, Shapes.FIXED)
            exporter.export(module, source.family, TASK, [16, 40], path, form, info)
        return path

    return make


@pytest.fixture(scope="module")
def tokenizer(open_tiny: Callable[..., Any]) -> TextTokenizer:
    return TextTokenizer(open_tiny("bert", 1)[1].path, 40)


@pytest.fixture(scope="module")
def rows(tokenizer: TextTokenizer) -> list[dict[str, Any]]:
    """Calibration rows without padding."""
    return [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)[:12])]


def plan(rows: list[dict[str, Any]]) -> Plan:
    return Plan(Format.COREML, Scheme.A8W8, rows=lambda: rows)


@pytest.mark.parametrize("layout", Layout)
def test_the_package_answers_as_its_scheme_simulated(
    layout: Layout,
    exported: Callable[..., Path],
    rows: list[dict[str, Any]],
    tokenizer: TextTokenizer,
    open_tiny: Callable[..., Any],
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.mlpackage"
    types = quantize(exported(layout), path, plan(rows))
    assert all(u.bits == 8 for u in types.uses if u.use is Use.MATMUL)
    exact = exact_bert(open_tiny, 1, Format.COREML, layout)
    how = find_row(Format.COREML, Scheme.A8W8).simulation
    assert how is not None
    simulated = SimulatedPredictor(exact, how.made_from(Scheme.FP16).of_lengths(2), rows)
    encoded = tokenizer.encode(list(SENTENCES)[:12])
    found, wanted, right = (
        join_texts(run_rows(p, tokenizer, encoded, TASK)) for p in (CoremlPredictor(path), simulated, exact)
    )
    error = rms_error(wanted, right)
    assert 0.005 < error < 0.5
    assert 0.5 * error < rms_error(found, right) < 1.6 * error


def test_a_role_can_keep_float_activations_or_be_left(
    exported: Callable[..., Path],
    rows: list[dict[str, Any]],
    tokenizer: TextTokenizer,
    open_tiny: Callable[..., Any],
    tmp_path: Path,
) -> None:
    exact = exact_bert(open_tiny, 1, Format.COREML)
    row = find_row(Format.COREML, Scheme.A8W8)
    section = QuantizeSection.model_validate({"roles": {"ffn_up": None}})
    chosen = resolve_schemes(section, list_weights(exact.module, Scheme.FP16), row.scheme_of)
    assert {w.scheme for w in chosen if w.role is Role.FFN_DOWN} == {Scheme.W8}
    path = tmp_path / "a.mlpackage"
    types = quantize(exported(), path, replace(plan(rows), weights=chosen))
    kinds = sorted((u.dtype, u.bits) for u in types.uses if u.use is Use.MATMUL and u.bits is None)
    assert kinds == [("float16", None), ("int8", None)]
    encoded = tokenizer.encode(list(SENTENCES)[:12])
    how = simulation_of_file(row, chosen, Scheme.FP16).of_lengths(2)
    found, wanted, right = (
        join_texts(run_rows(p, tokenizer, encoded, TASK))
        for p in (CoremlPredictor(path), SimulatedPredictor(exact, how, rows), exact)
    )
    error = rms_error(wanted, right)
    assert 0.5 * error < rms_error(found, right) < 1.6 * error
    usual = resolve_schemes(QuantizeSection(), list_weights(exact.module, Scheme.FP16), lambda _: row.scheme)
    problems = find_weight_problems(path, row, types, "mixed", usual)
    assert any("not in a measured range" in line for line in problems), problems


def test_learned_ranges_take_the_place_of_measured_ones(
    exported: Callable[..., Path], rows: list[dict[str, Any]], open_tiny: Callable[..., Any]
) -> None:
    model, folder, _ = open_tiny("bert", 1)
    module = prepare(model, folder.family, TASK, Format.COREML)
    learned = learned_of(module, Format.COREML)
    found, measured = coreml._learned_ranges(exported(), learned), coreml._measure_ranges(exported(), plan(rows), "a")
    assert set(found) <= set(measured)
    outputs = [name for name, own in found.items() if own == SMALL.outputs]
    assert len(outputs) == len(learned.products), "every linear layer was found by its weights in fp16"
    assert SMALL.inputs in found.values()
    assert coreml._learned_ranges(exported(), None) == {}


def test_ranges_are_those_of_all_rows_without_their_padding(
    exported: Callable[..., Path], rows: list[dict[str, Any]]
) -> None:
    # coremltools keeps the range of the last row only
    first, last, both = (coreml._measure_ranges(exported(), plan(r), "a") for r in ([rows[0]], [rows[1]], rows[:2]))
    assert set(first) == set(last) == set(both)
    assert len(both) > 8
    assert both == {n: (min(first[n][0], last[n][0]), max(first[n][1], last[n][1])) for n in both}
    # the fixed length of this package is 40: as in the one that pads the row to 16
    tokens = rows[0]["input_ids"].shape[1]
    assert tokens not in (16, 40)
    longer = coreml._measure_ranges(exported(ios=17), plan([rows[0]]), "a")
    ends = np.array([first[n] for n in first if n in longer])
    again = np.array([longer[n] for n in first if n in longer])
    assert len(ends) > 4
    np.testing.assert_allclose(ends, again, rtol=0.02, atol=0.02)


def test_activations_left_float_are_an_error(
    exported: Callable[..., Path], rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import coremltools.optimize as cto

    monkeypatch.setattr(cto.coreml.experimental, "linear_quantize_activations", lambda model, config, rows: model)
    with pytest.raises(GateError, match="on the fly, not in a measured range"):
        quantize(exported(), tmp_path / "a.mlpackage", plan(rows))


def test_wrong_rows_and_old_packages_are_refused(
    exported: Callable[..., Path], rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is for iOS 16; activations in 8 bits need iOS 17"):
        quantize(exported(ios=16), tmp_path / "a.mlpackage", plan(rows))
    too_long = {name: np.ones((1, 41), np.int64) for name in rows[0]}
    for none in ([], [too_long]):
        with pytest.raises(InputError, match="no row to measure ranges on"):
            quantize(exported(), tmp_path / "a.mlpackage", plan(none))
    assert not list(tmp_path.iterdir())
