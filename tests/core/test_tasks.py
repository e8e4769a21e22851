from __future__ import annotations

import pytest
import transformers

from pocketbert.core.errors import InputError
from pocketbert.core.tasks import TASKS, Task, TaskName, ready_task


def test_every_name_has_a_row() -> None:
    assert set(TASKS) == set(TaskName)


@pytest.mark.parametrize("task", TASKS.values(), ids=str)
def test_auto_classes_exist_in_transformers(task: Task) -> None:
    assert hasattr(transformers, task.auto_class)
    assert hasattr(transformers, f"Bert{task.head}")


def test_a_served_task_is_returned() -> None:
    assert ready_task("text-classification").metric.name == "accuracy"


def test_a_misspelt_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean 'text-classification'"):
        ready_task("text-clasification")


def test_a_task_that_is_not_served_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match="not served by this version.*served: text-classification"):
        ready_task("question-answering")
