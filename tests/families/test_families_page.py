"""docs/families.md and the README's table are those of the family table and of the recorded figures."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pocketbert.core.families.rows import ROWS
from pocketbert.core.models.systems import system_facts

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    path = ROOT / f"scripts/{name}.py"
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    before = list(sys.path)
    yield script("families_reference")
    sys.path[:] = before
    for name in [n for n in sys.modules if n == "systems" or n.startswith("systems.")]:
        del sys.modules[name]


def test_the_page_is_current(reference: ModuleType) -> None:
    assert reference.page() == (ROOT / "docs/families.md").read_text("utf-8"), "run `make reference`"


def test_the_table_of_the_readme_is_current(reference: ModuleType) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert reference.readme(text) == text, "run `make reference`"
    for row in ROWS:
        types = ", ".join(f"`{t}`" for t in row.model_types)
        assert f"| {row.title} | {types} | yes |" in text


def test_every_system_is_on_the_page_with_what_it_can_and_cannot_do() -> None:
    text = (ROOT / "docs/families.md").read_text("utf-8")
    for row in ROWS:
        assert text.count(f"| {row.title} | ") >= 5, "the tables of offers and students, and one for each format"
        for note in row.limits:
            assert note in text
        for why in (*row.invalid_signals.values(), *row.invalid_tasks.values(), row.instead_of_export or ""):
            assert why in text
    marks = {int(n) for n in re.findall(r"\[\[(\d+)\]\]\(#reasons\)", text)}
    assert marks == {int(n) for n in re.findall(r"^(\d+)\. ", text, re.MULTILINE)}


def test_every_system_names_its_published_checkpoints(reference: ModuleType) -> None:
    known = {c.row for c in reference.CHECKPOINTS}
    lost = [r.name for r in ROWS if r.instead_of_export is None and not known & {r.name, *r.model_types}]
    assert lost == [], "add a line to scripts/systems/checkpoints.py"


def test_figures_keep_the_last_result_of_a_cell_and_tell_a_failure(tmp_path: Path) -> None:
    figures = script("matrix_figures")
    cell = {"row": "a", "task": "b", "format": "onnx", "scheme": "fp32"}
    line = {"cell": cell, "passed": True, "worst": 1e-3, "median": 2e-6, "problem": "", "isa": ["avx2"]}
    line |= {"versions": {"torch": "1"}, "code": "x"}
    file = tmp_path / "r.jsonl"
    lines = [
        line,
        {**line, "worst": 2e-6},
        {**line, "cell": {**cell, "scheme": "int8"}, "passed": False, "problem": "off"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + '\n{"cell": ')
    found = figures.figures(figures.results([file]))
    assert found["cells"] == {"a": {"b": {"onnx": {"fp32": 2e-6, "int8": "failed: off"}}}}
    assert found["median fp32"] == 2e-6
    assert json.loads(figures.text(found)) == found


def test_the_facts_of_a_system_are_those_of_its_row() -> None:
    for row in ROWS:
        facts = system_facts(row)
        assert set(facts.tasks) | set(row.invalid_tasks) >= {"text-classification", "fill-mask"}
        assert bool(facts.files) == (row.instead_of_export is None)
        assert all(limit in facts.notes for limit in row.limits)
    assert system_facts(ROWS[0]).written.startswith("ONNX fp32, int8")
