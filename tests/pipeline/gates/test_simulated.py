"""The bound on answers of files in 8 bits: sound ones keep it with a margin of two, broken ones do not, records are checked.

Golden rows are recorded from the broken file and every digest is made anew, as if the fault had been there from the start.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert import api
from pocketbert.core.compare.golden import GOLDEN_FILE as GOLDEN
from pocketbert.core.compare.golden import SIMULATED_FILE as FILE_NAME
from pocketbert.core.compare.golden import read_golden, read_simulated
from pocketbert.core.errors import InputError
from pocketbert.core.formats import _MIN_BOUND, Bounds
from pocketbert.core.types import Format
from pocketbert.pipeline.gates import verify
from pocketbert.pipeline.results import Gate
from support.defects import (
    COREML_W8,
    ONNX_INT8,
    STEPS,
    TFLITE_INT8,
    defects_of,
    format_of,
    relist,
)
from support.defects import products as defects
from support.defects.stored import opened, record_again

FINISHED = {Format.ONNX: "finished", Format.TFLITE: "finished_tflite", Format.COREML: "finished_coreml"}
Folder = Callable[[str], Path]


@pytest.fixture
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """`packed(file)`: a copy of the artefact folder with a file, to be broken."""

    def copy(file: str) -> Path:
        defects_of(format_of(file))
        run = Path(request.getfixturevalue(FINISHED[format_of(file)]))
        return Path(shutil.copytree(run / "phone", tmp_path / "phone"))

    return copy


def gates(folder: Path, file: str) -> dict[str, Gate]:
    """The gates of one file."""
    return {g.name: g for g in verify.check_file(opened(folder, file), read_golden(folder / GOLDEN))}


@pytest.mark.parametrize("file", STEPS)
def test_a_sound_file_is_off_by_what_the_simulation_says(packed: Folder, file: str) -> None:
    folder = packed(file)
    error = read_simulated(folder).errors[file]
    found = gates(folder, file)["reference"]
    assert found.passed
    assert found.bound == pytest.approx(min(0.5, max(_MIN_BOUND, 3 * error)))
    assert found.value is not None
    assert found.value <= max(1.2 * error, _MIN_BOUND / 2)
    assert 0.001 < error < 0.2
    assert f"simulated in torch: {error:.3g}" in found.detail


@pytest.mark.parametrize("file", [ONNX_INT8, TFLITE_INT8, COREML_W8])
@pytest.mark.parametrize(
    "defect", [defects.lost_feed_forward, defects.lost_attention, defects.one_channel_times_8, defects.a_tenth_more]
)
def test_only_the_bound_sees_a_broken_file_that_recorded_itself(packed: Folder, file: str, defect: Any) -> None:
    folder = packed(file)
    defects.change_products(folder / file, defect)
    record_again(folder, file)
    assert {name for name, gate in gates(folder, file).items() if not gate.passed} == {"reference"}


@pytest.mark.parametrize("error", ["NaN", "Infinity", "-1", '"a"', "null", "[0.1]"])
def test_an_error_that_is_no_number_is_refused(packed: Folder, error: str) -> None:
    folder = packed(ONNX_INT8)
    (folder / FILE_NAME).write_text(f'{{"texts": 64, "errors": {{"{ONNX_INT8}": {error}}}}}')
    relist(folder, FILE_NAME)
    with pytest.raises(InputError, match=FILE_NAME):
        api.verify(folder)


def test_a_larger_error_buys_no_more_than_the_fixed_bound(packed: Folder) -> None:
    folder = packed(ONNX_INT8)
    (folder / FILE_NAME).write_text(f'{{"texts": 64, "errors": {{"{ONNX_INT8}": 9.0}}}}')
    assert {g.name for g in api.verify(folder).gates if not g.passed} == {"integrity"}
    relist(folder, FILE_NAME)
    [bound] = [g.bound for g in api.verify(folder).gates if g.file == ONNX_INT8 and g.name == "reference"]
    assert bound == 0.5


def test_a_folder_of_an_earlier_version_is_checked_with_the_fixed_bound(packed: Folder) -> None:
    folder = packed(ONNX_INT8)
    (folder / FILE_NAME).unlink()
    path = folder / "artifacts.json"
    content = json.loads(path.read_text())
    content["files"] = [r for r in content["files"] if r["path"] != FILE_NAME]
    path.write_text(json.dumps(content))
    result = api.verify(folder)
    assert all(g.passed for g in result.gates)
    [gate] = [g for g in result.gates if g.file == ONNX_INT8 and g.name == "reference"]
    assert gate.bound == 0.5
    assert "simulated" not in gate.detail


@pytest.mark.parametrize(
    ("simulated", "allowed"),
    [
        (None, 0.5),
        (0.0, _MIN_BOUND),
        (0.001, _MIN_BOUND),
        (0.05, 0.15),
        (0.4, 0.5),
        (float("inf"), 0.5),
        (float("nan"), 0.5),
    ],
)
def test_the_bound_is_three_times_the_error_within_limits(simulated: float | None, allowed: float) -> None:
    assert Bounds(reference=0.5).allowed(simulated) == pytest.approx(allowed)
