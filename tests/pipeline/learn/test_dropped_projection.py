"""Sentence encoders narrower than their teacher that drop the projection: vectors of their own width, in training and in files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pocketbert
from pocketbert.core.errors import InputError
from pocketbert.core.predict.sentence_settings import read_pooling, vector_width
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.learn.finishing import read_training
from support.tiny_task import Task
from support.tiny_texts import task_rows, write_lines

NARROW = {"layers": 1, "hidden": 16}
OUTPUTS = {"logits": 1, "hidden": 0, "attention": 0}


def stage(steps: int = 40, **more: Any) -> dict[str, Any]:
    return {"method": "task", "steps": steps, "batch": 8, "lr": 3e-3, "dropout": 0.0, "signals": OUTPUTS, **more}


@pytest.fixture
def write(tiny_model: Callable[..., Path], task: Task, tmp_path: Path) -> Callable[..., Path]:
    """`write(*stages, projection=..., scored=..., **changes)`: a recipe for vectors of texts or scored pairs, with a teacher 32 wide."""

    def make(*stages: dict[str, Any], projection: str | None = "drop", scored: bool = False, **changes: Any) -> Path:
        for split, seed, count in (("train", 7, 61), ("eval", 5, 41)):
            texts = [row["text"] for row in task_rows(count, seed)]
            pairs = [{"text": a, "b": a if i % 2 else b, "label": i % 2} for i, (a, b) in enumerate(pairwise(texts))]
            write_lines(tmp_path / f"{split}.jsonl", pairs if scored else [{"text": text} for text in texts])
        student = {**NARROW, **changes.pop("student", {})}
        columns = {"text_pair": "b", "label": "label"} if scored else {}
        content = {
            "task": "feature-extraction",
            "data": {
                "labels": None,
                **{s: {"path": str(tmp_path / f"{s}.jsonl"), **columns} for s in ("train", "eval")},
            },
            "teacher": {"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None},
            "student": {**student, "projection": projection},
            "distill": list(stages or [stage()]),
        }
        return task.variant(tmp_path / "r.yaml", **{**content, **changes})

    return make


@pytest.mark.parametrize(
    ("projection", "width"), [("drop", 16), ("keep", 32), (None, 32)], ids=["dropped", "kept", "default"]
)
def test_vectors_have_the_width_that_the_recipe_asks_for(
    projection: str | None, width: int, write: Callable[..., Path], cli: Callable[..., Any], tmp_path: Path
) -> None:
    export = {"formats": ["onnx"], "lengths": [16]}
    recipe = write(projection=projection, scored=True, export=export, verify={"min_kept": None})
    made = cli("run", recipe, "-o", tmp_path / "run")
    assert made.exit_code == 0, made.stderr
    vector = np.asarray(pocketbert.load(tmp_path / "run/phone").predict([task_rows(1, 3)[0]["text"]])[0].vector)
    assert vector.shape == (width,)
    assert ("vectors of 32 numbers are mapped to the student's 16" in made.stderr) is (width == 16)


@pytest.mark.parametrize("more", [{"hidden": 1, "attention": 1}, {"cached": True}, {"wide": True}], ids=str)
def test_states_caches_and_lengths_go_with_a_dropped_projection(
    more: dict[str, Any], write: Callable[..., Path], cli: Callable[..., Any], tmp_path: Path
) -> None:
    first = stage(6, cache_teacher="fp32") if more.get("cached") else stage(6)
    first["signals"] = {**OUTPUTS, **{k: v for k, v in more.items() if k in OUTPUTS}}
    changes = {"student": {"hidden": 64, "init": "random", "heads": 2}} if more.get("wide") else {}
    recipe = write(first, stage(4), answer={"dimensions": [8]}, **changes)
    made = cli("distill", recipe, "-o", tmp_path / "run")
    assert made.exit_code == 0, made.stderr
    pooling, hidden = read_pooling(tmp_path / "run/student"), 64 if more.get("wide") else 16
    assert pooling is not None
    assert (vector_width(pooling, hidden), pooling.layers) == (hidden, ())
    training = read_training(tmp_path / "run/student")
    assert training.score is not None
    assert training.score.metric == "mean_cosine", "with the teacher's vectors, reduced to the student's width"
    terms = [{*curve.terms} for curve in training.curves]
    assert terms == [{name for name, weight in first["signals"].items() if weight}, {"logits"}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projection": "halve"}, "student.projection: 'halve' is not allowed; allowed: drop, keep"),
        ({"task": "text-classification"}, "drop is for feature-extraction, and text-classification has no vectors"),
        ({"answer": {"dimensions": [24]}}, "answer.dimensions: 24 is more than the 16 numbers of the student"),
        ({"student": {"layers": 0, "hidden": None}}, "set student.dimensions, such as 256"),
        (
            {"projection": "keep", "data": {"train": {"path": "t.jsonl", "teacher": "v"}, "eval": {"path": "e.jsonl"}}},
            "student.projection: keep has nothing to keep: vectors of a column",
        ),
    ],
)
def test_a_projection_without_a_meaning_is_refused(
    changes: dict[str, Any], message: str, write: Callable[..., Path]
) -> None:
    with pytest.raises(InputError) as caught:
        load_recipe(write(**changes))
    assert message in str(caught.value)
