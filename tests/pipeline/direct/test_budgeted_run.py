"""A recipe with a budget: the run chooses its files and its student, tells of all, and measures nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketbert import api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.predict.examples import hold_out_share
from pocketbert.core.recipe.file import dump_recipe, load_recipe
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import OWN_STUDENT
from pocketbert.pipeline.direct import budget_search, budgeted_run
from pocketbert.pipeline.direct.budget_search import SearchInputs
from pocketbert.pipeline.direct.choosing import FormatResult
from pocketbert.pipeline.gates import verify
from pocketbert.pipeline.learn import finishing
from pocketbert.pipeline.run import Run
from support.folders import tree
from support.tiny_task import Task

FILES = "quantize.files=[small, w4]"


def record_rows(used: set[str]) -> Any:
    def record(predictor: Any, tokenizer: Any, rows: EvalSet, *more: Any, **named: Any) -> Any:
        used.update(e.digest for e in rows.rows.examples)
        return evaluate(predictor, tokenizer, rows, *more, **named)

    return record


def test_the_run_packs_what_it_chose_on_rows_that_score_nothing(
    task: Task, run_copy: Path, schemes_of: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: dict[str, set[str]] = {"chose": set(), "scored": set()}
    for module, use in ((budget_search, "chose"), (verify, "scored"), (finishing, "scored")):
        monkeypatch.setattr(module, "evaluate", record_rows(used[use]))
    recipe = load_recipe(task.recipe, [FILES, "quantize.budget={max_drop: 0.02, max_size_mb: 100}"])
    result = api.run(recipe, run_copy, overwrite=True)
    artefacts = read_artefacts(result.phone)
    search = artefacts.search
    assert [c.scheme.value for c in search.candidates if not c.left] == ["w4", "small"]
    (chosen,) = search.chosen
    packed = {r.path: r.sha256 for r in artefacts.models() if not r.path.endswith("model.onnx")}
    assert packed == {chosen.path: chosen.sha256}
    assert "rows of eval chose files and are in no score" in search.rows
    assert "Chosen inside a budget" in result.report.read_text()
    written = schemes_of()
    assert [*written[:2], written[-1]] == ["w4", "small", chosen.scheme.value], "candidates once, the chosen as a step"
    assert not (run_copy / "search" / "candidates").exists()

    rows = Run(load_recipe(run_copy / "recipe.resolved.yaml"), run_copy).data.splits
    every, trained = ({e.digest for e in rows[name].examples} for name in ("eval", "train"))
    assert min(map(len, used.values())) > len(every) / 4
    assert not used["chose"] & used["scored"], "a row chose files and is in their score"
    assert used["chose"] | used["scored"] == every
    assert not trained & every, "training rows calibrate and rank"
    assert {r.scores["eval"].rows for r in artefacts.models()} == {search.scored_on}
    assert search.scored_on + search.chosen_on == len(rows["eval"].examples)

    assert {step.state for step in api.plan(recipe, run_copy)} == {"finished"}
    packed_at = (result.phone / "artifacts.json").stat().st_mtime_ns
    again = api.run(recipe, run_copy)
    assert (again.phone / "artifacts.json").stat().st_mtime_ns == packed_at, "skipped"
    assert schemes_of() == written

    packed_files = tree(run_copy / "phone")
    impossible = load_recipe(task.recipe, [FILES, "quantize.budget={max_drop: 0.02, max_size_mb: 0.0001}"])
    with pytest.raises(GateError, match="onnx: no file is inside") as caught:
        api.run(impossible, run_copy, overwrite=True)
    assert "The nearest is onnx/model_w4.onnx" in str(caught.value)
    assert tree(run_copy / "phone") == packed_files, "what was packed before stays"


def test_rows_that_choose_are_divided_from_a_share_of_the_training_rows_too(task: Task) -> None:
    eval_rows = read_examples(DataSource.at(str(task.folder / "train.jsonl")))
    _, share = hold_out_share(eval_rows, 0.1)
    scored, chose = hold_out_share(share, 0.5, "selection")
    assert min(len(scored), len(chose)) > len(share) / 5, "the first division took the rows whose hash is small"


# --- smaller students ---

NAME = "intermediate-16"
STUDENTS = "students: [{intermediate: 16}, {vocabulary: {at_least: 60, max_unseen: 1, max_changed: 1, max_growth: 9}}]"


def search_students(limits: str) -> list[str]:
    budget = f"{{{limits}, {STUDENTS}, student_steps: 20}}"
    return [FILES, f"quantize.budget={budget}", "verify.max_drop=0.2"]


def test_one_student_is_chosen_for_the_folder_and_a_plain_recipe_makes_it_again(
    task: Task,
    run_copy: Path,
    tmp_path: Path,
    schemes_of: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = load_recipe(task.recipe, search_students("max_drop: 0.2"))
    weights, search_files = run_copy / "students" / NAME / "student", budgeted_run.search_files

    def interrupted(inputs: SearchInputs, *args: Any) -> list[FormatResult]:
        if inputs.student != OWN_STUDENT:
            raise KeyboardInterrupt
        return search_files(inputs, *args)

    with monkeypatch.context() as patch:
        patch.setattr(budgeted_run, "search_files", interrupted)
        with pytest.raises(KeyboardInterrupt):
            api.run(recipe, run_copy, overwrite=True)
    trained = (weights / "model.safetensors").stat().st_mtime_ns
    result = api.run(recipe, run_copy, overwrite=True)
    assert (weights / "model.safetensors").stat().st_mtime_ns == trained, "a stopped run leaves the trained students"
    assert schemes_of() == ["w4", "small", "w4", "small", "w4"], "each candidate once, and the chosen one as a step"
    search = read_artefacts(result.phone).search
    own, pruned, coarse = search.students
    assert (own.name, pruned.name, coarse.name, search.student) == ("own", NAME, "vocabulary-60", NAME)
    assert "gate 'chance' failed" in coarse.note, "a student that learnt nothing is never searched"
    assert [(c.student, c.scheme.value) for c in search.chosen] == [(NAME, "w4")]
    assert len(search.candidates) == 4
    assert tree(result.phone) == tree(run_copy / "students" / NAME / "phone")
    assert "Chosen inside a budget" in result.report.read_text()
    assert {step.state for step in api.plan(recipe, run_copy)} == {"finished"}
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).split("the same files from a plain recipe:\n")[1].splitlines()[:4]
    plain = yaml.safe_load("\n".join(line.strip() for line in lines))
    assert plain["quantize"] == {"files": ["w4"]}
    plain["teacher"]["finetune"] = None
    made = api.run(load_recipe(task.variant(tmp_path / "plain.yaml", **plain)), tmp_path / "plain")
    models = [{r.path: r.sha256 for r in read_artefacts(run.phone).models()} for run in (made, result)]
    assert models[0] == models[1], "the printed lines make the same files"
    packed = tree(result.phone)
    impossible = load_recipe(task.recipe, search_students("max_drop: 0.2, max_size_mb: 0.0001"))
    with pytest.raises(GateError, match="No student has a file inside") as caught:
        api.run(impossible, run_copy, overwrite=True)
    assert "The nearest is onnx/model_w4.onnx" in str(caught.value)
    assert f"{NAME}: not exported: at least 0.0 MB" in str(caught.value)
    assert tree(run_copy / "phone") == packed, "what was packed before stays"


def test_a_student_that_is_not_smaller_is_refused_before_anything_is_trained(task: Task, tmp_path: Path) -> None:
    recipe = load_recipe(task.recipe, ["quantize.budget={max_drop: 0.01, students: [{intermediate: 4096}]}"])
    for verb in (api.plan, api.run):
        with pytest.raises(InputError, match="quantize.budget.students.0.intermediate: 4096 neurons are to stay"):
            verb(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- what is refused ---


FILL = ["task=fill-mask", "data.labels=null", "student.vocabulary={}"]
NONE = ["student=null", "distill=[]"]


@pytest.mark.parametrize(
    ("more", "budget", "told"),
    [
        (["quantize.scheme=int8", "data.eval=null"], "max_drop: 2", "0.01 is one point"),
        (["quantize.scheme=int8"], "max_drop: 2, max_size_mb: 8000000", "8,000,000 bytes"),
        (["quantize.scheme=int8"], "max_drop: 0.01", "leave scheme out"),
        (
            ["quantize.files=[{scheme: small, format: onnx}]"],
            "max_drop: 0.01",
            "leave these out of 'small' of onnx",
        ),
        ([], "max_drop: 0.1", "set verify.max_drop to 0.1 too"),
        ([], "", "no limit is set"),
        ([], "max_drop: 0.01, students: [{hidden: 64}]", "hidden"),
        ([], "max_drop: 0.01, students: [{}]", "nothing is smaller"),
        ([], "max_drop: 0.01, student_steps: 9", "student_steps has no meaning without students"),
        ([], "max_drop: 0.01, students: [{intermediate: 8}, {intermediate: 8}]", "lists intermediate-8 twice"),
        (FILL, "max_drop: 0.01, students: [{vocabulary: {}}]", "vocabulary: fill-mask guesses pieces"),
        (FILL, "max_drop: 0.01, students: [{vocabulary: {}}]", "which cannot be pruned again"),
        (NONE, "max_drop: 0.01, students: [{intermediate: 8}]", "there is no student to prune"),
    ],
)
def test_a_budget_that_cannot_be_searched_is_refused(task: Task, more: list[str], budget: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(task.recipe, [f"quantize={{budget: {{{budget}}}}}", *more])
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "more", [[], ["quantize.budget.students=[{intermediate: 8}]", "quantize.budget.student_steps=9"]]
)
def test_a_recipe_with_a_budget_reads_back(task: Task, more: list[str], tmp_path: Path) -> None:
    recipe = load_recipe(task.recipe, ["quantize={budget: {max_drop: 0.01}}", *more])
    assert Recipe.model_validate(recipe.model_dump(by_alias=True)) == recipe
    written = tmp_path / "again.yaml"
    written.write_text(dump_recipe(recipe))
    assert load_recipe(written).quantize == recipe.quantize


def test_a_run_that_searches_nothing_refuses_a_budget_instead_of_ignoring_it(task: Task, tmp_path: Path) -> None:
    recipe = load_recipe(task.recipe, ["quantize={budget: {max_drop: 0.01}}"])
    with pytest.raises(InputError, match="quantize.budget: is searched by `pocketbert run` of a recipe file only"):
        Run(recipe, tmp_path / "run").execute()
