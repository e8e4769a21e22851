"""Texts as a task takes them, and what an answer is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.pipeline.reference import answer_label_names, project_texts, takes_texts_and_pairs, task_text

LABELS = ("a", "b", "c")
every_task = pytest.mark.parametrize("task", TASKS.values(), ids=lambda t: t.name.value)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[..., Path]) -> TextTokenizer:
    return TextTokenizer(tiny_model("bert"), 400)


@every_task
def test_own_texts_are_what_the_task_takes(task: Task, tokenizer: TextTokenizer) -> None:
    texts = project_texts(task, tokenizer)
    assert len(texts) == len(SENTENCES) >= 16
    names = (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.REGRESSION)
    assert takes_texts_and_pairs(task) == (task.name in names)
    if task.pairs_only:
        assert task.name in (TaskName.QUESTION_ANSWERING, TaskName.MULTIPLE_CHOICE)
        assert all(isinstance(t, tuple) and len(t) == 2 and all(t) for t in texts)
    elif task.name is TaskName.FILL_MASK:
        masks = {int((e.ids == tokenizer.mask_id).sum()) for e in tokenizer.encode(texts)}
        assert masks == {1}, "one masked word each"
    else:
        assert texts == list(SENTENCES)


@pytest.mark.parametrize(
    ("task", "text", "wanted"),
    [
        (TaskName.FILL_MASK, "one two  three four five", "one two [MASK] four five"),
        (TaskName.FILL_MASK, "one", "[MASK]"),
        (TaskName.FEATURE_EXTRACTION, ("one", "two"), "one"),
        (TaskName.TEXT_CLASSIFICATION, ("one", "two"), ("one", "two")),
    ],
)
def test_a_text_becomes_one_of_the_task(task: TaskName, text: object, wanted: object, tokenizer: TextTokenizer) -> None:
    assert task_text(TASKS[task], text, tokenizer) == wanted  # type: ignore[arg-type]


def test_answers_are_called_by_their_labels() -> None:
    rows = np.array([[0.1, 3, 0], [5, 0, 1], [0, 0, 2]], np.float32)
    assert answer_label_names(rows[:1], TASKS[TaskName.TEXT_CLASSIFICATION], LABELS) == "b"
    assert answer_label_names(rows, TASKS[TaskName.TOKEN_CLASSIFICATION], LABELS) == "b, a, c"
    several = np.array([[0.1, -3, 2]], np.float32)
    assert answer_label_names(several, TASKS[TaskName.MULTI_LABEL], LABELS) == "a, c"
    assert answer_label_names(-np.abs(several), TASKS[TaskName.MULTI_LABEL], LABELS) == ""


@every_task
def test_what_has_no_labels_or_is_no_number_has_no_name(task: Task) -> None:
    rows = np.array([[0.1, 3, 0]], np.float32)
    assert (answer_label_names(rows, task, LABELS) == "") is (not task.names_labels)
    assert answer_label_names(rows, task, ()) == ""
    assert answer_label_names(rows * np.nan, task, LABELS) == ""
