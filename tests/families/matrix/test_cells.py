"""What the matrix has, how it is dealt out, and one real file for each adapter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.families import all_families, find_family
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Scheme
from support.matrix.cells import (
    PAIRS,
    TASK_CELLS,
    Unit,
    empty_cells,
    graph_of,
    one_per_rewrite,
    units,
)
from support.matrix.changed import Changed
from support.matrix.measure import MEDIAN, Model, differences, make_model, measure


def test_every_cell_of_the_table_is_in_a_unit_or_empty_with_a_reason() -> None:
    filled = {(c.row, c.task) for u in units() for c in u.cells}
    reasons = {(row, column): why for row, column, why in empty_cells()}
    assert filled | set(reasons) == {
        (graph_of(r), column) for r in all_families() if r.has_layers for column in TASK_CELLS
    }
    assert not filled & set(reasons)
    assert all(why.strip() for why in reasons.values())
    assert {c.format for u in units() for c in u.cells} == {"onnx", "tflite", "coreml"}


def test_every_adapter_has_a_cell_among_those_of_the_fast_suite() -> None:
    written = {row.adapter for row in all_families() if row.instead_of_export is None and row.has_layers}
    assert {find_family(u.row).adapter for u in one_per_rewrite()} == written


@pytest.mark.parametrize("unit", one_per_rewrite(), ids=str)
def test_a_file_of_each_adapter_computes_what_the_untouched_model_computes(unit: Unit, tmp_path: Path) -> None:
    results = measure(unit, tmp_path / "unit", only=[Scheme.FP32], layers=1)
    assert {str(r.cell): r.problem for r in results} == {str(r.cell): "" for r in results}
    assert all(len(r.shapes) > 5 for r in results)


# Wrong files would be seen.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("cells") / "model", "bert", TASKS[TaskName.TEXT_CLASSIFICATION])


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
