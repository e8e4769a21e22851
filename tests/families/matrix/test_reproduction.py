"""A cell that fails has its reason on the page, and a command that builds exactly this cell."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pocketbert.core.types import Format, Scheme
from support.matrix import measure
from support.matrix.cells import Unit
from support.matrix.record import Result, write

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def scripts() -> Iterator[dict[str, ModuleType]]:
    before, found = list(sys.path), {}
    for name in ("matrix_figures", "families_reference", "matrix_cell"):
        spec = importlib.util.spec_from_file_location(f"scripts_{name}", ROOT / f"scripts/{name}.py")
        assert spec is not None
        assert spec.loader is not None
        found[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
    yield found
    sys.path[:] = before
    for name in [n for n in sys.modules if n == "systems" or n.startswith("systems.")]:
        del sys.modules[name]


class _Untouched:
    """The model itself in the place of a file; its answers are off by one percent where it is broken on purpose."""

    engine, engine_version = "none", "1"
    lengths: tuple[int, ...] = ()

    def __init__(self, model: measure.Model, broken: bool) -> None:
        self.model, self.broken = model, broken
        self.inputs, self.outputs = model.row.inputs, model.task.outputs

    def run(self, inputs: Any) -> Any:
        answers = self.model.reference.run(inputs)
        return {name: value * (1.01 if self.broken else 1.0) for name, value in answers.items()}


def replace_files(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    made: list[measure.Model] = []
    make = measure.make_model

    def remembered(*arguments: Any) -> measure.Model:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(measure, "make_model", remembered)
    monkeypatch.setattr(measure._Files, "write", lambda *_: Path())
    monkeypatch.setattr(measure, "open_file", lambda *_, **__: _Untouched(made[-1], broken))


def test_a_cell_that_is_broken_on_purpose_is_told_with_its_command_and_the_command_breaks_alike(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unit, column = Unit("bert", measure.TaskName.TEXT_CLASSIFICATION, Format.ONNX), "pairs"
    with monkeypatch.context() as patched:
        replace_files(patched, broken=True)
        results = measure.measure(unit, tmp_path / "unit", only=[Scheme.FP32])
    failed = [r for r in results if r.cell.task == column]
    assert not failed[0].passed
    write(failed, tmp_path / "results.jsonl")
    reference = scripts["families_reference"]
    content = scripts["matrix_figures"].figures(scripts["matrix_figures"].results([tmp_path / "results.jsonl"]))
    (tmp_path / "families.json").write_text(json.dumps(content))
    monkeypatch.setattr(reference, "FIGURES", tmp_path / "families.json")
    told = [line for line in reference.page().splitlines() if "BERT, pairs, ONNX fp32: failed" in line]
    assert failed[0].problem in told[0]
    program, path, *arguments = shlex.split(re.findall("Smallest reproduction: `([^`]*)`", told[0])[0])
    assert (program, path) == (".venv/bin/python", "scripts/matrix_cell.py")
    assert (ROOT / path).is_file()
    for broken in (True, False):
        with monkeypatch.context() as patched:
            replace_files(patched, broken)
            assert scripts["matrix_cell"].main([*arguments, "--keep", str(tmp_path / f"cell{broken}")]) == int(broken)
        said = capsys.readouterr().out
        assert said.startswith(f"bert {column} onnx fp32: largest difference")
        assert (failed[0].problem in said) == broken
    assert (tmp_path / "cellTrue/model/config.json").is_file()


def test_a_crash_in_several_lines_is_one_line_of_the_page(scripts: dict[str, ModuleType]) -> None:
    cell = Unit("bert", measure.TaskName.FILL_MASK, Format.TFLITE).cells[0]
    crashed = asdict(Result(cell, False, *[float("nan")] * 5, [], "ValueError: first\n\n  second | third"))
    found = scripts["matrix_figures"].figures([crashed])["cells"]
    assert found == {"bert": {"fill-mask": {"tflite": {"fp32": "failed: ValueError: first second | third"}}}}
