from __future__ import annotations

import pytest
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.metrics import CHANCE, METRICS
from pocketbert.core.tasks import TASKS, Task, TaskName, task_of


def test_every_name_has_a_row() -> None:
    assert set(TASKS) == set(TaskName)


@pytest.mark.parametrize("task", TASKS.values(), ids=str)
def test_auto_classes_exist_in_transformers(task: Task) -> None:
    assert hasattr(transformers, task.auto_class)
    assert hasattr(transformers, f"Bert{task.head}")


def test_a_served_task_is_returned() -> None:
    assert task_of("text-classification").metric.name == "accuracy"


def test_a_misspelt_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'text-classification'"):
        task_of("text-clasification")


def test_an_unknown_task_is_refused_with_those_that_are_served() -> None:
    with pytest.raises(InputError, match="recipe.yaml:3: 'summarise' is not a task; allowed: ") as caught:
        task_of("summarise", "recipe.yaml:3")
    assert all(name in str(caught.value) for name in TaskName)


@pytest.mark.parametrize("name", TaskName)
def test_every_task_of_the_table_is_served(name: TaskName) -> None:
    task = task_of(name.value)
    assert task.name is name
    assert METRICS[task.metric.name] is task.metric
    assert CHANCE[task.metric.name]
    assert task.answer == task.compared[0]
    assert {output for group in task.compared for output in group} == set(task.outputs)
