"""Sentence encoders of another width than their teacher: which vectors they have, in training, in all files, and in the gates."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pocketbert
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.predict.sentence_settings import read_pooling, vector_width
from pocketbert.pipeline.learn.finishing import read_training
from support.tiny_task import Task
from support.tiny_texts import task_rows, write_lines

Cli = Callable[..., Any]
Write = Callable[..., Path]
NARROW = {"layers": 1, "hidden": 16}


def stage(steps: int = 6, **signals: float) -> dict[str, Any]:
    weights = {"logits": 0, "hidden": 0, "attention": 0, **signals}
    return {"method": "task", "steps": steps, "batch": 8, "lr": 1e-3, "dropout": 0.0, "signals": weights}


@pytest.fixture
def write(tiny_model: Callable[..., Path], task: Task, tmp_path: Path) -> Write:
    """`write(*stages, **changes)`: a recipe for vectors with 40 scored pairs to train on, 40 others, and a teacher 32 wide."""

    def pairs_of(seed: int) -> dict[str, str]:
        texts = [row["text"] for row in task_rows(41, seed)]
        pairs = [{"a": a, "b": a if i % 2 else b, "label": i % 2} for i, (a, b) in enumerate(pairwise(texts))]
        path = write_lines(tmp_path / f"s{seed}.jsonl", pairs)
        return {"path": str(path), "text": "a", "text_pair": "b", "label": "label"}

    def make(*stages: dict[str, Any], student: dict[str, Any] = NARROW, **changes: Any) -> Path:
        return task.variant(
            tmp_path / "r.yaml",
            task="feature-extraction",
            data={"labels": None, "train": pairs_of(8), "eval": pairs_of(9), "validation": {"fraction": 0.3}},
            teacher={"model": str(tiny_model("bert", 2, (), "AutoModel")), "finetune": None},
            student=student,
            distill=list(stages),
            **changes,
        )

    return make


@pytest.mark.parametrize(
    ("stages", "student", "width"),
    [
        ((stage(labels=1),), NARROW, 16),
        ((stage(logits=1, hidden=1, attention=1), stage(labels=1)), NARROW, 32),
        ((stage(logits=1),), {**NARROW, "init": "random", "heads": 2}, 32),
        ((stage(logits=1),), {"layers": 1}, 32),
    ],
    ids=["order of pairs", "vectors, then order", "random", "teacher's width"],
)
def test_a_student_that_learns_its_teachers_vectors_has_their_width(
    stages: tuple[dict[str, Any], ...], student: dict[str, Any], width: int, write: Write, cli: Cli, tmp_path: Path
) -> None:
    recipe = write(*stages, student=student, training={"evaluate_every": 3})
    made = cli("distill", recipe, "-o", tmp_path / "run")
    assert made.exit_code == 0, made.output + made.stderr
    folder = tmp_path / "run/student"
    pooling, training = read_pooling(folder), read_training(folder)
    assert pooling is not None
    hidden = student.get("hidden", 32)
    assert (vector_width(pooling, hidden), len(pooling.layers)) == (width, int(width != hidden))
    assert not [name for name in load_file(folder / "model.safetensors") if "projection" in name]
    terms = [{name for name, weight in one["signals"].items() if weight} for one in stages]
    assert [set(curve.terms) for curve in training.curves] == terms
    assert all(step for curve in training.curves for step, _ in curve.scores), (
        "vectors are scored while they are learnt"
    )


def test_a_column_of_its_teachers_vectors_gives_a_narrower_student_vectors_of_its_own_width(
    tiny_model: Callable[..., Path], task: Task, cli: Cli, tmp_path: Path
) -> None:
    teacher = tiny_model("bert", 2, (), "AutoModel")
    for split, seed, count in (("train", 7, 60), ("eval", 5, 20)):
        asked = write_lines(
            tmp_path / f"{split}-texts.jsonl", [{"text": row["text"]} for row in task_rows(count, seed)]
        )
        more = ("--task", "feature-extraction", "-o", tmp_path / f"{split}.jsonl")
        assert cli("teach", "-m", teacher, "--data", asked, *more).exit_code == 0
    sources = {split: {"path": str(tmp_path / f"{split}.jsonl"), "teacher": "teacher"} for split in ("train", "eval")}
    recipe = task.variant(
        tmp_path / "r.yaml",
        task="feature-extraction",
        data={"labels": None, **sources},
        teacher={"model": str(teacher), "finetune": None},
        student=NARROW,
        distill=[stage(60, logits=1)],
    )
    made = cli("distill", recipe, "-o", tmp_path / "run")
    assert made.exit_code == 0, made.output + made.stderr
    assert "the teacher's vectors of 32 numbers are mapped to the student's 16" in made.stderr
    pooling, training = read_pooling(tmp_path / "run/student"), read_training(tmp_path / "run/student")
    assert pooling is not None
    assert (vector_width(pooling, 16), pooling.layers) == (16, ())
    assert training.score is not None
    assert training.score.metric == "mean_cosine"
    at_first = training.curves[0].terms["logits"][0]
    assert training.score.value > 1 - at_first + 0.05, (
        "vectors of unseen texts are nearer to the mapped ones than at first"
    )


@pytest.mark.slow
def test_all_files_make_vectors_of_the_teachers_width_and_gates_find_another_projection(
    write: Write, cli: Cli, refused: Callable[..., list[str]], tmp_path: Path
) -> None:
    recipe = write(
        stage(40, logits=10, hidden=1, attention=1),
        export={"formats": ["onnx", "tflite", "coreml"]},
        answer={"dimensions": [8]},
    )
    made = cli("run", recipe, "-o", tmp_path / "run")
    assert made.exit_code == 0, made.output + made.stderr
    text, run = task_rows(1, 3)[0]["text"], tmp_path / "run"
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
