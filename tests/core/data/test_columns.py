"""Which columns are taken from a file that names none, and when the answer is a question to the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pocketbert.core.data.columns import Columns, guess_columns
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import LabelKind

TEXTS = [f"please tell me about the number {i} of my orders" for i in range(40)]
NAMES = ["orders", "weather", "music", "alarm"]


def columns(path: Path, kind: LabelKind | None = None, given: dict[str, str] | None = None, **cells: list) -> Columns:
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return guess_columns(DataSource(path=str(path / "rows.jsonl"), **(given or {})), kind)


def names(count: int = 40) -> list[str]:
    return [NAMES[i % 4] for i in range(count)]


def taken(found: Columns) -> tuple[str, str | None, str]:
    return found.source.text, found.source.text_pair, found.source.label


WORDS, TAGS = [t.split() for t in TEXTS], [["O"] * 10] * 40
SCORES = [i / 7 for i in range(40)]
ANSWERS = [{"text": ["orders"], "answer_start": [0]}] * 40


@pytest.mark.parametrize(
    ("kind", "cells", "expected", "note"),
    [
        (None, {"text": TEXTS, "label": names()}, ("text", None, "label"), "(4 names)"),
        (None, {"id": list(range(40)), "intent": names(), "sentence": TEXTS}, ("sentence", None, "intent"), ""),
        (None, {"Utterance": TEXTS, "CLASS": names()}, ("Utterance", None, "CLASS"), ""),
        (None, {"query": TEXTS, "category": names()}, ("query", None, "category"), ""),
        (None, {"Review": TEXTS, "Sentiment": names()}, ("Review", None, "Sentiment"), ""),
        # the surer name wins
        (
            None,
            {"title": TEXTS, "text": TEXTS, "label": [0, 1] * 20, "label_text": ["no", "yes"] * 20},
            ("text", None, "label"),
            "(2 numbers)",
        ),
        # by content
        (
            None,
            {"key": [f"k{i}" for i in range(40)], "said": TEXTS, "goal": names(), "part": ["train"] * 40},
            ("said", None, "goal"),
            "",
        ),
        # sorted by label
        (
            None,
            {"said": [f"{t} and {i}" for i in range(20) for t in TEXTS], "goal": sorted(names(800))},
            ("said", None, "goal"),
            "text: column 'said', label: column 'goal' (4 names)",
        ),
        # pairs
        (
            None,
            {"idx": list(range(40)), "sentence1": TEXTS, "sentence2": TEXTS, "label": [0, 1] * 20},
            ("sentence1", "sentence2", "label"),
            "second text: column 'sentence2'",
        ),
        (None, {"premise": TEXTS, "hypothesis": TEXTS, "label": names()}, ("premise", "hypothesis", "label"), ""),
        (None, {"question": TEXTS, "sentence": TEXTS, "label": names()}, ("question", "sentence", "label"), ""),
        # tags and answers
        (None, {"tokens": WORDS, "tags": TAGS, "intent": names()}, ("tokens", None, "tags"), ""),
        (
            LabelKind.ANSWERS,
            {"id": names(), "title": names(), "question": TEXTS, "context": TEXTS, "answers": ANSWERS},
            ("question", "context", "answers"),
            "",
        ),
    ],
)
def test_columns_are_found(
    tmp_path: Path, kind: LabelKind | None, cells: dict[str, list], expected: tuple[str | None, ...], note: str
) -> None:
    found = columns(tmp_path, kind, None, **cells)
    assert taken(found) == expected
    assert note in found.note


@pytest.mark.parametrize(
    ("cells", "messages"),
    [
        (
            {"first": TEXTS, "other": TEXTS, "label": names()},
            ["'first', 'other' could be the texts", "--text", "'label'"],
        ),
        (
            {"text": TEXTS, "intent": names(), "topic": names()},
            ["'intent', 'topic' could be the labels", "--label 'intent'"],
        ),
        ({"text": TEXTS, "row": [f"row {i}" for i in range(40)]}, ["no column is surely the labels"]),
        ({"text": TEXTS, "score": SCORES, "sentiment": names()}, ["could be the labels"]),
    ],
)
def test_what_could_be_several_is_a_question(tmp_path: Path, cells: dict[str, list], messages: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        columns(tmp_path, **cells)
    [problem] = caught.value.problems
    assert all(message in str(problem) for message in messages)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([i / 7 for i in range(40)], LabelKind.SCORE),
        ([0.5, 1.5] * 20, None),
        (list(range(40)), None),
        ([i % 3 for i in range(40)], LabelKind.NAME),
        (["1", "5"] * 20, LabelKind.NAME),
        ([["a", "b"], ["b"], [], ["a"]] * 10, LabelKind.NAMES),
        (["a; b", "b", "a", "b;c"] * 10, LabelKind.NAMES),
        (["yes; really", "no"] * 20, LabelKind.NAME),
        ([f"answer {i}" for i in range(40)], None),
        ([[{"start": 0, "end": 6, "label": "polite"}]] * 40, LabelKind.SPANS),
    ],
)
def test_kinds_of_labels(tmp_path: Path, cells: list, kind: LabelKind | None) -> None:
    assert columns(tmp_path, text=TEXTS, label=cells).kind is kind


def test_the_task_and_given_columns_choose(tmp_path: Path) -> None:
    cells = {"raw": TEXTS, "tokens": WORDS, "tags": TAGS, "intent": names()}
    assert taken(columns(tmp_path, LabelKind.NAME, {"text": "raw"}, **cells)) == ("raw", None, "intent")
    cells = {"text": TEXTS, "body": TEXTS, "label": names(), "topic": names()}
    found = columns(tmp_path, None, {"label": "topic", "text": "body"}, **cells)
    assert taken(found) == ("body", None, "topic")
    found = columns(tmp_path, LabelKind.SCORE, text=TEXTS, score=SCORES, sentiment=names())
    assert found.source.label == "score"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_by_content_of_a_table(tmp_path: Path, separator: str) -> None:
    rows = [["when", "who", "what was said", "where it went"]]
    rows += [[f"2026-01-{i % 7:02d}", f"user{i}", TEXTS[i], names()[i]] for i in range(40)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(map(separator.join, rows)))
    with pytest.raises(InputError, match="'when', 'where it went' could be the labels"):
        guess_columns(DataSource(path=str(path)))  # dates come back too
    found = guess_columns(DataSource(path=str(path), label="where it went"))
    assert taken(found) == ("what was said", None, "where it went")


def test_texts_alone_words_with_tags_and_answers(tmp_path: Path) -> None:
    assert columns(tmp_path, LabelKind.NONE, content=TEXTS).source.text == "content"
    assert columns(tmp_path, LabelKind.SCORE_OR_NONE, content=TEXTS, part=names()).source.text == "content"
    assert columns(tmp_path, tokens=WORDS, tags=TAGS, intent=names()).kind is LabelKind.SPANS
    assert columns(tmp_path, question=TEXTS, context=TEXTS, answers=ANSWERS).kind is LabelKind.ANSWERS


def test_parquet_with_class_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(sentence=datasets.Value("string"), kind=datasets.ClassLabel(names=["no", "yes"]))
    rows = datasets.Dataset.from_dict({"sentence": TEXTS, "kind": [0, 1] * 20}, features)
    rows.to_parquet(str(tmp_path / "a.parquet"))
    found = guess_columns(DataSource(path=str(tmp_path / "a.parquet")))
    assert found.note == "text: column 'sentence', label: column 'kind' (2 names)"


def test_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n")
    with pytest.raises(InputError, match="no rows"):
        guess_columns(DataSource(path=str(tmp_path / "a.csv")))
