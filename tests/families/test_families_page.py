"""docs/lab/families.md and the README's table are those of the family table and of the recorded figures; a failed cell has its command there."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pocketbert.core.families.rows import ROWS
from pocketbert.core.models.systems import system_facts
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, Scheme
from support.matrix import measure
from support.matrix.cells import Unit
from support.matrix.record import Result, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """`script(name)`: a module of scripts/ or lab/."""

    def load(name: str) -> ModuleType:
        path = next(p for folder in ("scripts", "lab") if (p := ROOT / folder / f"{name}.py").is_file())
        spec = importlib.util.spec_from_file_location(f"scripts_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    before = list(sys.path)
    yield load
    sys.path[:] = before
    for name in [n for n in sys.modules if n == "systems" or n.startswith("systems.")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def reference(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("families_reference")


def test_the_page_is_current(reference: ModuleType) -> None:
    assert reference.page() == (ROOT / "docs/lab/families.md").read_text("utf-8"), "run `make reference`"


def test_the_table_of_the_readme_is_current(reference: ModuleType) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert reference.readme(text) == text, "run `make reference`"
    for row in ROWS:
        types = ", ".join(f"`{t}`" for t in row.model_types)
        assert f"| {row.title} | {types} | yes |" in text


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


def test_every_system_names_its_published_checkpoints(reference: ModuleType) -> None:
    known = {c.row for c in reference.CHECKPOINTS}
    lost = [r.name for r in ROWS if r.instead_of_export is None and not known & {r.name, *r.model_types}]
    assert lost == [], "add a line to lab/systems/checkpoints.py"


def test_the_facts_of_a_system_are_those_of_its_row() -> None:
    for row in ROWS:
        facts = system_facts(row)
        assert set(facts.tasks) | set(row.invalid_tasks) >= {"text-classification", "fill-mask"}
        assert bool(facts.files) == (row.instead_of_export is None)
        assert all(limit in facts.notes for limit in row.limits)
    assert system_facts(ROWS[0]).written.startswith("ONNX fp32, int8")


# The figures of the matrix.


def test_figures_keep_the_last_result_of_a_cell_and_tell_a_failure_on_one_line(
    script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    figures, nan = script("matrix_figures"), float("nan")
    fp32, int8 = Unit("bert", TaskName.FILL_MASK, Format.ONNX).cells
    passed = Result(fp32, True, 2e-6, 1e-4, 2e-6, 0.5, 0.5, [])
    crashed = Result(int8, False, *[nan] * 5, [], "ValueError: first\n\n  second | third")
    file = tmp_path / "r.jsonl"
    write([Result(fp32, False, *[nan] * 5, [], "off"), passed, crashed], file)
    with file.open("a") as out:
        out.write('{"cell": ')  # a run that was killed
    found = figures.figures(figures.results([file]))
    told = "failed: ValueError: first second | third"
    assert found["cells"] == {"bert": {"fill-mask": {"onnx": {"fp32": 2e-6, "int8": told}}}}
    assert found["median fp32"] == 2e-6
    assert json.loads(figures.text(found)) == found


class Untouched:
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
    monkeypatch.setattr(measure, "open_file", lambda *_, **__: Untouched(made[-1], broken))


def test_a_cell_that_is_broken_on_purpose_is_told_with_its_command_and_the_command_breaks_alike(
    script: Callable[[str], ModuleType],
    reference: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unit, column = Unit("bert", TaskName.TEXT_CLASSIFICATION, Format.ONNX), "pairs"
    figures, cell = script("matrix_figures"), script("matrix_cell")
    with monkeypatch.context() as patched:
        replace_files(patched, broken=True)
        results = measure.measure(unit, tmp_path / "unit", only=[Scheme.FP32])
    failed = [r for r in results if r.cell.task == column]
    assert not failed[0].passed
    write(failed, tmp_path / "results.jsonl")
    content = figures.figures(figures.results([tmp_path / "results.jsonl"]))
    (tmp_path / "families.json").write_text(json.dumps(content))
    monkeypatch.setattr(reference, "FIGURES", tmp_path / "families.json")
    told = [line for line in reference.page().splitlines() if "BERT, pairs, ONNX fp32: failed" in line]
    assert failed[0].problem in told[0]
    program, path, *arguments = shlex.split(re.findall("Smallest reproduction: `([^`]*)`", told[0])[0])
    assert (program, path) == (".venv/bin/python", "lab/matrix_cell.py")
    assert (ROOT / path).is_file()
    for broken in (True, False):
        with monkeypatch.context() as patched:
            replace_files(patched, broken)
            assert cell.main([*arguments, "--keep", str(tmp_path / f"cell{broken}")]) == int(broken)
        said = capsys.readouterr().out
        assert said.startswith(f"bert {column} onnx fp32: largest difference")
        assert (failed[0].problem in said) == broken
    assert (tmp_path / "cellTrue/model/config.json").is_file()
