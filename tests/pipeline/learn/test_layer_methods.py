"""`pocketbert distill` with TinyBERT's and MiniLM's stages, from plain text to the student's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.tiny import write_bert
from support.tiny_texts import task_rows, vocabulary, write_lines
from support.tiny_tokenizers import write_wordpiece

PLAN = {"steps": 20, "batch": 16, "lr": 1e-3, "dropout": 0.0, "checkpoint": 5}
GENERAL = {"method": "tinybert-general", **PLAN, "projection": "per_layer"}
INTERMEDIATE = {"method": "tinybert-intermediate", **PLAN, "projection": "per_layer", "augmented": True}
PREDICTION = {"method": "tinybert-prediction", **PLAN, "augmented": True}
MINILM = {"method": "minilm", **PLAN, "masking": "whole-word"}
NARROW = {"layers": 1, "init": "random", "hidden": 16, "heads": 2, "intermediate": 32}
Write = Callable[..., Path]


@pytest.fixture
def recipe(task: Any, tmp_path: Path) -> Write:
    """`recipe(stages, student, **changes)`: the tiny task, whose student is narrower than its teacher."""
    rows = [{"text": r["text"]} for r in task_rows(200, 9)]
    text = write_lines(tmp_path / "text.jsonl", rows)

    def write(
        stages: list[dict[str, Any]],
        student: dict[str, Any] | None = None,
        copies: bool = True,
        **changes: Any,
    ) -> Path:
        data: dict[str, Any] = (
            {"corpus": {"sources": [{"path": str(text)}], "length": 32}}
            if any(s["method"] in ("minilm", "tinybert-general") for s in stages)
            else {}
        )
        if any(s.get("augmented") for s in stages) and copies:
            data["augment"] = {"copies": 2, "candidates": 5}
        return task.variant(
            tmp_path / "recipe.yaml",
            distill=stages,
            data=data,
            student={**(student or NARROW), "layers": (student or NARROW).get("layers")},
            teacher={"finetune": {"steps": 40}},
            **changes,
        )

    return write


def curves(folder: Path) -> dict[str, dict[str, Any]]:
    """The last record of each stage."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["stage"]: line for line in lines}


def test_tinybert_from_text_to_a_student(recipe: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    run = cli("distill", recipe([GENERAL, INTERMEDIATE, PREDICTION]), "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    made = curves(tmp_path / "run")
    assert set(made["distill.0"]["terms"]) == {"attention", "hidden", "embeddings"} == set(made["distill.1"]["terms"])
    assert set(made["distill.2"]["terms"]) == {"logits"}
    assert "augmented: 600 rows and " in run.stderr

    from safetensors import safe_open

    with safe_open(tmp_path / "run" / "student" / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert file.get_tensor("bert.embeddings.word_embeddings.weight").shape[1] == 16
    assert not [n for n in names if "projection" in n], "it is no part of the student"


def test_a_projection_goes_on_where_the_general_stage_left_it(
    recipe: Write, cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketbert.distill.methods import tinybert
    from pocketbert.distill.students import projection

    carried: list[Any] = []
    attach = projection.attach_projection

    def spied(*arguments: Any, **more: Any) -> Any:
        carried.append(more.get("carried"))
        return attach(*arguments, **more)

    monkeypatch.setattr(tinybert, "attach_projection", spied)
    run = cli("distill", recipe([GENERAL, {**INTERMEDIATE, "augmented": False}]), "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    assert carried[0] is None
    assert isinstance(carried[1], projection.LayerProjection)


def test_minilm_needs_neither_width_nor_heads_of_the_teacher(
    recipe: Write, cli: Callable[..., Any], tmp_path: Path
) -> None:
    student = {**NARROW, "heads": 4}
    run = cli("distill", recipe([MINILM, PREDICTION], student), "-o", tmp_path / "run")
    assert run.exit_code == 0, run.output
    made = curves(tmp_path / "run")
    assert set(made["distill.0"]["terms"]) == {"query", "key", "value"}
    assert made["distill.0"]["loss"] > 0


def test_a_student_goes_on_from_a_folder(recipe: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    first = cli("distill", recipe([MINILM, PREDICTION]), "-o", tmp_path / "first")
    assert first.exit_code == 0, first.output
    student = tmp_path / "first" / "student"
    second = cli("distill", recipe([PREDICTION], {"model": str(student)}), "-o", tmp_path / "second")
    assert second.exit_code == 0, second.output
    before, after = (curves(tmp_path / n)[s]["loss"] for n, s in (("first", "distill.1"), ("second", "distill.0")))
    assert after < before

    other = cli("distill", recipe([PREDICTION], {"model": str(student), "layers": 2}), "-o", tmp_path / "third")
    assert other.exit_code == 2
    assert "layers: the student in model has its own" in other.stderr


def test_a_student_of_another_vocabulary_is_refused(recipe: Write, cli: Callable[..., Any], tmp_path: Path) -> None:
    other = write_bert(tmp_path / "other")
    write_wordpiece(other, sorted(vocabulary()))
    said = cli("distill", recipe([PREDICTION], {"model": str(other)}, copies=True), "-o", tmp_path / "run")
    assert said.exit_code == 2
    assert "has another vocabulary than the teacher" in said.stderr


def test_what_does_not_go_together_is_refused_at_once(recipe: Write, cli: Callable[..., Any]) -> None:
    stages = [{**GENERAL, "projection": "shared"}, {**INTERMEDIATE, "layers": [1, 2]}]
    said = cli("recipes", "validate", recipe(stages, task="token-classification"))
    assert said.exit_code == 2
    assert "TinyBERT's stages go on with one projection" in said.stderr
    assert "distill.1.layers: lists 2 layers, the student has 1" in said.stderr


def test_stages_that_want_copies_need_the_section(recipe: Write, cli: Callable[..., Any]) -> None:
    said = cli("recipes", "validate", recipe([PREDICTION], copies=False))
    assert said.exit_code == 2
    assert "distill.0.augmented: needs data.augment" in said.stderr


def test_what_is_packed_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    from pocketbert.core.recipe.file import dump_recipe, load_recipe
    from pocketbert.pipeline.phone.pack import portable

    path = tmp_path / "recipe.yaml"
    path.write_text(
        """schema: 1
name: portable
task: text-classification
data:
  train: {path: sub/train.jsonl}
  eval: {path: dev.jsonl}
  corpus: {sources: [{path: sub/text.jsonl}]}
  augment: {vectors: sub/words.txt}
teacher: {model: google-bert/bert-base-uncased}
student: {model: ./general}
distill:
  - {method: tinybert-general, steps: 1}
  - {method: tinybert-prediction, steps: 1, augmented: true}
"""
    )
    recipe = load_recipe(path)
    assert recipe.data.augment is not None
    assert recipe.data.augment.vectors == tmp_path / "sub" / "words.txt", "counted from the recipe"
    written = dump_recipe(portable(recipe))
    assert str(tmp_path) not in written
    for name in ("train.jsonl", "dev.jsonl", "text.jsonl", "words.txt", "general"):
        assert f": {name}\n" in written
    assert "google-bert/bert-base-uncased" in written
