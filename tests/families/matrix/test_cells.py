"""What the matrix has, how it is dealt out, what it remembers, one real file for each adapter, and that a wrong one would be seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.families import all_families, find_family
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme
from support.matrix import record
from support.matrix.cells import (
    PAIRS,
    TASK_CELLS,
    Cell,
    Unit,
    empty,
    empty_cells,
    graph_of,
    has_class,
    one_per_rewrite,
    schemes,
    units,
)
from support.matrix.measure import MEDIAN, Model, differences, make_model, measure
from support.matrix.record import Result
from support.tiny import EXPORTED

CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]


def result(cell: Cell, **changes: Any) -> Result:
    return replace(Result(cell, True, 1e-6, 1e-4, 1e-6, 0.5, 0.5, [(1, 7)]), **changes)


def test_every_cell_of_the_table_is_in_a_unit_or_empty_with_a_reason() -> None:
    filled = {(c.row, c.task) for u in units() for c in u.cells}
    reasons = {(row, column): why for row, column, why in empty_cells()}
    assert filled | set(reasons) == {
        (graph_of(r), column) for r in all_families() if r.has_layers for column in TASK_CELLS
    }
    assert not filled & set(reasons)
    assert all(why.strip() for why in reasons.values())
    assert {c.format for u in units() for c in u.cells} == {"onnx", "tflite", "coreml"}


def test_every_task_is_a_column_and_files_in_eight_bits_are_those_that_a_recipe_gets() -> None:
    assert set(TASK_CELLS.values()) == set(TASKS)
    assert schemes(Format.ONNX) == schemes(Format.TFLITE) == (Scheme.FP32, Scheme.INT8)
    assert schemes(Format.COREML) == (Scheme.FP32, Scheme.FP16, Scheme.W8)


def test_a_system_that_nothing_exports_has_no_cell_and_says_what_to_do() -> None:
    row = next(r for r in all_families() if r.instead_of_export is not None)
    why = empty(row, TaskName.TEXT_CLASSIFICATION)
    assert why is not None
    assert str(row.instead_of_export) in why
    odd = replace(find_family("bert"), invalid_tasks={"fill-mask": "no head"})
    assert empty(odd, TaskName.FILL_MASK) == "no head"


def test_a_task_without_a_class_in_transformers_has_its_reason_in_the_row() -> None:
    rows = [find_family(name) for name in EXPORTED]
    assert [(r.name, t) for r in rows for t in TASKS if not has_class(r, t) and t.value not in r.invalid_tasks] == []


def test_what_has_passed_is_not_run_again_unless_the_code_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, unit = tmp_path / "new/results.jsonl", Unit("bert", TaskName.FILL_MASK, Format.ONNX)
    assert not record.passed(unit.cells, file)
    first, second = unit.cells
    for written in (result(first), result(second, passed=False)):
        record.write([written], file)
        assert not record.passed(unit.cells, file)
    record.write([result(second)], file)
    assert record.passed(unit.cells, file)
    with file.open("a") as out:
        out.write('{"cell": {"row": "be')  # a run that was killed
    assert record.passed(unit.cells, file)
    monkeypatch.setattr(record, "code_state", lambda: "other")
    assert not record.passed(unit.cells, file)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("cells") / "model", "bert", CLASSIFY)


class Changed:
    """A predictor that answers as the model does, but for one thing."""

    engine, engine_version = "changed", "1"
    lengths: tuple[int, ...] = ()

    def __init__(self, model: Model, *, mask: bool = True, nan_at: int = -1) -> None:
        self.model, self.mask, self.nan_at, self.calls = model, mask, nan_at, 0
        self.inputs, self.outputs = model.row.inputs, model.task.outputs

    def run(self, inputs: Mapping[str, Any]) -> Any:
        self.calls += 1
        fed = {**inputs} if self.mask else {**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])}
        out = self.model.reference.run(fed)
        if self.calls == self.nan_at:
            out = {name: np.full_like(value, np.nan) for name, value in out.items()}
        return out


def test_the_same_numbers_pass_and_a_lost_mask_does_not(model: Model) -> None:
    worst, median, shapes = differences(model, "text-classification", Changed(model))
    assert (worst, median) == (0.0, 0.0)
    assert len({length for _, length in shapes}) > 5
    assert differences(model, "text-classification", Changed(model, mask=False))[0] > 100 * model.row.parity_atol


@pytest.mark.parametrize("call", [1, 4])
def test_one_nan_is_never_lost(model: Model, call: int) -> None:
    worst, median, _ = differences(model, PAIRS, Changed(model, nan_at=call))
    assert np.isnan(worst)
    assert not worst <= model.row.parity_atol
    assert not median <= MEDIAN


def test_every_adapter_has_a_cell_among_those_of_the_fast_suite() -> None:
    written = {row.adapter for row in all_families() if row.instead_of_export is None and row.has_layers}
    assert {find_family(u.row).adapter for u in one_per_rewrite()} == written


@pytest.mark.parametrize("unit", one_per_rewrite(), ids=str)
def test_a_file_of_each_adapter_computes_what_the_untouched_model_computes(unit: Unit, tmp_path: Path) -> None:
    results = measure(unit, tmp_path / "unit", only=[Scheme.FP32], layers=1)
    assert {str(r.cell): r.problem for r in results} == {str(r.cell): "" for r in results}
    assert all(len(r.shapes) > 5 for r in results)
