"""docs/lab/families.md and the README's table are those of the family table and of the recorded figures."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.families.rows import ROWS
from pocketbert.core.models.systems import system_facts
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from support.matrix.cells import Unit
from support.matrix.changed import replace_files
from support.matrix.measure import measure
from support.matrix.record import write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def reference() -> Iterator[dict[str, Any]]:
    """The names of scripts/families_reference.py."""
    before = [*sys.path]
    yield runpy.run_path(str(ROOT / "scripts/families_reference.py"))
    sys.path[:] = before
    for name in [n for n in sys.modules if n.partition(".")[0] == "systems"]:
        del sys.modules[name]


def test_page_and_readme_are_current_and_name_the_checkpoints_of_every_system(reference: dict[str, Any]) -> None:
    assert reference["page"]() == (ROOT / "docs/lab/families.md").read_text("utf-8"), "run `make reference`"
    text = (ROOT / "README.md").read_text("utf-8")
    assert reference["readme"](text) == text, "run `make reference`"
    for row in ROWS:
        types = ", ".join(f"`{t}`" for t in row.model_types)
        assert f"| {row.title} | {types} | yes |" in text
    known = {c.row for c in reference["CHECKPOINTS"]}
    lost = [r.name for r in ROWS if r.instead_of_export is None and not known & {r.name, *r.model_types}]
    assert lost == [], "add a line to lab/systems/checkpoints.py"


def test_every_system_is_on_the_page_with_what_it_can_and_cannot_do() -> None:
    text = (ROOT / "docs/lab/families.md").read_text("utf-8")
    for row in ROWS:
        assert text.count(f"| {row.title} | ") >= 5, "the tables of offers and students, and one for each format"
        for note in row.limits:
            assert note in text
        for why in (*row.invalid_signals.values(), *row.invalid_tasks.values(), row.instead_of_export or ""):
            assert why in text
    marks = {int(n) for n in re.findall(r"\[\[(\d+)\]\]\(#reasons\)", text)}
    assert marks == {int(n) for n in re.findall(r"^(\d+)\. ", text, re.MULTILINE)}


def test_the_facts_of_a_system_are_those_of_its_row() -> None:
    for row in ROWS:
        facts = system_facts(row)
        assert set(facts.tasks) | set(row.invalid_tasks) >= {"text-classification", "fill-mask"}
        assert bool(facts.files) == (row.instead_of_export is None)
        assert all(limit in facts.notes for limit in row.limits)
    assert system_facts(ROWS[0]).written.startswith("ONNX fp32, int8")


def test_a_cell_that_is_one_percent_off_is_told_with_its_command_and_the_command_fails_alike(
    reference: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # scripts add to it
    with monkeypatch.context() as patched:
        replace_files(patched, 1.01)
        unit = Unit("bert", TaskName.TEXT_CLASSIFICATION, Format.ONNX)
        results = measure(unit, tmp_path / "unit", only=[Scheme.FP32])
    (failed,) = (r for r in results if r.cell.task == "pairs")
    assert not failed.passed
    write([failed], tmp_path / "results.jsonl")
    figures = runpy.run_path(str(ROOT / "lab/matrix_figures.py"))
    found = figures["figures"](figures["results"]([tmp_path / "results.jsonl"]))
    (tmp_path / "families.json").write_text(json.dumps(found))
    monkeypatch.setitem(reference["page"].__globals__, "FIGURES", tmp_path / "families.json")
    told = next(line for line in reference["page"]().splitlines() if "BERT, pairs, ONNX fp32: failed" in line)
    assert failed.problem in told
    program, path, *arguments = shlex.split(re.findall("Smallest reproduction: `([^`]*)`", told)[0])
    assert (program, path) == (".venv/bin/python", "lab/matrix_cell.py")
    main = runpy.run_path(str(ROOT / path))["main"]
    for factor, code in ((1.01, 1), (1.0, 0)):
        with monkeypatch.context() as patched:
            replace_files(patched, factor)
            assert main([*arguments, "--keep", str(tmp_path / f"cell{code}")]) == code
        said = capsys.readouterr().out
        assert said.startswith("bert pairs onnx fp32: largest difference")
        assert (failed.problem in said) == bool(code)
    assert (tmp_path / "cell1/model/config.json").is_file()
