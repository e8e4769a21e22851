"""The tiny task on disk: rows, teacher and recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.tiny import write_bert
from support.tiny_texts import LABELS, LENGTH, task_rows, write_lines

RECIPE = {
    "schema": 1,
    "name": "tiny",
    "task": "text-classification",
    "seed": 3,
    "data": {
        "train": {"path": "train.jsonl"},
        "eval": {"path": "eval.jsonl"},
        "labels": list(LABELS),
        "max_length": LENGTH,
    },
    "teacher": {
        "model": "./teacher",
        "finetune": {"steps": 140, "batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 10},
    },
    "student": {"layers": 1},
    "distill": [{"method": "task", "steps": 80, "batch": 32, "lr": 3e-3, "dropout": 0.0, "checkpoint": 10}],
    "export": {"formats": ["onnx"], "lengths": [16, 32]},
    "verify": {"max_drop": 0.02},
}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with nested keys replaced; None removes a key."""
    out = dict(base)
    for key, value in changes.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out


class Task:
    """The tiny task on disk: train.jsonl, eval.jsonl, teacher/ and recipe.yaml in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.recipe = folder, folder / "recipe.yaml"

    def variant(self, destination: Path, **changes: Any) -> Path:
        """Write a changed recipe elsewhere, with paths that still lead here."""
        here = {
            "data": {
                "train": {"path": str(self.folder / "train.jsonl")},
                "eval": {"path": str(self.folder / "eval.jsonl")},
            },
            "teacher": {"model": str(self.folder / "teacher")},
        }
        destination.write_text(yaml.safe_dump(merged(merged(RECIPE, here), changes), sort_keys=False))
        return destination


def write_task(folder: Path) -> None:
    """Write rows, teacher and recipe of the tiny task into a new folder."""
    folder.mkdir()
    write_lines(folder / "train.jsonl", task_rows(600, 1))
    write_lines(folder / "eval.jsonl", task_rows(150, 2))
    write_bert(folder / "teacher")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
