"""Every system x task x format x scheme against the untouched model. `make matrix SHARD=1/4` runs a part of it, and `make test-all SHARD=1/16`
another beside the other slow tests; what has passed is not run again.

Results are kept in runs/matrix/results.jsonl (`MATRIX_RESULTS` names another file); `lab/matrix_figures.py` makes
docs/figures/families.json of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.matrix.cells import Unit, units
from support.matrix.measure import measure
from support.matrix.record import Result, passed, write


@pytest.mark.slow
@pytest.mark.parametrize("unit", units(), ids=str)
def test_the_files_compute_what_the_untouched_model_computes(unit: Unit, tmp_path: Path) -> None:
    if passed(unit.cells):
        pytest.skip("passed at this state of the code")
    nothing = float("nan")
    try:
        results = measure(unit, tmp_path / "unit")
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:500]
        write([Result(cell, False, *[nothing] * 5, [], why) for cell in unit.cells])
        raise
    write(results)
    assert [r.cell for r in results] == unit.cells
    assert {str(r.cell): r.problem for r in results if not r.passed} == {}
