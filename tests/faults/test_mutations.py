"""Hundreds of damaged inputs: exit 2 or 3 with one clear message, no traceback, nothing written, memory bounded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.mutations import mutations
from support.tiny_texts import task_rows, write_lines

Refused = Callable[..., Any]


def test_recipes(recipe_mutation: Any, task: Any, refused: Refused, tmp_path: Path) -> None:
    recipe = task.variant(tmp_path / "recipe.yaml")
    recipe_mutation.apply(recipe)
    refused(recipe_mutation, "recipes", "validate", recipe)
    refused(recipe_mutation, "run", recipe, "--dry-run", "-o", tmp_path / "run")
    refused(recipe_mutation, "data", "check", recipe)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same valid rows in every kind of file."""
    import gzip

    folder = tmp_path_factory.mktemp("rows")
    made = task_rows(150, 7)
    raw = write_lines(folder / "rows.jsonl", made).read_bytes()
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(raw, mtime=0))
    for name, tab in (("rows.csv", ","), ("rows.tsv", "\t")):
        (folder / name).write_text(
            "".join(f"{r['text']}{tab}{r['label']}\n" for r in [{"text": "text", "label": "label"}, *made])
        )
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made), folder / "rows.parquet")
    return folder


def test_data(data_mutation: Any, rows: Path, task: Any, trio: Path, refused: Refused, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(rows, tmp_path / "rows"))
    names = {p.name for p in folder.iterdir()}
    data_mutation.apply(folder)
    left = [p for p in folder.iterdir() if p.name in names]
    data = left[0] if left else folder / "rows.jsonl"
    recipe = task.variant(tmp_path / "recipe.yaml", data={"train": {"path": str(data)}})
    refused(data_mutation, "data", "check", recipe)


def test_folders(folder_mutation: Any, trio: Path, refused: Refused, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trio / "phone", tmp_path / "phone"))
    folder_mutation.apply(folder)
    refused(folder_mutation, "verify", "-m", folder)
    refused(folder_mutation, "predict", "-m", folder, "dim the lamp in the hall")


def test_models(model_mutation: Any, trio: Path, refused: Refused, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trio / "phone", tmp_path / "phone"))
    model_mutation.apply(folder)
    name = (tmp_path / "damaged.txt").read_text()
    refused(model_mutation, "verify", "-m", folder, codes=(3,))
    refused(model_mutation, "predict", "-m", folder, "--model-file", name, "dim the lamp in the hall")


def test_sources(source_mutation: Any, trio: Path, refused: Refused, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trio / "student", tmp_path / "model"))
    source_mutation.apply(folder)
    refused(source_mutation, "export", "-m", folder, "-o", tmp_path / "phone", "--format", "onnx", "-q")


def test_most_mutations_spare_no_command() -> None:
    for kind, least in (("recipe", 0.9), ("data", 0.9), ("folder", 0.8), ("model", 1.0), ("source", 1.0)):
        cases = mutations(kind, 200)
        assert sum(not m.maker.harmless for m in cases) >= least * len(cases)
