"""A student that learnt nothing ends the run right after its training: no file is exported of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.predict.scores import Score
from pocketbert.pipeline.gates.checks import check_student


def score(value: float) -> Score:
    return Score(metric="accuracy", value=value, others={}, rows=1000, chance=0.4, finite=True)


@pytest.mark.parametrize(
    ("student", "teacher", "min_kept", "failed"),
    [
        (0.85, 0.9, 0.9, []),
        (0.5, 0.9, 0.9, ["student kept"]),
        (0.5, 0.9, None, []),
        (0.4, 0.9, None, ["student chance"]),
        (0.4, 0.4, 0.9, ["teacher chance", "student chance"]),
    ],
)
def test_gates(student: float, teacher: float, min_kept: float | None, failed: list[str]) -> None:
    gates = check_student(score(student), score(teacher), min_kept)
    assert [f"{g.file} {g.name}" for g in gates if not g.passed] == failed


def test_without_scores_there_is_nothing_to_judge() -> None:
    assert check_student(None, None, 0.9) == []


def test_a_student_of_one_step(task: Any, tmp_path: Path, cli: Callable[..., Any]) -> None:
    recipe = task.variant(tmp_path / "r.yaml", verify={"min_kept": 0.9})
    run = tmp_path / "run"
    result = cli("run", recipe, "distill.0.steps=1", "distill.0.lr=1e-7", "-o", run)
    assert result.exit_code == 3, result.output
    assert "student: gate 'kept' failed: keeps" in result.stderr
    assert "train longer than 1 steps of 32 rows (0.053 passes over 600 rows): try distill.0.steps=75" in result.stderr
    assert "distill.0.lr is 1e-07" in result.stderr
    assert "teacher" in result.stderr and "M parameters  accuracy" in result.stderr
    assert (run / "student" / "model.safetensors").is_file()
    assert not (run / "onnx").exists()
    assert not (run / "phone").exists()
    page = (run / "report.html").read_text()
    assert "student torch fp32" in page
    assert "no file was exported" in page

    # what the advice says, in the same folder
    again = cli("run", recipe, "distill.0.steps=80", "-o", run, "--overwrite")
    assert again.exit_code == 0, again.output
    assert (run / "phone").is_dir()


def test_a_lower_bound_needs_no_overwrite(task: Any, tmp_path: Path, cli: Callable[..., Any]) -> None:
    recipe = task.variant(tmp_path / "r.yaml", verify={"min_kept": 0.9}, distill=[{**task_stage(), "steps": 8}])
    run = tmp_path / "run"
    assert cli("distill", recipe, "-o", run).exit_code == 0, "who only distils, judges the student"
    assert cli("run", recipe, "-o", run).exit_code == 3
    assert not (run / "onnx").exists()
    result = cli("run", recipe, "verify.min_kept=0.1", "verify.max_drop=0.5", "-o", run)
    assert result.exit_code == 0, result.output
    assert "distill.0, method task: finished before, skipped" in result.stderr


def task_stage() -> dict[str, Any]:
    return {"method": "task", "batch": 32, "lr": 3e-3, "dropout": 0.0}
