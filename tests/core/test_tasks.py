"""The table of tasks."""

from __future__ import annotations

import pytest
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.metrics import CHANCE, METRICS
from pocketbert.core.tasks import TASKS, TaskName, task_of


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
