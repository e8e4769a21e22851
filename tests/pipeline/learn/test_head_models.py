"""Heads with a model of their own as teacher: it teaches what a column of its answers teaches."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketbert import api
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.pipeline.learn.data import load_data
from pocketbert.pipeline.learn.finishing import Training, read_training
from support.tiny import tiny_classifier, write_bert, write_own_tokenizer
from support.tiny_texts import KEYWORDS, LABELS, LENGTH, task_rows, write_lines

TAGS = ("O", *(f"{mark}-{name}" for name in LABELS for mark in "BI"))
TEACHERS: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "intent": ("text-classification", "roberta", tuple(reversed(LABELS)), {}),
    "topics": ("multi-label", "electra", LABELS, {"problem_type": "multi_label_classification"}),
    "mood": ("regression", "bert", ("score",), {"problem_type": "regression"}),
    "slots": ("token-classification", "distilbert", TAGS, {}),
}
"""Task, family, labels and further configuration of the model that teaches each head."""
STAGE = {"method": "task", "steps": 3, "batch": 8, "lr": 1e-3, "dropout": 0.0, "precision": "fp32"}


def write_rows(path: Path, count: int, seed: int) -> None:
    """Rows with labels of all heads; with seed 1 none has tags, and some have no label at all."""
    rows = list[dict[str, Any]]()
    for i, row in enumerate(task_rows(count, seed)):
        tokens, label = row["text"].split(), row["label"]
        tags = [f"B-{label}" if token in KEYWORDS[label] else "O" for token in tokens]
        whole = {"intent": label, "topics": [label], "mood": float(i % 3), "slots": tags}
        kept = [name for name in whole if seed != 1 or (name != "slots" and i % 5)]
        rows.append({"tokens": tokens, **{name: whole[name] for name in kept}})
    write_lines(path, rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, an encoder to start from, and a teacher of another family and vocabulary for each head."""
    at = tmp_path_factory.mktemp("heads")
    write_rows(at / "train.jsonl", 40, 1)
    write_rows(at / "eval.jsonl", 12, 2)
    write_bert(at / "start")
    for name, (task, family, labels, more) in TEACHERS.items():
        (at / name).mkdir()
        sizes = write_own_tokenizer(at / name, family)
        kind = "AutoModelForTokenClassification" if task.startswith("token") else "AutoModelForSequenceClassification"
        tiny_classifier(family, 2, labels, 3, kind, **sizes, **more).save_pretrained(at / name)
    return at


