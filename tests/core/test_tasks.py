"""The table of tasks."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.metrics import CHANCE, METRICS
from pocketbert.core.tasks import HEADS_KEY, TASKS, TaskName, read_heads, task_of


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_row_that_the_rest_agrees_with(name: TaskName) -> None:
    task = task_of(name.value)
    assert task is TASKS[name]
    assert hasattr(transformers, task.auto_class)
    assert hasattr(transformers, f"Bert{task.head}")
    assert METRICS[task.metric.name] is task.metric
    assert CHANCE[task.metric.name]
    assert task.answer == task.compared[0]
    assert {output for group in task.compared for output in group} == set(task.outputs)


def test_an_unknown_task_is_refused_with_the_nearest_or_all() -> None:
    with pytest.raises(InputError, match="did you mean 'text-classification'"):
        task_of("text-clasification")
    with pytest.raises(InputError, match="recipe.yaml:3: 'summarise' is not a task; allowed: ") as caught:
        task_of("summarise", "recipe.yaml:3")
    assert all(name in str(caught.value) for name in TASKS)


def heads_of(*names: str) -> tuple[Any, list[str]]:
    """Heads of regression, and their labels."""
    return dict.fromkeys(names, "regression"), [f"{name}: number" for name in names]


@pytest.mark.parametrize(
    ("heads", "labels", "said"),
    [
        (*heads_of("mood"), "does not fit the labels"),
        (*heads_of(*(f"h{i}" for i in range(17))), "does not fit the labels"),
        (*heads_of("mood", "../x"), "'../x' is no name of a head"),
        (*heads_of("mood", "Intent"), "'Intent' is no name of a head"),
        (*heads_of("mood", "a" * 33), "is no name of a head"),
        (*heads_of("mood", "a\n"), "is no name of a head"),
        *((*heads_of("mood", name), f"cannot be called {name}") for name in ("text", "truncated", "row", "teacher")),
        ({}, ["mood: number"], "does not fit the labels"),
        (5, ["mood: number"], "is 5, which does not fit"),
        (["a", 1], ["mood: number"], "does not fit the labels"),
        ({"mood": ["regression"], "size": "regression"}, ["mood: number"], "does not fit the labels"),
        (heads_of("mood", "size")[0], [], "does not fit the labels"),
        (heads_of("mood", "size")[0], ["mood: number", "other: number"], "does not fit the labels"),
    ],
)
def test_heads_of_a_config_that_no_model_has_are_refused(heads: Any, labels: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_heads({HEADS_KEY: heads}, labels, "config.json")
    assert said in str(caught.value)


def test_heads_are_read_in_the_order_of_their_columns_and_thousands_refused_before_these_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads, labels = heads_of(*(f"h{i}" for i in range(16)))
    assert [*(read_heads({HEADS_KEY: dict(reversed(heads.items()))}, labels, "config.json") or ())] == [*heads]
    assert read_heads({HEADS_KEY: None}, labels, "config.json") is None
    assert read_heads({}, labels, "config.json") is None
    heads, labels = heads_of(*(f"h{i}" for i in range(8000)))
    monkeypatch.delattr("pocketbert.core.tasks.several_task")  # which takes seconds for them
    with pytest.raises(InputError, match="does not fit the labels"):
        read_heads({HEADS_KEY: heads}, labels, "config.json")
