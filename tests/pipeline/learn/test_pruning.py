"""A recipe that goes on with a trained student, prunes it, lets it learn again, and ends with verified files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.student import StudentSection

STAGE = {"method": "task", "steps": 40, "batch": 32, "lr": 3e-3, "dropout": 0.0}


def second(task: Any, finished: Path, destination: Path, intermediate: int, **changes: Any) -> Path:
    """The recipe of a second run: the first run's teacher, and its student pruned."""
    student = {"model": str(finished / "student"), "layers": None, "init": "pruned", "intermediate": intermediate}
    teacher = {"model": str(finished / "teacher"), "finetune": None}
    return Path(task.variant(destination, **{"student": student, "teacher": teacher, "distill": [STAGE], **changes}))


def width(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["intermediate_size"])


def run(task: Any, finished: Path, cli: Callable[..., Any], base: Path, **changes: Any) -> Any:
    """Prune the finished run's student to half, and check the folder that results."""
    half = width(finished / "student") // 2
    result = cli("run", second(task, finished, base / "recipe.yaml", half, **changes), "-o", base / "run")
    assert result.exit_code == 0, result.output
    assert f"pruned: {half} of {2 * half} feed-forward neurons stay in each layer" in result.stderr
    assert "(chosen on 300 training rows)" in result.stderr
    assert width(base / "run" / "student") == width(base / "run" / "phone") == half
    assert width(base / "run" / "teacher") == 2 * half
    verified = cli("verify", "-m", base / "run")
    assert verified.exit_code == 0, verified.output
    return result


def test_a_trained_student_is_pruned_and_learns_again(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    run(task, finished, cli, tmp_path)
    scores = [
        json.loads((f / "student" / "training.json").read_text())["score"]["value"]
        for f in (finished, tmp_path / "run")
    ]
    assert scores[1] >= scores[0] - 0.02
    again = cli("run", tmp_path / "recipe.yaml", "-o", tmp_path / "run", "student.intermediate=8")
    assert again.exit_code == 2, "a student of another width is another student"


def test_a_trained_student_loses_neurons_and_layers(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    student = {"model": str(finished / "teacher"), "init": "pruned", "intermediate": 10, "layers": 1}
    path = second(task, finished, tmp_path / "recipe.yaml", 10, student=student, distill=[{**STAGE, "steps": 2}])
    result = cli("distill", path, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "run" / "student" / "config.json").read_text())
    assert (made["num_hidden_layers"], made["intermediate_size"]) == (1, 10)


@pytest.mark.slow
def test_a_pruned_student_is_written_in_every_format(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    run(task, finished, cli, tmp_path, export={"formats": ["onnx", "tflite", "coreml"]})


def test_a_teacher_is_pruned_while_it_loses_layers(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    student = {"layers": 1, "init": "pruned", "intermediate": 10, "family": "distilbert"}
    stage = {**STAGE, "steps": 2}
    path = second(task, finished, tmp_path / "recipe.yaml", 10, student=student, distill=[stage])
    result = cli("distill", path, "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "run" / "student" / "config.json").read_text())
    assert (made["model_type"], made["n_layers"], made["hidden_dim"]) == ("distilbert", 1, 10)


def test_more_neurons_than_there_are_are_refused_before_the_teacher_is_trained(
    task: Any, finished: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    have = width(finished / "student")
    for changes in ({}, {"student": {"layers": 1, "init": "pruned", "intermediate": have}}):
        path = second(task, finished, tmp_path / "recipe.yaml", have, **changes)
        result = cli("run", path, "-o", tmp_path / "run")
        assert result.exit_code == 2
        assert f"student.intermediate: {have} neurons are to stay, and each layer of BERT has {have}" in result.stderr
        assert f"for example {have // 2}" in result.stderr
        assert not (tmp_path / "run" / "teacher").exists()


def test_general_stages_do_not_start_from_pruned_layers(task: Any, tmp_path: Path, cli: Callable[..., Any]) -> None:
    student = {"layers": 1, "init": "pruned", "intermediate": 8}
    data = {"corpus": {"sources": [{"path": str(task.folder / "train.jsonl")}]}}
    stages = [{"method": "minilm", "steps": 2}, STAGE]
    path = task.variant(tmp_path / "recipe.yaml", student=student, data=data, distill=stages)
    result = cli("recipes", "validate", path)
    assert result.exit_code == 2
    assert "student.init: pruned chooses neurons on training rows of the task" in result.stderr


def test_all_that_does_not_go_with_pruning_is_named_at_once() -> None:
    with pytest.raises(ValidationError) as refused:
        StudentSection(layers=2, init="pruned", hidden=16, heads=2, size="tiny")
    for words in (
        "needs intermediate: N",
        "hidden: pruning keeps",
        "heads: attention heads cannot be",
        "size: a student",
    ):
        assert words in str(refused.value)
    with pytest.raises(ValidationError, match="family: the student in model has its own"):
        StudentSection(model="folder", init="pruned", intermediate=8, family="distilbert")
    with pytest.raises(ValidationError, match="layers, intermediate: the student in model has its own"):
        StudentSection(model="folder", layers=1, intermediate=8)
    assert StudentSection(model="folder", init="pruned", intermediate=8, layers=2).layers == 2


def test_a_recipe_with_pruning_is_read(task: Any, finished: Path, tmp_path: Path) -> None:
    made = load_recipe(second(task, finished, tmp_path / "recipe.yaml", 9)).student
    assert made is not None
    assert (made.init, made.intermediate, made.layers) == ("pruned", 9, None)
