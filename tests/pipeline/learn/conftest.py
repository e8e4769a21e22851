"""Builders of the learning tests: steps' folders, rows of stages, and recipes of sentence vectors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.learn.data import load_data, max_length
from pocketbert.pipeline.learn.training import Learning, _prepare_stage_rows
from pocketbert.pipeline.learn.transfer import write_transfer
from pocketbert.pipeline.run_folder import StepPaths
from support.tiny_task import Task
from support.tiny_texts import task_rows, write_lines


@pytest.fixture(scope="session")
def make_places() -> Callable[[Path], StepPaths]:
    """`make_places(folder)`: the folders of one step."""

    def make(folder: Path) -> StepPaths:
        for name in ("out", "work"):
            (folder / name).mkdir(parents=True)
        return StepPaths(folder / "out", folder / "work", folder / "metrics.jsonl")

    return make


@pytest.fixture
def stage_rows(make_places: Callable[[Path], StepPaths]) -> Callable[[Path, Path], Any]:
    """`stage_rows(recipe, folder)`: rows of the last stage of a recipe with a ready teacher, and what is said of them."""

    def prepare(recipe_file: Path, folder: Path) -> Any:
        recipe = load_recipe(recipe_file)
        model = open_model_folder(recipe.teacher.model)
        data, texts = load_data(recipe, model), None
        if recipe.data.transfer is not None and recipe.data.train is not None:
            texts = folder / "transfer"
            texts.mkdir(parents=True)
            write_transfer(recipe, data, texts)
        length = max_length(recipe.data, model, data.head.task)
        learning = Learning(recipe, model, Path(recipe.teacher.model), data, length, folder, transfer=texts)
        return _prepare_stage_rows(learning, len(recipe.distill) - 1, make_places(folder))

    return prepare


@pytest.fixture
def scored_pairs(tmp_path: Path) -> Callable[[int], dict[str, str]]:
    """`scored_pairs(seed)`: a source of 40 pairs, every second of which is a text and itself."""

    def write(seed: int) -> dict[str, str]:
        texts = [row["text"] for row in task_rows(41, seed)]
        pairs = [{"a": a, "b": a if i % 2 else b, "label": i % 2} for i, (a, b) in enumerate(pairwise(texts))]
        path = write_lines(tmp_path / f"pairs-{seed}.jsonl", pairs)
        return {"path": str(path), "text": "a", "text_pair": "b", "label": "label"}

    return write


@pytest.fixture
def vectors_recipe(task: Task, tiny_model: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """`vectors_recipe(data, *stages, **changes)`: a recipe of sentence vectors whose ready teacher is 32 wide."""
    teacher = {"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None}

    def write(data: dict[str, Any], *stages: dict[str, Any], **changes: Any) -> Path:
        settings = {"task": "feature-extraction", "teacher": teacher, "distill": list(stages), **changes}
        return task.variant(tmp_path / "vectors.yaml", data={"labels": None, **data}, **settings)

    return write
