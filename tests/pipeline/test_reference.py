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


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[..., Path]) -> TextTokenizer:
    return TextTokenizer(tiny_model("bert"), 400)


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda t: t.name.value)
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
    rows, several = np.array([[0.1, 3, 0], [5, 0, 1], [0, 0, 2]], np.float32), np.array([[0.1, -3, 2]], np.float32)
    for outputs, name, wanted in (
        (rows[:1], TaskName.TEXT_CLASSIFICATION, "b"),
        (rows, TaskName.TOKEN_CLASSIFICATION, "b, a, c"),
        (several, TaskName.MULTI_LABEL, "a, c"),
        (-np.abs(several), TaskName.MULTI_LABEL, ""),
    ):
        assert answer_label_names(outputs, TASKS[name], LABELS) == wanted
    for task in TASKS.values():
        assert (answer_label_names(rows[:1], task, LABELS) == "") is (not task.names_labels)
        assert answer_label_names(rows[:1], task, ()) == ""
        assert answer_label_names(rows[:1] * np.nan, task, LABELS) == "", "no number"
