"""What the label column may hold for each kind of label, and what it may not: read as a file is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data.cells import Span
from pocketbert.core.data.examples import Example, GoldAnswer, read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import LabelKind

CONTEXT = "Ada wrote it in 1843. Ada lived in London."
WORDS = ["Ada", "met", "New York", "."]


def read(path: Path, kind: LabelKind, *rows: dict[str, Any], **columns: Any) -> list[Example]:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return read_examples(DataSource(path=str(path), **columns), kind=kind)


def label(path: Path, kind: LabelKind, row: dict[str, Any], **columns: Any) -> Any:
    [example] = read(path / "a.jsonl", kind, row, **columns)
    return example.label


def table(path: Path, text: str, kind: LabelKind, **columns: Any) -> list[Example]:
    (path / "a.csv").write_text(text)
    return read_examples(DataSource(path=str(path / "a.csv"), **columns), kind=kind)


def refused(path: Path, kind: LabelKind, row: dict[str, Any], **columns: Any) -> str:
    with pytest.raises(InputError) as caught:
        label(path, kind, row, **columns)
    [problem] = caught.value.problems
    assert problem.where == f"{path / 'a.jsonl'}:1"
    return problem.what


# Several labels


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        (["joy", "anger"], ("joy", "anger")),
        ([], ()),
        ([2, 0], (2, 0)),
        ("joy; anger", ("joy", "anger")),
        ("joy;", ("joy",)),
        ("", ()),
        ([True], ("true",)),
        (["2", 1.0], (2, 1)),
        (["a;b"], ("a;b",)),
    ],
)
def test_lists_of_labels(tmp_path: Path, cell: Any, labels: tuple[Any, ...]) -> None:
    assert label(tmp_path, LabelKind.NAMES, {"text": "x", "label": cell}) == labels


def test_lists_of_labels_in_csv(tmp_path: Path) -> None:
    rows = table(tmp_path, "text,label\none,a;b\ntwo,\nthree,7\n", LabelKind.NAMES)
    assert [e.label for e in rows] == [("a", "b"), (), (7,)]


@pytest.mark.parametrize("cell", [3, {"a": 1}, ["a", None], [["a"]], [1.5]])
def test_what_is_no_list_of_labels(tmp_path: Path, cell: Any) -> None:
    assert "not a list of names or numbers" in refused(tmp_path, LabelKind.NAMES, {"text": "x", "label": cell})


# Numbers


@pytest.mark.parametrize(("cell", "value"), [(2.5, 2.5), (0, 0.0), ("-1e-3", -0.001), (" 4 ", 4.0)])
@pytest.mark.parametrize("kind", [LabelKind.SCORE, LabelKind.SCORE_OR_NONE])
def test_scores(tmp_path: Path, kind: LabelKind, cell: Any, value: float) -> None:
    found = label(tmp_path, kind, {"text": "x", "label": cell})
    assert found == value
    assert isinstance(found, float)


@pytest.mark.parametrize("cell", ["NaN", "inf", "1e999", "high", "", True, [1.0], {"score": 1}])
def test_what_is_no_score(tmp_path: Path, cell: Any) -> None:
    assert "is not a finite number" in refused(tmp_path, LabelKind.SCORE, {"text": "x", "label": cell})


def test_a_score_may_be_missing_where_it_is_not_needed(tmp_path: Path) -> None:
    assert label(tmp_path, LabelKind.SCORE_OR_NONE, {"text": "x"}) is None
    assert "no column 'label'" in refused(tmp_path, LabelKind.SCORE, {"text": "x"})


def test_plain_text_needs_no_label_and_reads_none(tmp_path: Path) -> None:
    assert label(tmp_path, LabelKind.NONE, {"text": "x"}) is None
    assert label(tmp_path, LabelKind.NONE, {"text": "x", "label": {"whatever": 1}}) is None


# Spans


def test_words_with_tags_become_one_text_with_spans(tmp_path: Path) -> None:
    row = {"text": WORDS, "label": ["B-per", "O", "B-loc", "O"]}
    [example] = read(tmp_path / "a.jsonl", LabelKind.SPANS, row)
    assert example.text == "Ada met New York ."
    assert example.label == (Span(0, 3, "per"), Span(8, 16, "loc"))
    assert [example.text[s.start : s.end] for s in example.label] == ["Ada", "New York"]  # type: ignore[union-attr]


@given(words=st.lists(st.text(min_size=1).filter(str.strip), max_size=6))
def test_joined_words_keep_their_positions(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    row = {"text": ["a", *words], "label": ["B-x"] * (len(words) + 1)}
    [example] = read(tmp_path_factory.getbasetemp() / "joined.jsonl", LabelKind.SPANS, row)
    assert [example.text[s.start : s.end] for s in example.label] == ["a", *words]  # type: ignore[union-attr]
    assert example.text == " ".join(["a", *words])


def test_spans_of_a_running_text(tmp_path: Path) -> None:
    cell = [{"start": 15, "end": 23, "label": "loc"}, {"start": 0, "end": 3, "label": "per", "id": 7}]
    found = label(tmp_path, LabelKind.SPANS, {"text": "Ada lived near New York", "label": cell})
    assert found == (Span(0, 3, "per"), Span(15, 23, "loc"))


def test_a_running_text_without_spans(tmp_path: Path) -> None:
    assert label(tmp_path, LabelKind.SPANS, {"text": "nobody was there", "label": []}) == ()


def test_tags_in_csv_are_separated_by_blanks(tmp_path: Path) -> None:
    [example] = table(tmp_path, "text,label\nAda met  Bob,B-per O B-per\n", LabelKind.SPANS)
    assert example.text == "Ada met  Bob"
    assert example.label == (Span(0, 3, "per"), Span(9, 12, "per"))


@pytest.mark.parametrize(
    ("text", "cell", "message"),
    [
        (WORDS, ["O", "O"], r"numbers of tags (2) and of words (4) differ"),
        (WORDS, [], r"numbers of tags (0) and of words (4) differ"),
        (WORDS, [0, 1, 2, 0], "numbers need names"),
        (WORDS, 3, "tags are int '3', not a list"),
        ("Ada met Bob", ["O", "O"], "need a text that is a list of words"),
        ("Ada met Bob", "", "need a text that is a list of words"),
        ("Ada", [{"start": 0, "end": 4, "label": "per"}], "within the 3 characters"),
        ("Ada", [{"start": 2, "end": 2, "label": "per"}], "is not {start, end, label}"),
        ("Ada", [{"start": -1, "end": 2, "label": "per"}], "is not {start, end, label}"),
        ("Ada", [{"start": 0, "end": 2, "label": ""}], "is not {start, end, label}"),
        ("Ada", [{"start": "0", "end": 2, "label": "per"}], "is not {start, end, label}"),
        ("Ada", [{"start": True, "end": 2, "label": "per"}], "is not {start, end, label}"),
        ("Ada", [{"start": 0, "end": 2, "label": "per"}, {"start": 1, "end": 3, "label": "loc"}], "spans overlap"),
        ("Ada", [{"start": 0, "end": 2, "label": "B-52"}], "label 'B-52' reads like a tag"),
        ("Ada", [{"start": 0, "end": 2, "label": "O"}], "label 'O' reads like a tag"),
        ("Ada", [{"start": 0, "end": 2, "label": "per"}, "O"], "neither names nor {start, end, label}"),
        (["Ada", 3], ["O", "O"], "column 'text' holds list, not text"),
        (["Ada", " "], ["O", "O"], "column 'text' holds list, not text"),
        ([], [], "column 'text' is empty"),
    ],
)
def test_what_are_no_spans(tmp_path: Path, text: Any, cell: Any, message: str) -> None:
    assert message in refused(tmp_path, LabelKind.SPANS, {"text": text, "label": cell})


# Answers


def answer(path: Path, **row: Any) -> Any:
    return label(path, LabelKind.ANSWERS, {"text": "Who?", "pair": CONTEXT, **row}, text_pair="pair")


def no_answer(path: Path, **row: Any) -> str:
    return refused(path, LabelKind.ANSWERS, {"text": "Who?", "pair": CONTEXT, **row}, text_pair="pair")


def test_answers_as_the_hub_has_squad(tmp_path: Path) -> None:
    found = answer(tmp_path, label={"text": ["Ada", "1843", "Ada"], "answer_start": [22, 16, 22]})
    assert found == (GoldAnswer(22, "Ada"), GoldAnswer(16, "1843")), "each once, in their order"
    assert answer(tmp_path, label={"text": [], "answer_start": []}) == ()


def test_other_forms_of_answers(tmp_path: Path) -> None:
    second = (GoldAnswer(22, "Ada"),)
    assert answer(tmp_path, label=["Ada"], answer_start=[22]) == second
    assert answer(tmp_path, label="Ada", answer_start=22) == second
    assert answer(tmp_path, label=[{"text": "Ada", "start": 22}]) == second
    assert answer(tmp_path, label=[{"text": "Ada", "answer_start": 22}]) == second
    assert answer(tmp_path, label=["Ada"]) == (GoldAnswer(0, "Ada"),), "the first place, where none is given"
    assert answer(tmp_path, label=[]) == answer(tmp_path, label="") == ()


def test_answers_in_csv(tmp_path: Path) -> None:
    text = f"text,pair,label,answer_start\nWho?,{CONTEXT},Ada,22\nWhere?,{CONTEXT},London,35\nWhy?,{CONTEXT},,\n"
    found = table(tmp_path, text, LabelKind.ANSWERS, text_pair="pair")
    assert [e.label for e in found] == [(GoldAnswer(22, "Ada"),), (GoldAnswer(35, "London"),), ()]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"label": {"text": ["Ada"], "answer_start": [3]}}, "is not in the context at character 3"),
        ({"label": {"text": ["Ada"], "answer_start": [-42]}}, "is not in the context at character"),
        ({"label": ["Charles"]}, "answer 'Charles' is not in the context."),
        ({"label": "Ada", "answer_start": 1}, "at character 1"),
        ({"label": "Ada", "answer_start": "first"}, "at character first"),
        ({"label": {"text": ["Ada"], "answer_start": [True]}}, "is not in the context at character"),
        ({"label": {"text": ["Ada", "1843"], "answer_start": [22]}}, "1 places for 2 answers"),
        ({"label": ["Ada"], "answer_start": [0, 22]}, "2 places for 1 answers"),
        ({"label": 7}, "answers are int '7'"),
        ({"label": {"answer": "Ada"}}, "answers are NoneType"),
        ({"label": [""]}, "answer '' is not text"),
        ({"label": [3]}, "answer 3 is not text"),
        ({"label": [{"start": 0}]}, "answer None is not text"),
    ],
)
def test_what_are_no_answers(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    assert message in no_answer(tmp_path, **row)
