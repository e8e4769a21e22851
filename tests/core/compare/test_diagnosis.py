"""A diagnosis finds the groups of rows in which a student loses, and each advice rests on a figure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert import api
from pocketbert.core.compare.diagnosis import ComparedAnswers, StudentDiagnosis, diagnose_answers
from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import AnswerSettings, Head, make_head
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.examples import Example, GoldAnswer
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.spans import Span
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TaskName, task_of
from support.tiny_texts import KEYWORDS, LABELS, vocabulary
from support.tiny_tokenizers import write_wordpiece

WORDS = [word for group in KEYWORDS.values() for word in group]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_wordpiece(folder, vocabulary())
    return TextTokenizer(folder, 64)


def logits_of(labels: Sequence[int], sure: float = 3.0) -> list[Matrix]:
    return [np.eye(3, dtype=np.float32)[[label]] * sure for label in labels]


def compare(
    tokenizer: TextTokenizer, wrong: Callable[[int], bool], count: int = 360, confidence: float = 0.9
) -> ComparedAnswers:
    """Rows of three labels, a third of them long and a third with an unusual word; the teacher is right on all."""
    gold = [i % 3 for i in range(count)]
    texts = [f"the {'nice old ' * (8 if i % 2 else 1)}{WORDS[i % 15]}" for i in range(count)]
    examples = [Example(text, None, LABELS[g], i) for i, (text, g) in enumerate(zip(texts, gold, strict=True))]
    rows = head().prepare(examples, tokenizer, "test")
    student = [(g + 1) % 3 if wrong(i) else g for i, g in enumerate(gold)]
    sure = np.linspace(confidence - 0.3, confidence, count)
    return ComparedAnswers(rows, rows, logits_of(gold), logits_of(student), sure)


def head() -> Head:
    return make_head(task_of(TaskName.TEXT_CLASSIFICATION), Labels(LABELS), AnswerSettings())


def diagnose(
    tokenizer: TextTokenizer,
    wrong: Callable[[int], bool],
    wrong_seen: Callable[[int], bool],
    rare: str = "",
    **facts: str,
) -> StudentDiagnosis:
    """A diagnosis of a student that is wrong on some unseen and some training rows, by number."""
    pieces = np.full(tokenizer.vocabulary_size, 100)
    if rare:
        pieces[tokenizer.encode([rare])[0].ids[1]] = 0
    unseen, seen = compare(tokenizer, wrong), compare(tokenizer, wrong_seen)
    return diagnose_answers(head(), LABELS, unseen, seen, pieces, facts)


def NONE(_: int) -> bool:
    """Say of each row that its answer is right."""
    return False


def every(count: int, rest: int = 0) -> Callable[[int], bool]:
    """Say of a row whether its number divided by `count` leaves `rest`."""
    return lambda i: i % count == rest


@pytest.mark.parametrize(
    ("wrong", "wrong_seen", "rare", "facts", "wanted"),
    [
        (NONE, NONE, "", {}, ["student.layers, or quantize.scheme=small"]),
        (every(7), NONE, "", {}, ["--unlabelled"]),
        (every(7), every(7, 1), "", {}, ["distill.1.epochs, distill.1.lr, student.layers"]),
        (every(6), every(6), "", {}, ["distill.1.lr", "data.train, data.transfer", "data.max_length"]),
        (
            every(15, 4),
            every(15, 4),
            WORDS[4],
            {},
            ["data.transfer; 'data.augment={copies: 5}' distill.0.augmented=true"],
        ),
        (lambda i: i < 48, lambda i: i < 16, "", {}, ["distill.N.temperature=4", "--unlabelled"]),
        (NONE, NONE, "", {"rising": "accuracy 0.8 before, 0.9 at last"}, ["distill.1.epochs or distill.1.steps"]),
    ],
    ids=["kept", "unseen rows", "training rows", "a label, short texts", "a word", "unsure", "still rising"],
)
def test_each_weakness_is_found_and_has_its_remedy(
    wrong: Callable[[int], bool],
    wrong_seen: Callable[[int], bool],
    rare: str,
    facts: dict[str, str],
    wanted: list[str],
    tokenizer: TextTokenizer,
) -> None:
    found = diagnose(tokenizer, wrong, wrong_seen, rare, stage="distill.1", **facts)
    keys = " | ".join(advice.key for advice in found.advice)
    assert [key for key in wanted if key not in keys] == []
    assert all(any(c.isdigit() for c in advice.figure) for advice in found.advice)
    parts = [part.rstrip(",;") for part in shlex.split(keys.replace(" or ", " "))]
    changes = [part for part in parts if part.startswith("data.") and "=" in part]
    assert bool(changes) == ("--unlabelled" in keys or "copies" in keys)
    assert api.load_recipe("demo", [*changes, *(["distill.0.augmented=true"] if "copies" in keys else [])])
    right = sum(not wrong(i) for i in range(360)) / 360
    assert (found.overall.student, found.overall.agreement) == pytest.approx((right, right)), "the teacher is right"
    header, rows = found.table()
    assert {len(row) for row in rows} == {len(header)}
    assert StudentDiagnosis.model_validate_json(found.model_dump_json()) == found
    assert wrong is NONE or "student.layers, or quantize" not in keys


def test_groups_hold_every_row_and_the_worst_labels_come_first(tokenizer: TextTokenizer) -> None:
    found = diagnose(tokenizer, lambda i: i % 3 == 2 and i % 2 == 0, NONE, WORDS[2])
    rows = {by: [g.rows for g in found.groups if g.by == by] for by in dict.fromkeys(g.by for g in found.groups)}
    assert rows.pop("training rows") == [360]
    assert {by: sum(counts) for by, counts in rows.items()} == dict.fromkeys(rows, 360)
    assert rows["rare words"] == [24, 336]
    labels = [g for g in found.groups if g.by == "label"]
    assert labels[0].name == LABELS[2]
    assert labels[0].student == 0.5
    sure = [g.name for g in found.groups if g.by == "teacher confidence"]
    assert sure == ["least sure third (to 0.70)", "middle third", "surest third (from 0.80)"]


def test_a_teacher_that_knows_its_rows_by_heart_is_named(tokenizer: TextTokenizer) -> None:
    unseen, seen = compare(tokenizer, NONE), compare(tokenizer, NONE)
    worse = ComparedAnswers(unseen.rows, unseen.rows, logits_of([0] * 360), logits_of([0] * 360), unseen.confidence)
    found = diagnose_answers(head(), LABELS, worse, seen, np.full(tokenizer.vocabulary_size, 9), {})
    (advice,) = [a for a in found.advice if "teacher first" in a.what]
    assert advice.figure == "the teacher's accuracy is 100.00 on training rows and 33.33 on unseen ones"


@pytest.mark.parametrize(
    ("task", "names", "label", "teacher", "student", "wanted"),
    [
        (TaskName.MULTI_LABEL, LABELS, ("lamp",), [[1, 1, -1]], [[1, -1, -1]], 0.5),
        (TaskName.REGRESSION, (), 1.0, [[1]], [[2]], math.nan),
        # the first and last token are no words, whatever is said of them
        (
            TaskName.TOKEN_CLASSIFICATION,
            ("O", "B-place", "I-place"),
            (Span(0, 4, "place"),),
            [[1], [1], [0], [1], [2]],
            [[0], [1], [0], [0], [0]],
            0.5,
        ),
        (TaskName.QUESTION_ANSWERING, (), (GoldAnswer(0, "lamp"),), [[5, 0, 4, 1, 0]], [[5, 0, 9, 1, 0]], 0.0),
    ],
)
def test_agreement_is_that_of_the_task(
    task: TaskName,
    names: Sequence[str],
    label: Any,
    teacher: Any,
    student: Any,
    wanted: float,
    tokenizer: TextTokenizer,
) -> None:
    text, own = "lamp song timer", make_head(task_of(task), Labels(tuple(names)), AnswerSettings())
    rows = own.prepare(
        [Example(text, text if task is TaskName.QUESTION_ANSWERING else None, label, 1)], tokenizer, "test"
    )
    answers = ComparedAnswers(rows, rows, *([np.array(given, np.float32)] for given in (teacher, student)))
    found = diagnose_answers(own, names, answers, None, np.ones(tokenizer.vocabulary_size), {})
    read = StudentDiagnosis.model_validate_json(found.model_dump_json())  # NaN is null in the file
    for diagnosis in (found, read):
        assert diagnosis.overall.agreement == pytest.approx(wanted, nan_ok=True)


def test_tags_are_compared_word_by_word_where_the_student_splits_words_otherwise(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    write_wordpiece(tmp_path, [piece for piece in vocabulary() if piece != "lamp"])
    smaller, names = TextTokenizer(tmp_path, 64), ("O", "B-place", "I-place")
    own = make_head(task_of(TaskName.TOKEN_CLASSIFICATION), Labels(names), AnswerSettings())
    example = Example("lamp song timer", None, (Span(0, 4, "place"),), 1)
    rows, student_rows = (own.prepare([example], reader, "test") for reader in (tokenizer, smaller))
    assert len(student_rows.encoded[0]) > len(rows.encoded[0]) == 5
    tags = []
    for prepared, of_words in ((rows, (1, 0, 1)), (student_rows, (1, 0, 2))):
        first = np.flatnonzero(prepared.targets["labels"][0] != IGNORED_LABEL)
        tags.append(np.zeros((len(prepared.encoded[0]), 1), np.float32))
        tags[-1][first, 0] = of_words
    answers = ComparedAnswers(rows, student_rows, [tags[0]], [tags[1]])
    found = diagnose_answers(own, names, answers, None, np.ones(tokenizer.vocabulary_size), {})
    assert found.overall.agreement == 0.5
