"""A teacher of another vocabulary teaches through a column what it teaches in the loop: the figures of docs/lab/distillation.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketbert import api
from support.tiny import write_bert, write_classifier
from support.tiny_texts import LABELS, LENGTH, task_rows, write_lines

STAGE = {"method": "task", "batch": 32, "lr": 3e-3, "dropout": 0.0}
SIGNALS = {"logits": 1, "hidden": 0, "attention": 0}
EXPORT = {"export": {"formats": ["onnx"], "lengths": [16]}}


def write_recipe(path: Path, content: dict[str, Any]) -> Any:
    base = {"schema": 1, "name": "taught", "task": "text-classification", "seed": 3, **EXPORT}
    path.write_text(yaml.safe_dump({**base, **content}))
    return api.load_recipe(path)


def score_of(folder: Path) -> float:
    return float(json.loads((folder / "training.json").read_text())["score"]["value"])


def compare(at: Path, count: int, finetune: int, steps: int) -> dict[str, float]:
    """Accuracies of a RoBERTa, of a BERT that learned its answers in a column, and of one that asked it at every step."""
    write_lines(at / "train.jsonl", task_rows(count, 1))
    write_lines(at / "eval.jsonl", task_rows(600, 2))
    (at / "roberta").mkdir()
    write_classifier(at / "roberta", "roberta", 0.0)
    start = write_bert(at / "start")
    rows = {"train": {"path": "train.jsonl"}, "eval": {"path": "eval.jsonl"}, "max_length": LENGTH, "labels": [*LABELS]}
    finetuned = {"model": "./roberta", "finetune": {"steps": finetune, "batch": 32, "lr": 3e-3, "dropout": 0.0}}
    teacher = api.finetune(write_recipe(at / "teacher.yaml", {"data": rows, "teacher": finetuned}), at / "teacher-run")
    report = api.teach([str(teacher)], at / "train.jsonl", at / "taught.jsonl")
    taught = {**rows, "train": {"path": "taught.jsonl", "teacher": "teacher"}}
    content = {"data": taught, "student": {"model": "./start"}, "distill": [{**STAGE, "steps": steps}]}
    recipe = write_recipe(at / "student.yaml", content)
    assert (recipe.teacher.model, recipe.distill[0].signals.weighted()) == (str(start), {"logits": 1})
    column = score_of(api.distill(recipe, at / "student-run"))
    assert report.right is not None
    asked = {**content, "data": rows, "teacher": {"model": str(teacher)}}
    asked["distill"] = [{**STAGE, "steps": steps, "signals": SIGNALS}]
    loop = score_of(api.distill(write_recipe(at / "loop.yaml", asked), at / "loop-run"))
    return {"teacher": score_of(teacher), "column": column, "loop": loop}


@pytest.mark.slow
def test_a_teacher_of_another_vocabulary_teaches_as_well_through_a_column_as_in_the_loop(tmp_path: Path) -> None:
    found = compare(tmp_path, 900, 240, 240)
    print(found)
    assert found["teacher"] >= 0.95
    assert abs(found["column"] - found["loop"]) <= 0.01
    assert found["column"] >= found["teacher"] - 0.03
