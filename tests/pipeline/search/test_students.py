"""A recipe whose budget lists smaller students: one is chosen for the whole folder, and a plain recipe makes it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketbert import api
from pocketbert.core.artefacts import Candidate, ConsideredStudent, read_artefacts
from pocketbert.core.errors import GateError, InputError
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.student import OWN_STUDENT
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.direct import budgeted_run as students
from pocketbert.pipeline.direct.budget_search import SearchInputs
from pocketbert.pipeline.direct.choosing import (
    FormatResult,
    StudentResult,
    best_student,
    cannot_win,
    merge_student_results,
    no_student_error,
)
from support.folders import tree
from support.tiny_task import Task

STUDENTS = "students: [{intermediate: 16}, {vocabulary: {at_least: 60, max_unseen: 1, max_changed: 1, max_growth: 9}}]"
NAME = "intermediate-16"


def overrides(limits: str) -> list[str]:
    budget = f"{{{limits}, {STUDENTS}, student_steps: 20}}"
    return ["quantize.files=[small, w4]", f"quantize.budget={budget}", "verify.max_drop=0.2"]


def test_one_student_is_chosen_for_the_folder_and_a_plain_recipe_makes_it_again(
    task: Task,
    run_copy: Path,
    tmp_path: Path,
    counted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe, weights = load_recipe(task.recipe, overrides("max_drop: 0.2")), run_copy / "students" / NAME / "student"
    search_files = students.search_files

    def interrupted(inputs: SearchInputs, *args: Any) -> list[FormatResult]:
        if inputs.student != OWN_STUDENT:
            raise KeyboardInterrupt
        return search_files(inputs, *args)

    with monkeypatch.context() as patch:
        patch.setattr(students, "search_files", interrupted)
        with pytest.raises(KeyboardInterrupt):
            api.run(recipe, run_copy, overwrite=True)
    trained = (weights / "model.safetensors").stat().st_mtime_ns
    result = api.run(recipe, run_copy, overwrite=True)
    assert (weights / "model.safetensors").stat().st_mtime_ns == trained, "a stopped run leaves the trained students"
    assert counted == ["w4", "small", "w4", "small", "w4"], "each candidate once, and the chosen one as a step"
    search = read_artefacts(result.phone).search
    assert search is not None
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
    assert _models(made.phone) == _models(result.phone), "the printed lines make the same files"
    packed = tree(result.phone)
    impossible = load_recipe(task.recipe, overrides("max_drop: 0.2, max_size_mb: 0.0001"))
    with pytest.raises(GateError, match="No student has a file inside") as caught:
        api.run(impossible, run_copy, overwrite=True)
    assert "The nearest is onnx/model_w4.onnx" in str(caught.value)
    assert f"{NAME}: not exported: at least 0.0 MB" in str(caught.value)
    assert tree(run_copy / "phone") == packed, "what was packed before stays"


def _models(phone: Path | None) -> dict[str, str]:
    assert phone is not None
    return {r.path: r.sha256 for r in read_artefacts(phone).models()}


def test_contradictions_of_smaller_students_are_told_at_once(task: Task) -> None:
    wrong = {
        "{max_drop: 2, students: [{hidden: 64}]}": ["0.01 is one point", "hidden"],
        "{max_drop: 0.01, students: [{}]}": ["nothing is smaller"],
        "{max_drop: 0.01, student_steps: 9}": ["student_steps has no meaning without students"],
        "{max_drop: 0.01, students: [{intermediate: 8}, {intermediate: 8}]}": ["lists intermediate-8 twice"],
    }
    for value, told in wrong.items():
        with pytest.raises(InputError) as caught:
            load_recipe(task.recipe, [f"quantize.budget={value}"])
        assert all(words in str(caught.value) for words in told), str(caught.value)
    with pytest.raises(InputError) as caught:
        load_recipe(
            task.recipe,
            [
                "task=fill-mask",
                "data.labels=null",
                "quantize.budget={max_drop: 0.01, students: [{vocabulary: {}}]}",
                "student.vocabulary={}",
            ],
        )
    assert "quantize.budget.students.0.vocabulary: fill-mask guesses pieces" in str(caught.value)
    assert "pruned vocabulary, which cannot be pruned again" in str(caught.value)
    with pytest.raises(InputError, match="there is no student to prune"):
        load_recipe(
            task.recipe,
            ["student=null", "distill=[]", "quantize.budget={max_drop: 0.01, students: [{intermediate: 8}]}"],
        )


def test_a_student_that_is_not_smaller_is_refused_before_anything_is_trained(task: Task, tmp_path: Path) -> None:
    recipe = load_recipe(task.recipe, ["quantize.budget={max_drop: 0.01, students: [{intermediate: 4096}]}"])
    for verb in (api.plan, api.run):
        with pytest.raises(InputError, match="quantize.budget.students.0.intermediate: 4096 neurons are to stay"):
            verb(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _considered(name: str, *files: tuple[Format, float, int, bool]) -> StudentResult:
    findings = []
    for format, rel, size, inside in files:
        path = f"{format}/model_small"
        one = Candidate(
            path=path,
            format=format,
            scheme=Scheme.SMALL,
            student=name,
            rel=rel,
            bytes=size,
            drop=0.0,
            inside=inside,
            chosen=inside,
        )
        findings.append(FormatResult(format, "accuracy", [one], one if inside else None, None if inside else one))
    return StudentResult(ConsideredStudent(name=name), findings)


def test_the_student_must_have_a_file_inside_in_every_format() -> None:
    onnx, tflite = Format.ONNX, Format.TFLITE
    half = _considered("half", (onnx, 0.01, 10, True), (tflite, 0.01, 90, False))
    close = _considered("close", (onnx, 0.02, 60, True), (tflite, 0.03, 60, True))
    small = _considered("small", (onnx, 0.20, 20, True), (tflite, 0.30, 20, True))
    everyone = [half, close, small]
    by_size, by_drop = BudgetSection(max_size_mb=1), BudgetSection(max_drop=0.01)
    assert best_student(everyone, by_size) is close
    assert best_student(everyone, by_drop) is small
    assert best_student([half], by_drop) is None
    assert cannot_win(0.05, close, by_size)
    assert not cannot_win(0.025, close, by_size), "the file of one format may still be closer"
    assert not cannot_win(0.05, close, by_drop), "where the smallest wins, further files may"
    kept = [c for f in merge_student_results(everyone, close) for c in f.candidates]
    assert {c.student for c in kept if c.chosen} == {"close"}
    assert [c.student for c in kept if c.front and c.format is onnx] == ["half"]
    lines = no_student_error([half], BudgetSection(max_size_mb=0.00005)).failures
    assert "The nearest is half" in lines[0]
    assert "tflite: no file is inside" in lines[1]
