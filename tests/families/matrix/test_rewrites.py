"""One real file for each adapter of the table; all cells are in test_matrix.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.families import all_families
from pocketbert.core.types import Scheme
from support.matrix.cells import Unit, one_per_rewrite
from support.matrix.measure import measure


def test_every_adapter_has_a_cell() -> None:
    rows = {r.name: r for r in all_families()}
    written = {r.adapter for r in rows.values() if r.instead_of_export is None}
    assert {rows[u.row].adapter for u in one_per_rewrite()} == written


@pytest.mark.parametrize("unit", one_per_rewrite(), ids=str)
def test_a_file_of_each_rewrite_computes_what_the_untouched_model_computes(unit: Unit, tmp_path: Path) -> None:
    results = measure(unit, tmp_path / "unit", only=[Scheme.FP32], layers=1)
    assert {str(r.cell): r.problem for r in results} == {str(r.cell): "" for r in results}
    assert {len(r.shapes) > 5 for r in results} == {True}
