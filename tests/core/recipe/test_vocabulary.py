"""The section that prunes the student's vocabulary: what does not go together with it is named at once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pocketbert.core.recipe.recipe import Recipe

STAGE = {"method": "task", "steps": 10}
LOGITS = {**STAGE, "signals": {"logits": 1, "hidden": 0, "attention": 0}}


def recipe(
    vocabulary: dict[str, Any], *stages: dict[str, Any], task: str = "text-classification", **more: Any
) -> Recipe:
    data = {"train": {"path": "a.jsonl"}, "eval": {"path": "b.jsonl"}}
    content = {"schema": 1, "name": "x", "task": task, "data": data, "teacher": {"model": "m"}}
    student = {"layers": 2, "vocabulary": vocabulary}
    return Recipe.model_validate({**content, "student": student, "distill": [*stages], **more})


def problems(*arguments: Any, **more: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        recipe(*arguments, **more)
    return str(refused.value)


def test_pieces_of_the_training_rows_go_with_every_signal_and_most_tasks() -> None:
    for task in ("text-classification", "token-classification", "multi-label", "regression"):
        made = recipe({}, STAGE, task=task).student
        assert made is not None
        assert made.vocabulary is not None
        assert not made.vocabulary.reads_otherwise


def test_rows_that_are_read_otherwise_go_with_logits_only() -> None:
    for vocabulary, keys in (
        ({"at_least": 2}, "at_least: 2"),
        ({"resplit": 0.5}, "resplit: 0.5"),
        ({"at_least": 3, "resplit": 0.25}, "at_least: 3 and resplit: 0.25"),
    ):
        recipe(vocabulary, LOGITS, {"method": "tinybert-prediction", "steps": 3})
        found = problems(vocabulary, STAGE, {"method": "tinybert-intermediate", "steps": 3}, LOGITS)
        assert "distill.0: method task compares single tokens" in found
        assert "distill.1: method tinybert-intermediate compares single tokens" in found
        assert "distill.2" not in found
        assert keys in found
    assert "token by token" in problems({"at_least": 2}, LOGITS, task="token-classification")


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    data = {"train": {"path": "a.jsonl"}, "eval": {"path": "b.jsonl"}, "augment": {"copies": 2}}
    found = problems({"resplit": 1}, {**STAGE, "augmented": True}, task="fill-mask", data=data)
    for words in ("fill-mask guesses pieces", "distill.0.augmented: copies of rows", "distill.0: method task compares"):
        assert words in found
    corpus = {"corpus": {"sources": [{"path": "c.jsonl"}]}}
    general = {"method": "minilm", "steps": 3}
    assert "add data.train and data.eval" in problems({}, general, task="fill-mask", data=corpus)
    recipe({"resplit": 0.5}, general, LOGITS, data={**data, **corpus, "augment": None})
