"""Multiple choice as data sets write it: where the choices are, and which one is right."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.data.columns import guess_columns
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.predict.examples import Example
from pocketbert.core.tasks import LabelKind

SWAG = {"": "0", "video-id": "v", "fold-ind": "1", "startphrase": "She sits. She", "sent1": "She sits.", "sent2": "She"}
ENDINGS = {"gold-source": "gold", "ending0": "eats.", "ending1": "runs.", "ending2": "is a fox.", "ending3": "sings."}
STEM = {
    "stem": "Where is it?",
    "choices": [{"label": k, "text": t} for k, t in zip("ABC", ("here", "there", "no"), strict=True)],
}
FORMATS: dict[str, tuple[Sequence[Mapping[str, Any]], tuple[str, tuple[str, ...]], list[int]]] = {
    "swag": (
        [{**SWAG, **ENDINGS, "label": n} for n in (0, 3)],
        ("She sits.", ("She eats.", "She runs.", "She is a fox.", "She sings.")),
        [0, 3],
    ),
    "hellaswag": (
        [{"ind": 4, "ctx": "A man sits.", "endings": ["He eats.", "He runs."], "label": n} for n in ("0", "1")],
        ("A man sits.", ("He eats.", "He runs.")),
        [0, 1],
    ),
    "commonsense-qa": (
        [{"id": "x", "question": STEM, "answerKey": k} for k in "CA"],
        ("Where is it?", ("here", "there", "no")),
        [2, 0],
    ),
    "arc-with-numbers": (
        [
            {"question": "Where?", "choices": {"label": ["1", "2"], "text": ["here", "there"]}, "answerKey": k}
            for k in "21"
        ],
        ("Where?", ("here", "there")),
        [1, 0],
    ),
    "race": (
        [{"article": "Long ago.", "question": "When?", "options": ["then", "now"], "answer": a} for a in "BA"],
        ("Long ago.", ("When? then", "When? now")),
        [1, 0],
    ),
    "piqa": (
        [{"goal": "Cut it", "sol1": "with a knife", "sol2": "with a cup", "label": n} for n in (0, 1)],
        ("Cut it", ("with a knife", "with a cup")),
        [0, 1],
    ),
    "social-iqa": (
        [
            {"context": "He left.", "question": "Why?", "answerA": "a", "answerB": "b", "answerC": "c", "label": n}
            for n in "321"
        ],
        ("He left.", ("Why? a", "Why? b", "Why? c")),
        [2, 1, 0],
    ),
    "mmlu": (
        [{"question": "2 + 2?", "subject": "math", "choices": ["3", "4"], "answer": n} for n in (1, 0)],
        ("2 + 2?", ("3", "4")),
        [1, 0],
    ),
    "medqa": (
        [{"question": "What?", "options": {"A": "flu", "B": "cold"}, "answer": t} for t in ("cold", "flu")],
        ("What?", ("flu", "cold")),
        [1, 0],
    ),
    "letters": (
        [{"question": "What?", "A": "flu", "B": "cold", "C": "none", "answer": a} for a in "cA"],
        ("What?", ("flu", "cold", "none")),
        [2, 0],
    ),
}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> DataSource:
    """Write rows as JSONL, or as CSV with lists and objects as JSON."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(
                {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()} for row in rows
            )
    return DataSource.at(str(path))


def read(source: DataSource, kind: LabelKind | None) -> list[Example]:
    found = guess_columns(source, kind)
    assert found.kind is LabelKind.CHOICE
    return read_examples(found.source, kind=LabelKind.CHOICE)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_read_as_their_data_sets_write_them(name: str, tmp_path: Path) -> None:
    rows, (question, choices), right = FORMATS[name]
    for kind in (None, LabelKind.CHOICE):  # without and with a task
        examples = read(write(tmp_path / "rows.jsonl", rows), kind)
        assert [(e.text, e.choices) for e in examples] == [(question, choices)] * len(rows)
        assert [e.label for e in examples] == right
    if name != "commonsense-qa":  # an object in the question's cell is written as text
        assert [e.label for e in read(write(tmp_path / "rows.csv", rows), LabelKind.CHOICE)] == right


def test_a_row_with_its_choices_is_another_one_than_with_others(tmp_path: Path) -> None:
    rows = [{"question": "What?", "choices": c, "answer": 0} for c in (["a", "b"], ["a", "c"], ["a", "b"])]
    digests = [e.digest for e in read(write(tmp_path / "rows.jsonl", rows), LabelKind.CHOICE)]
    assert (digests[0] == digests[2], digests[0] == digests[1]) == (True, False)


GOOD = {"question": "What?", "choices": ["a good one", "a bad one"], "answer": 0}
BAD = [
    ({"answer": 2}, "2 is no number of its 2 choices, which count from 0"),
    ({"answer": "E"}, "'E' marks none of the 2 choices"),
    ({"answer": 0.5}, "0.5 marks none of the 2 choices"),
    ({"choices": ["one"]}, "not a list of at least 2 texts"),
    ({"choices": "one; two"}, "not a list of at least 2 texts"),
    ({"choices": ["one", ""]}, "choice 2 is empty"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words for _, words in BAD])
def test_a_row_that_marks_no_choice_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [GOOD, {**GOOD, **change}])
    named = source.model_copy(update={"text": "question", "choices": "choices", "label": "answer"})
    with pytest.raises(InputError, match=words):
        read_examples(named, kind=LabelKind.CHOICE)


def test_numbers_that_may_count_from_0_or_from_1_are_refused(tmp_path: Path) -> None:
    rows = [{"question": "What?", "choices": ["a", "b", f"c{i}"], "answer": i % 2 + 1} for i in range(4)]
    source = write(tmp_path / "rows.jsonl", rows).model_copy(
        update={"text": "question", "choices": "choices", "label": "answer"}
    )
    with pytest.raises(InputError, match="1 may count the choices from 0 or from 1") as caught:
        read_examples(source, kind=LabelKind.CHOICE)
    assert "Write letters" in caught.value.problems[0].fix
    for number, first in ((0, 0), (3, 1)):
        write(tmp_path / "rows.jsonl", [*rows, {**rows[0], "question": "Which?", "answer": number}])
        assert [e.label for e in read_examples(source, kind=LabelKind.CHOICE)][:2] == [1 - first, 2 - first]


@pytest.mark.parametrize(
    "row",
    [
        {"text": "set an alarm", "label": "alarm"},
        {"question": "who", "context": "a fox", "answers": {"text": ["a fox"], "answer_start": [0]}},
        {"text": "a text", "a": "x", "b": "y", "label": "1"},
        {"text1": "a text", "text2": "another text", "label": "1"},
    ],
    ids=["labels", "squad", "columns a and b", "pairs"],
)
def test_other_rows_are_not_taken_for_it(row: dict[str, Any], tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", [row, row, {**row, "label": "0"}])
    assert guess_columns(source).kind is not LabelKind.CHOICE
    if "a" not in row:
        with pytest.raises(InputError, match="no question with choices was found"):
            guess_columns(source, LabelKind.CHOICE)
