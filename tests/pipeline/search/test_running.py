"""A recipe with a budget: the run chooses its files, tells of all candidates, and measures nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert import api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.recipe.file import load_recipe
from support.folders import tree
from support.tiny_task import Task

FILES = "quantize.files=[small, w4]"


def test_the_run_packs_what_it_chose_and_nothing_else(
    task: Task, run_copy: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str]
) -> None:
    phone = tree(run_copy / "phone")
    impossible = load_recipe(task.recipe, [FILES, "quantize.budget={max_drop: 0.02, max_size_mb: 0.0001}"])
    with pytest.raises(GateError, match="onnx: no file is inside") as caught:
        api.run(impossible, run_copy, overwrite=True)
    assert "The nearest is onnx/model_w4.onnx" in str(caught.value)
    assert tree(run_copy / "phone") == phone, "what was packed before stays"
    recipe = load_recipe(task.recipe, [FILES, "quantize.budget={max_drop: 0.02, max_size_mb: 100}"])
    result = api.run(recipe, run_copy, overwrite=True)
    artefacts = read_artefacts(result.phone)
    assert artefacts.search is not None
    assert [c.scheme.value for c in artefacts.search.candidates if not c.left] == ["w4", "small"]
    (chosen,) = artefacts.search.chosen
    assert {r.path: r.sha256 for r in artefacts.models() if not r.path.endswith("model.onnx")} == {
        chosen.path: chosen.sha256
    }
    assert "expect new texts to lose a little more" in artefacts.search.rows, "no rows are kept apart"
    assert "Chosen inside a budget" in result.report.read_text()
    assert [*counted[:2], counted[-1]] == ["w4", "small", chosen.scheme.value], (
        "the whole ones once, the chosen one as a step"
    )
    written = len(counted)
    assert not (run_copy / "search" / "candidates").exists()
    assert {step.state for step in api.plan(recipe, run_copy)} == {"finished"}
    before = (result.phone / "artifacts.json").stat().st_mtime_ns
    again = api.run(recipe, run_copy)
    assert (again.phone / "artifacts.json").stat().st_mtime_ns == before, "skipped"
    assert len(counted) == written


def test_a_recipe_with_a_budget_that_cannot_be_searched_is_refused(task: Task) -> None:
    overrides = [
        "quantize={scheme: int8, budget: {max_drop: 2, max_size_mb: 8000000}}",
        "data.eval=null",
    ]
    with pytest.raises(InputError) as caught:
        load_recipe(task.recipe, overrides)
    assert "0.01 is one point" in str(caught.value)
    assert "8,000,000 bytes" in str(caught.value)
    for override, told in {
        "quantize={scheme: int8, budget: {max_drop: 0.01}}": "leave scheme out",
        "quantize={files: [{scheme: small, format: onnx}], budget: {max_drop: 0.01}}": "leave these out of 'small' of onnx",
        "quantize={budget: {max_drop: 0.1}}": "set verify.max_drop to 0.1 too",
        "quantize={budget: {}}": "no limit is set",
    }.items():
        with pytest.raises(InputError) as caught:
            load_recipe(task.recipe, [override])
        assert told in str(caught.value), str(caught.value)


def test_another_command_than_run_refuses_a_budget_instead_of_ignoring_it(task: Task, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="quantize.budget: is searched by `pocketbert run` of a recipe file only"):
        api.demo(tmp_path / "demo", overrides=["quantize={budget: {max_drop: 0.01}}"])
