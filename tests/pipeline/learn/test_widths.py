"""Sentence encoders of another width than their teacher: which vectors they have, in training, in all files, and in the gates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pocketbert
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.predict.sentence_settings import read_pooling, vector_width
from pocketbert.pipeline.learn.finishing import read_training
from support.tiny_texts import task_rows, write_lines

Run = Callable[..., Any]
Recipe = Callable[..., Path]
NARROW = {"layers": 1, "hidden": 16}


def stage(steps: int = 6, **signals: float) -> dict[str, Any]:
    weights = {"logits": 0, "hidden": 0, "attention": 0, **signals}
    return {"method": "task", "steps": steps, "batch": 8, "lr": 1e-3, "dropout": 0.0, "signals": weights}


@pytest.fixture
def rows(scored_pairs: Callable[[int], dict[str, str]]) -> dict[str, Any]:
    """Scored pairs to train on, to choose with and to score."""
    return {"train": scored_pairs(8), "eval": scored_pairs(9), "validation": {"fraction": 0.3}}


@pytest.mark.parametrize(
    ("stages", "student", "width"),
    [
        ([stage(labels=1)], NARROW, 16),
        ([stage(logits=1, hidden=1, attention=1), stage(labels=1)], NARROW, 32),
        ([stage(logits=1)], {**NARROW, "init": "random", "heads": 2}, 32),
        ([stage(logits=1)], {"layers": 1}, 32),
    ],
    ids=["order of pairs", "vectors, then order", "random", "teacher's width"],
)
def test_a_student_that_learns_its_teachers_vectors_has_their_width(
    stages: list[dict[str, Any]],
    student: dict[str, Any],
    width: int,
    rows: dict[str, Any],
    vectors_recipe: Recipe,
    succeed: Run,
    tmp_path: Path,
) -> None:
    recipe = vectors_recipe(rows, *stages, student=student, training={"evaluate_every": 3})
    succeed("distill", recipe, "-o", tmp_path / "run")
    folder = tmp_path / "run/student"
    pooling, training, hidden = read_pooling(folder), read_training(folder), student.get("hidden", 32)
    assert (vector_width(pooling, hidden), len(pooling.layers)) == (width, int(width != hidden))
    assert not [name for name in load_file(folder / "model.safetensors") if "projection" in name]
    terms = [{name for name, weight in one["signals"].items() if weight} for one in stages]
    assert [set(curve.terms) for curve in training.curves] == terms
    assert all(step for curve in training.curves for step, _ in curve.scores), "scored while they are learnt"


def test_a_column_of_its_teachers_vectors_gives_a_narrower_student_vectors_of_its_own_width(
    tiny_model: Recipe, vectors_recipe: Recipe, succeed: Run, tmp_path: Path
) -> None:
    sources = {}
    for split, seed, count in (("train", 7, 60), ("eval", 5, 20)):
        asked = write_lines(tmp_path / "asked.jsonl", [{"text": row["text"]} for row in task_rows(count, seed)])
        more = ("--task", "feature-extraction", "-o", tmp_path / f"{split}.jsonl")
        succeed("teach", "-m", tiny_model("bert", 2, (), "AutoModel"), "--data", asked, *more)
        sources[split] = {"path": str(more[-1]), "teacher": "teacher"}
    made = succeed("distill", vectors_recipe(sources, stage(60, logits=1), student=NARROW), "-o", tmp_path / "run")
    assert "the teacher's vectors of 32 numbers are mapped to the student's 16" in made.stderr
    pooling, training = read_pooling(tmp_path / "run/student"), read_training(tmp_path / "run/student")
    assert (vector_width(pooling, 16), pooling.layers) == (16, ())
    assert training.score.metric == "mean_cosine"
    # vectors of unseen texts are nearer to the mapped ones than at first
    assert training.score.value > 1 - training.curves[0].terms["logits"][0] + 0.05


@pytest.mark.slow
def test_all_files_make_vectors_of_the_teachers_width_and_gates_find_another_projection(
    rows: dict[str, Any], vectors_recipe: Recipe, succeed: Run, refused: Callable[..., list[str]], tmp_path: Path
) -> None:
    export, run = {"formats": ["onnx", "tflite", "coreml"]}, tmp_path / "run"
    one = stage(40, logits=10, hidden=1, attention=1)
    some = {"answer": {"dimensions": [8]}, "verify": {"max_drop": 0.1}}  # 40 rows: an order changes by points
    recipe = vectors_recipe(rows, one, student=NARROW, export=export, **some)
    succeed("run", recipe, "-o", run)
    text = task_rows(1, 3)[0]["text"]
    files = [model.path for model in read_artefacts(run / "phone").models()]
    vectors = {file: np.asarray(pocketbert.load(run / "phone", file=file).predict(text)[0].vector) for file in files}
    assert {Path(file).suffix for file in files} == {".onnx", ".tflite", ".mlpackage"}
    for file, vector in vectors.items():
        assert vector.shape == (32,)
        np.testing.assert_allclose(vector, vectors["onnx/model.onnx"], atol=0.05, err_msg=file)
    weights = run / "student/2_Dense/model.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, "linear.weight": tensors["linear.weight"][::-1].copy()}, weights)
    refused(run, *(f"{file} stored" for file in files))
