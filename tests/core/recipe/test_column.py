"""Recipes whose teacher is a column of answers: what is filled in, and what contradicts the column."""

from __future__ import annotations

from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.core.recipe.recipe import Recipe

STAGE = {"method": "task", "steps": 5}


def recipe(**changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "schema": 1,
        "name": "taught",
        "task": "text-classification",
        "data": {"train": {"path": "a.jsonl", "teacher": "probs"}, "eval": {"fraction": 0.1}},
        "student": {"layers": 2},
        "distill": [STAGE],
    }
    return recipe_from_values({**content, **changes}, "recipe")


def test_a_recipe_with_a_column_needs_no_teacher_and_learns_outputs_only() -> None:
    plain = recipe()
    assert plain.teacher.model == "minilm-l6"
    assert plain.column is not None
    assert plain.column.column == "probs"
    assert {name for name, weight in plain.distill[0].model_dump()["signals"].items() if weight} == {"logits"}
    assert recipe(student={"model": "org/encoder"}).teacher.model == "org/encoder"
    assert recipe(teacher={"model": "org/other"}, student={"layers": 2}).teacher.model == "org/other"
    again = recipe_from_values(plain.model_dump(mode="json", by_alias=True), "again")
    assert again == plain


def test_other_recipes_need_a_teacher_and_their_settings_stay_as_they_were() -> None:
    rows = {"train": {"path": "a.jsonl"}, "eval": {"fraction": 0.1}}
    with pytest.raises(InputError, match="teacher"):
        recipe(data=rows)
    other = recipe(data=rows, teacher={"model": "org/model"})
    assert other.column is None
    assert other.distill[0].model_dump()["signals"]["hidden"] == 1
    assert "teacher" not in other.model_dump(mode="json")["data"]["train"]


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"teacher": {"model": "m", "finetune": {"steps": 5}}}, "leave one of them out"),
    ({"distill": [{**STAGE, "signals": {"hidden": 1}}]}, "hidden states and attention are in no column"),
    ({"distill": [{**STAGE, "cache_teacher": "fp32"}]}, "are stored already"),
    ({"distill": [{"method": "tinybert-intermediate", "steps": 5}]}, "compares layers of a model"),
    ({"student": None, "distill": []}, "a column teaches a student"),
]


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS, ids=[case[1] for case in CONTRADICTIONS])
def test_what_a_column_cannot_serve_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        recipe(**changes)
    assert message in str(caught.value)
