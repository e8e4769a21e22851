"""The model of a run is opened once, and knows what every step asks of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.pipeline.formats import base as run_model
from pocketbert.pipeline.formats.base import open_model_in_run, open_run_model


def recipe(task: str, **sections: Any) -> Recipe:
    return Recipe.model_validate(
        {"schema": 1, "name": "a", "task": task, "teacher": {"model": "minilm-l6"}, **sections}
    )


def test_what_it_tells(tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tiny_model("bert", 2, ("no", "yes"))
    opened: list[str] = []
    monkeypatch.setattr(
        run_model, "open_model_folder", lambda p, open=run_model.open_model_folder: opened.append(p) or open(p)
    )
    model = open_run_model(recipe("text-classification", export={"clients": []}), tmp_path, weights, 24)
    assert [model.source(f).relative_to(tmp_path).as_posix() for f in model.files] == [
        "onnx/model.onnx",
        "onnx-int8/model_int8.onnx",
        "tflite/model.tflite",
        "tflite-int8/model_int8.tflite",
        "coreml/Model.mlpackage",
        "coreml-w8/Model_w8.mlpackage",
    ]
    assert (model.weights, model.task, model.labels) == (weights, TASKS[TaskName.TEXT_CLASSIFICATION], ("no", "yes"))
    assert model.tokenizer is model.tokenizer
    assert model.tokenizer.max_length == 24
    assert opened == [str(weights)]


def test_labels_of_a_task_without_labels_are_none(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    model = open_model_in_run(recipe("feature-extraction"), tmp_path, tiny_model("bert", 2, ("no", "yes")), 24)
    assert model.labels == ()
    assert list(model.files) == []
