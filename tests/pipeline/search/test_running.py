"""A recipe with a budget: the run chooses its files, tells of all candidates, and measures nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketbert import api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.examples import hold_out_share, read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.direct import budget_search
from pocketbert.pipeline.gates import verify
from pocketbert.pipeline.learn import finishing as labelled
from pocketbert.pipeline.run import Run
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
    assert "rows of eval chose files and are in no score" in artefacts.search.rows
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


def test_rows_that_rank_choose_and_score_never_meet(
    task: Task, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, set[str]] = {"chose": set(), "scored": set()}
    for module, use in ((budget_search, "chose"), (verify, "scored"), (labelled, "scored")):
        monkeypatch.setattr(module, "evaluate", _recording(used[use]))
    recipe = load_recipe(task.recipe, [FILES, "quantize.budget={max_drop: 0.02, max_size_mb: 100}"])
    result = api.run(recipe, run_copy, overwrite=True)
    rows = Run(load_recipe(run_copy / "recipe.resolved.yaml"), run_copy).data.splits
    every, trained = ({e.digest for e in rows[name].examples} for name in ("eval", "train"))
    assert min(map(len, used.values())) > len(every) / 4
    assert not used["chose"] & used["scored"], "a row chose files and is in their score"
    assert used["chose"] | used["scored"] == every
    assert not trained & every, "training rows calibrate and rank"
    artefacts = read_artefacts(result.phone)
    assert artefacts.search is not None
    scores = {r.scores["eval"].rows for r in artefacts.models()}
    assert scores == {artefacts.search.scored_on}
    assert artefacts.search.scored_on + artefacts.search.chosen_on == len(rows["eval"].examples)


def _recording(used: set[str]) -> Any:
    def record(predictor: Any, tokenizer: Any, rows: EvalSet, *more: Any, **named: Any) -> Any:
        used.update(e.digest for e in rows.rows.examples)
        return evaluate(predictor, tokenizer, rows, *more, **named)

    return record


def test_rows_that_choose_are_divided_from_a_share_of_the_training_rows_too(task: Task) -> None:
    eval_rows = read_examples(DataSource.at(str(task.folder / "train.jsonl")))
    _, share = hold_out_share(eval_rows, 0.1)
    scored, chose = hold_out_share(share, 0.5, "selection")
    assert min(len(scored), len(chose)) > len(share) / 5, "the first division took the rows whose hash is small"


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
