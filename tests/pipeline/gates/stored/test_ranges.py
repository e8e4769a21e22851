"""Static files with the range of one activation halved or doubled: the gate `stored` finds it, in every format.

The fault is made where ranges are chosen, so that the written file is whole and its golden rows are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families.weight_records import ProductRanges, Range
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.types import Calibration, Format, Layout, Scheme
from pocketbert.export import coreml
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.formats.constants import StoredRange, StoredRanges, StoredTensor
from pocketbert.pipeline.gates.stored import PreparedModels, _compare_ranges, compare_constants
from pocketbert.quantize import Plan, find_row, quantize
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.simulated import measure_product_ranges
from pocketbert.runtime.tflite import TflitePredictor
from support.defects import format_of
from support.stored_models import CLASSIFY
from support.tiny import EXPORTED

from .conftest import LENGTHS, SMALLER

STATIC = {name: plan for name, plan in SMALLER.items() if plan.scheme.static}
PLAIN = {Format.ONNX: "model.onnx", Format.TFLITE: "model.tflite", Format.COREML: "Model.mlpackage"}
DOWN = "layer.1.down.weight"
Measured = Callable[..., dict[str, list[ProductRanges]]]


@pytest.fixture(scope="module")
def rows(every_file: Path) -> list[dict[str, Any]]:
    """The rows that the static files of the fixture were calibrated on."""
    tokenizer = TextTokenizer(every_file / "model", max(LENGTHS))
    return [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES))]


@pytest.fixture(scope="module")
def measured(every_file: Path, rows: list[dict[str, Any]]) -> Measured:
    """`measured(file, method)`: the ranges that torch measures on these rows."""
    folder = open_model_folder(str(every_file / "model"))
    model = load_model(folder, CLASSIFY)

    @cache
    def of(format: Format, method: Calibration, steps: int) -> dict[str, list[ProductRanges]]:
        module = prepare(model, folder.family, CLASSIFY, format)
        return measure_product_ranges(PreparedPredictor(module, folder.family, CLASSIFY), rows, None, method, steps)

    return lambda file, method=Calibration.MINMAX: of(STATIC[file].format, method, STATIC[file].steps)


def _whole(plan: Plan) -> bool:
    return find_row(plan.format, plan.scheme, plan.runtime).weights.whole


def products(path: Path, models: PreparedModels) -> list[tuple[str, StoredRanges]]:
    """The ranges that a file holds."""
    graphs = format_place(format_of(path)).constants(path)
    assert graphs is not None
    lengths = TflitePredictor(path, 1).lengths if format_of(path) is Format.TFLITE else ()
    return compare_constants(graphs, models.reference(format_of(path), Layout.PLAIN), lengths).products


@pytest.mark.parametrize("file", STATIC)
def test_a_file_that_nobody_changed_passes(
    file: str, every_file: Path, models: PreparedModels, measured: Measured
) -> None:
    found = products(every_file / "files" / file, models)
    problems, count = _compare_ranges(found, measured(file), _whole(STATIC[file]))
    assert problems == []
    # every product of the module was looked at, in every signature
    assert {name for name, ranges in found if ranges.inputs is not None} == set(measured(file))
    assert count >= len(found) >= len(measured(file)) > 10


# half and twice are the same range in 16 bits, with or without room
@pytest.mark.parametrize(("file", "factor"), [(file, (0.4, 2.5)[number % 2]) for number, file in enumerate(STATIC)])
def test_one_wrong_range_is_found(
    file: str,
    factor: float,
    every_file: Path,
    models: PreparedModels,
    measured: Measured,
    rows: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [name] = [n for n in measured(file) if n.endswith(DOWN)]
    wanted = measured(file)[name][0].inputs
    assert wanted is not None
    spoil(monkeypatch, wanted, factor)
    plan = STATIC[file]
    path = tmp_path / file
    quantize(
        every_file / "files" / PLAIN[plan.format], path, Plan(plan.format, plan.scheme, plan.runtime, lambda: rows)
    )
    problems, _ = _compare_ranges(products(path, models), measured(file), _whole(plan))
    assert [p for p in problems if p.startswith(f"{name} is multiplied with numbers from ")]
    assert all("on the calibration texts" in p for p in problems)


@pytest.mark.parametrize("file", STATIC)
def test_ranges_of_a_method_are_those_that_torch_chooses_by_it(
    file: str,
    every_file: Path,
    models: PreparedModels,
    measured: Measured,
    rows: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    own, path = STATIC[file], tmp_path / file
    plan = Plan(own.format, own.scheme, own.runtime, lambda: rows, Calibration.MSE)
    quantize(every_file / "files" / PLAIN[plan.format], path, plan)
    found = products(path, models)
    wanted = measured(file, plan.calibration)
    assert _compare_ranges(found, wanted, _whole(plan))[0] == []
    usual = dict(products(every_file / "files" / file, models))
    narrower = [n for n, r in found if r.inputs and _width(r.inputs) < 0.98 * _width(usual[n].inputs)]
    assert (len(narrower) > len(found) / 4) is (plan.scheme is Scheme.A8W8), (
        "65,535 steps are fine enough for the whole range"
    )


def _width(own: Range | None) -> float:
    assert own is not None
    return own[1] - own[0]


def spoil(monkeypatch: pytest.MonkeyPatch, wanted: Range, factor: float) -> None:
    """Multiply the range of the activations that have `wanted`, wherever a quantizer chooses ranges."""
    chosen = Ranges.chosen

    def wrong(self: Ranges, title: str) -> dict[str, Range]:
        def is_it(own: Range) -> bool:
            room = 0.02 * (wanted[1] - wanted[0])
            return all(abs(a - b) <= room for a, b in zip(own, wanted, strict=True))

        return {n: (r[0] * factor, r[1] * factor) if is_it(r) else r for n, r in chosen(self, title).items()}

    monkeypatch.setattr(Ranges, "chosen", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_ranges_of_every_family(
    family: str,
    exported: Callable[[str], Path],
    exported_tflite: Callable[[str], Path],
    open_tiny: Callable[..., Any],
    tmp_path: Path,
) -> None:
    model, source, tokenizer = open_tiny(family, 2)
    references = PreparedModels(source.path, CLASSIFY, 40)
    rows = [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]
    modules = {f: prepare(model, source.family, CLASSIFY, f) for f in PLAIN}
    package = tmp_path / "Model.mlpackage"
    info = coreml.CoremlInfo("a", "1", "b", "c")
    coreml.export(modules[Format.COREML], source.family, CLASSIFY, LENGTHS, package, coreml.CoremlForm(), info)
    bases = {Format.ONNX: exported(family), Format.TFLITE: exported_tflite(family), Format.COREML: package}
    for file, plan in STATIC.items():
        row, path = find_row(plan.format, plan.scheme, plan.runtime), tmp_path / file
        assert row.write is not None
        row.write(
            bases[plan.format], path, replace(plan, rows=lambda: rows, pads_left=tokenizer.padding_side == "left")
        )
        measured = measure_product_ranges(PreparedPredictor(modules[plan.format], source.family, CLASSIFY), rows)
        problems, count = _compare_ranges(products(path, references), measured, row.weights.whole)
        assert (file, problems) == (file, [])
        assert count >= 3


@pytest.mark.parametrize(
    ("stored", "whole", "right"),
    [
        ((-2.0, 6.0, 16), True, True),  # room in 16 bits
        ((-4.0, 12.0, 16), True, False),
        ((-1.004, 2.996), False, True),
        ((-3.0, 3.0), False, True),  # zero in the middle
        ((-9.0, 9.5), False, True),  # of the tensor that a product reads a part of
        ((-0.5, 1.5), False, False),
        ((-2.0, 6.0), False, False),
        ((-1.0, 6.0), False, False),
        ((-1.0, 1.0), False, False),
        ((-1.0, 0.992), True, True),  # what compilers prescribe behind tanh
        ((float("nan"), 3.0), False, False),
    ],
)
def test_which_ranges_are_right(stored: tuple[Any, ...], whole: bool, right: bool) -> None:
    measured = {"a.weight": [ProductRanges(inputs=(-1.0, 3.0)), ProductRanges(inputs=(-9.0, 9.5))]}
    problems, count = _compare_ranges(
        [
            ("a.weight", StoredRanges(StoredRange(*stored), StoredRange(5.0, 6.0))),
            ("b", StoredRanges(StoredRange(*stored))),
        ],
        measured,
        whole,
    )
    assert (problems == [], count) == (right, 1)


def test_a_range_that_fp16_cannot_tell_is_right() -> None:
    # 255 steps of 1e-7: fp16, in which Core ML stores the scale, has 1.2e-7 and nothing nearer
    measured = {"a.weight": [ProductRanges(outputs=(-1.4e-5, 1.13e-5))]}
    for stored, right in (((-1.68e-5, 1.36e-5), True), ((-2.8e-5, 2.26e-5), False)):
        problems, _ = _compare_ranges([("a.weight", StoredRanges(outputs=StoredRange(*stored)))], measured)
        assert (problems == []) is right


def test_rows_of_a_table_in_its_own_integers_are_not_compared() -> None:
    measured = {"a.weight": [ProductRanges(inputs=(-1.0, 3.0))]}
    for of_table in (True, False):
        stored = StoredRanges(StoredRange(-9.0, 9.0, of_table=of_table))
        problems, count = _compare_ranges([("a.weight", stored)], measured)
        assert (problems == [], count) == (of_table, int(not of_table))


def test_a_sum_of_rounded_numbers_may_be_off_by_both_steps() -> None:
    one, other = (StoredTensor(np.ones(3, np.float32), step=np.array([step], np.float32)) for step in (0.25, 0.5))
    for left, right in ((one, other), (other, one)):
        assert left.add(right).step == pytest.approx([0.75])
    plain = StoredTensor(np.ones(3, np.float32))
    assert plain.add(one).step == one.add(plain).step == pytest.approx([0.25])
    assert plain.add(plain).step is None
