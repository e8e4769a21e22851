"""Multiple choice: a row for each choice, one number each, the softmax over the choices of a question."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import make_head
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.heads.multiple_choice import even_choices
from pocketbert.core.predict.answers import Choice
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of
from support.head_rows import check_not_finite_spoils, score_outputs

HEAD = make_head(task_of("multiple-choice"), Labels(()))
ROWS = [
    Example("what day", None, 2, 1, choices=("good", "bad day", "so so")),
    Example("what", None, 0, 2, choices=("day", "good")),
]


def outputs(*numbers: float) -> list[np.ndarray]:
    return [np.full((1, 1), n, np.float32) for n in numbers]


def test_each_choice_is_a_row_behind_the_question_and_rows_are_filled_up_for_training(
    tokenizer: TextTokenizer, folder: Path
) -> None:
    made = HEAD.prepare(ROWS, tokenizer, "a.csv")
    assert made.owner.tolist() == [0, 0, 0, 1, 1]
    wanted = tokenizer.encode([("what day", "good"), ("what day", "bad day"), ("what day", "so so"), ("what", "day")])
    assert [e.ids.tolist() for e in made.encoded[:4]] == [e.ids.tolist() for e in wanted]
    assert np.asarray(made.targets["labels"]).tolist() == [0, 0, 1, 1, 0]
    assert np.asarray(made.targets["choices"]).tolist() == [3, 3, 3, 2, 2]
    short = TextTokenizer(folder, 6).encode([text for row in ROWS for text in row.inputs])
    assert [e.ids.tolist() for e in made.within(6).encoded] == [e.ids.tolist() for e in short]
    made = even_choices(HEAD.prepare(ROWS, tokenizer, "a.csv"))
    assert made.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.asarray(made.targets["labels"]).tolist() == [0, 0, 1, 1, 0, IGNORED_LABEL]
    assert set(np.asarray(made.targets["choices"]).tolist()) == {3}
    assert even_choices(made) is made


def test_accuracy_is_over_questions_and_chance_is_guessing(tokenizer: TextTokenizer) -> None:
    made = HEAD.prepare(ROWS * 10, tokenizer, "a.csv")
    right, wrong = outputs(0, 1, 2, 1, 0), outputs(0, 3, 2, 0, 1)
    assert score_outputs(HEAD, made, right * 10).value == 1.0
    score = score_outputs(HEAD, made, right * 5 + wrong * 5)
    assert (score.metric, score.value, score.rows) == ("accuracy", 0.5, 20)
    assert score.chance == pytest.approx(0.5 + 3 * math.sqrt(0.25 / 20))
    check_not_finite_spoils(HEAD, made, right * 10, [(0, 0, 0), (49, 0, 0)])


def test_the_answer_is_the_softmax_over_the_choices(tokenizer: TextTokenizer) -> None:
    made = HEAD.prepare(ROWS, tokenizer, "texts", labelled=False)
    first, second = HEAD.answers(outputs(0, math.log(2), math.log(5), 1, 1), made)
    assert isinstance(first, Choice)
    assert (first.index, first.text) == (2, "so so")
    assert first.scores == pytest.approx((1 / 8, 2 / 8, 5 / 8), abs=1e-6)
    assert first.numbers == pytest.approx((0, math.log(2), math.log(5)), abs=1e-6)
    assert first.fields(2)["top"][1] == {"choice": 1, "answer": "bad day", "score": 0.25}
    assert first.line() == "2\tso so\t0.6250"
    assert isinstance(second, Choice) and second.scores == (0.5, 0.5)
