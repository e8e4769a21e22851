"""The method of calibration: a key of recipes and a flag, refused where nothing reads it, and in every static file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pocketbert.quantize
from pocketbert import api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.types import Calibration, Format
from pocketbert.pipeline.options import CalibrationOptions
from pocketbert.quantize import Plan
from support.tiny_task import Task


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that were written."""
    out: list[Plan] = []
    write = pocketbert.quantize.quantize

    def keep(source: Path, destination: Path, plan: Plan) -> Any:
        out.append(plan)
        return write(source, destination, plan)

    monkeypatch.setattr(pocketbert.quantize, "quantize", keep)
    return out


@pytest.mark.parametrize(
    ("folder", "formats"),
    [
        ("finished_tflite", {Format.TFLITE, Format.ONNX}),
        pytest.param("finished_coreml", {Format.COREML, Format.ONNX}, marks=pytest.mark.slow),
    ],
)
def test_the_flag_arrives_in_every_static_file_and_these_pass_their_gates(
    folder: str, formats: set[Format], task: Task, plans: list[Plan], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    phone, rows = request.getfixturevalue(folder) / "phone", DataSource.at(str(task.folder / "train.jsonl"))
    made = api.quantize(
        phone, tmp_path / "phone", ["int8", "a8w8"], calibrate=CalibrationOptions(rows=rows, method="mse")
    )
    static = [p for p in plans if p.scheme.static]
    assert {p.format for p in static} == formats
    assert {p.calibration for p in static} == {Calibration.MSE}
    assert {p.calibration for p in plans if not p.scheme.static} == {Calibration.MINMAX}
    assert load_recipe(made / "recipe.resolved.yaml").quantize.calibration is Calibration.MSE
    assert [r.path for r in read_artefacts(made).models() if r.scheme.static]


def test_an_unknown_method_is_refused_with_those_that_are_allowed(
    task: Task, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(task.recipe, ["quantize={files: [int8, a8w8], calibration: entropy}"])
    told = str(caught.value)
    assert "quantize.calibration" in told
    assert all(method in told for method in Calibration), told
    rows = ("--calibrate", task.folder / "train.jsonl")
    command = ("quantize", "-m", finished / "phone", "-o", tmp_path / "phone", "--scheme", "a8w8", *rows)
    result = cli(*command, "--calibration", "entropy")
    assert result.exit_code == 2
    assert "--calibration" in result.stderr
    assert all(method in result.stderr for method in Calibration), result.stderr
    assert not (tmp_path / "phone").exists()


def test_a_method_that_nothing_reads_is_refused(task: Task) -> None:
    with pytest.raises(InputError, match="int8 measures no ranges: add a static scheme, such as a8w8"):
        load_recipe(task.recipe, ["quantize.calibration=mse"])
    kept = load_recipe(task.recipe, ["quantize={files: [int8, a8w8], calibration: percentile}"])
    assert kept.quantize.calibration is Calibration.PERCENTILE
    assert "calibration" not in load_recipe(task.recipe).quantize.model_dump(), (
        "steps of finished runs keep their digests"
    )