def write_recipe(at: Path, folder: Path, heads: dict[str, Any], **changes: Any) -> Path:
    """A recipe with a teacher, or other keys, for each of some heads."""
    rows = changes.pop("rows", folder)
    content = {
        "schema": 1,
        "name": "taught",
        "tasks": {name: {"task": TEACHERS[name][0], **own} for name, own in heads.items()},
        "data": {
            "train": {"path": str(rows / "train.jsonl"), "text": "tokens"},
            "eval": {"path": str(rows / "eval.jsonl"), "text": "tokens"},
            "max_length": LENGTH,
        },
        "student": {"model": str(folder / "start")},
        "distill": [STAGE],
        "export": {"formats": ["onnx"], "lengths": [16]},
        **changes,
    }
    (at / "recipe.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return at / "recipe.yaml"


def distil(recipe: Path, output: Path) -> tuple[Training, Training]:
    api.distill(api.load_recipe(recipe), output)
    return read_training(output / "student"), read_training(output / "teacher")


def test_a_model_teaches_its_head_what_a_column_of_its_answers_teaches(folder: Path, tmp_path: Path) -> None:
    models = {name: {"teacher": {"model": str(folder / name)}} for name in TEACHERS}
    asked, teachers = distil(write_recipe(tmp_path, folder, models), tmp_path / "asked")
    for split in ("train", "eval"):
        rows = folder / f"{split}.jsonl"
        for name, (task, *_) in TEACHERS.items():
            source = DataSource.at(str(rows), text="tokens")
            written = tmp_path / f"{split}-{name}.jsonl"
            api.teach([str(folder / name)], source, written, api.TeachOptions(task=task, column=f"{name}_said"))
            rows = written
        rows.rename(tmp_path / f"{split}.jsonl")
    columns = {name: {"teacher": f"{name}_said"} for name in TEACHERS}
    read, columns_score = distil(write_recipe(tmp_path, folder, columns, rows=tmp_path), tmp_path / "read")
    (own,), (wanted,) = asked.curves, read.curves
    assert own.terms.keys() == wanted.terms.keys() == {f"logits.{name}" for name in TEACHERS}
    for name, losses in wanted.terms.items():
        assert losses[0] is not None
        assert losses[0] > 1e-3, "the student would have nothing to learn"
        assert own.terms[name] == pytest.approx(losses, rel=1e-6, abs=1e-6)
    assert teachers.score is not None
    assert columns_score.score is not None
    for name, score in columns_score.score.heads.items():
        assert teachers.score.heads[name].value == pytest.approx(score.value, abs=1e-6), name
    assert {path.name for path in (tmp_path / "asked/teacher").glob("answers-*")} == {
        f"answers-{name}.npz" for name in TEACHERS
    }


def test_a_model_teaches_beside_a_column_and_a_trained_teacher(
    folder: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    write_rows(tmp_path / "train.jsonl", 40, 3)
    write_rows(tmp_path / "eval.jsonl", 12, 2)
    heads: dict[str, Any] = {"slots": {"teacher": {"model": str(folder / "slots")}}, "intent": {}}
    teacher = {"model": str(folder / "start"), "finetune": {"steps": 2, "batch": 8}}
    recipe = write_recipe(tmp_path, folder, heads, rows=tmp_path, teacher=teacher)
    first = cli("distill", recipe, "-o", tmp_path / "run")
    assert first.exit_code == 0, first.stderr
    curve = read_training(tmp_path / "run/student").curves[-1]
    assert {"logits.slots", "logits.intent", "hidden"} <= {*curve.terms}
    again = cli("distill", recipe, "-o", tmp_path / "run")
    assert "answers for slots" not in again.stderr
    shutil.copytree(folder / "slots", tmp_path / "other")
    (tmp_path / "other/README.md").write_text("other bytes")
    heads["slots"] = {"teacher": {"model": str(tmp_path / "other")}}
    refused = cli(
        "distill", write_recipe(tmp_path, folder, heads, rows=tmp_path, teacher=teacher), "-o", tmp_path / "run"
    )
    assert refused.exit_code == 2
    assert "tasks.slots.teacher" in refused.stderr


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("intent", {"teacher": {}}, "tasks.intent.teacher: takes one of column and model"),
    ("intent", {"teacher": {"column": "p", "model": "m"}}, "tasks.intent.teacher: takes one of column and model"),
    ("intent", {"teacher": {"model": "m", "kind": "logits"}}, "kind says how a column is read"),
    ("intent", {"teacher": {"model": "./nowhere"}}, "tasks.intent.teacher.model: "),
    ("intent", {"teacher": {"model": "FOLDER/start"}}, "its checkpoint lacks weights"),
    ("intent", {"teacher": {"model": "FOLDER/mood"}}, "answers with a number, and text-classification learns"),
    (
        "intent",
        {"teacher": {"model": "FOLDER/intent"}, "labels": ["lamp", "other"]},
        "which tasks.intent.labels does not list. Fix: List all labels of the model",
    ),
]


@pytest.mark.parametrize(("name", "keys", "message"), WRONG, ids=[f"{i}-{w[2][:30]}" for i, w in enumerate(WRONG)])
def test_a_model_that_cannot_teach_its_head_is_refused(
    name: str, keys: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    if model := keys["teacher"].get("model"):
        keys = {**keys, "teacher": {**keys["teacher"], "model": model.replace("FOLDER", str(folder))}}
    others = {"slots": {"teacher": {"model": str(folder / "slots")}}}
    with pytest.raises(InputError) as caught:
        load_data(
            api.load_recipe(write_recipe(tmp_path, folder, {name: keys, **others})),
            open_model_folder(str(folder / "start")),
        )
    assert message in str(caught.value)
