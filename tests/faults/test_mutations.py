"""Hundreds of damaged inputs: exit 2 or 3 with one clear message, no traceback, nothing written, memory bounded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz.seeds import write_rows

from support.mutations import Mutation, mutations

Refused = Callable[..., None]


def test_recipes(recipe_mutation: Mutation, task: Any, refused: Refused, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "recipe.yaml")
    recipe_mutation.apply(recipe)
    refused(recipe_mutation, "recipes", "validate", recipe)
    refused(recipe_mutation, "run", recipe, "--dry-run", "-o", tmp_path / "run")
    refused(recipe_mutation, "data", "check", recipe)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same valid rows in every kind of file."""
    folder = tmp_path_factory.mktemp("rows") / "rows"
    write_rows(folder, 150)
    return folder


def test_data(data_mutation: Mutation, rows: Path, task: Any, refused: Refused, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(rows, tmp_path / "rows"))
    data_mutation.apply(folder)
    left = next(iter(folder.iterdir()), folder / "rows.jsonl")
    recipe = task.variant(tmp_path / "recipe.yaml", data={"train": {"path": str(left)}})
    refused(data_mutation, "data", "check", recipe)


def test_folders(folder_mutation: Mutation, trio: Path, refused: Refused, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trio / "phone", tmp_path / "phone"))
    folder_mutation.apply(folder)
    refused(folder_mutation, "verify", "-m", folder)
    refused(folder_mutation, "predict", "-m", folder, "dim the lamp in the hall")


def test_models(model_mutation: Mutation, trio: Path, refused: Refused, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trio / "phone", tmp_path / "phone"))
    model_mutation.apply(folder)
    name = (tmp_path / "damaged.txt").read_text()
    refused(model_mutation, "verify", "-m", folder, codes=(3,))
    refused(model_mutation, "predict", "-m", folder, "--model-file", name, "dim the lamp in the hall")


def test_sources(source_mutation: Mutation, trio: Path, refused: Refused, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trio / "student", tmp_path / "model"))
    source_mutation.apply(folder)
    refused(source_mutation, "export", "-m", folder, "-o", tmp_path / "phone", "--format", "onnx", "-q")


@pytest.mark.parametrize(
    ("kind", "least"), [("recipe", 0.9), ("data", 0.85), ("folder", 0.8), ("model", 1), ("source", 1)]
)
def test_most_mutations_spare_no_command(kind: str, least: float) -> None:
    cases = mutations(kind, 200)
    assert sum(not m.maker.harmless for m in cases) >= least * len(cases)
