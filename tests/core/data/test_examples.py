"""Rows become examples: what the columns may hold for each kind of label, and how examples are divided."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pocketbert.core.data.reading import read_examples, read_labelled_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.predict.examples import (
    Example,
    GoldAnswer,
    drop_duplicates_of,
    drop_overlapping,
    hold_out,
    hold_out_share,
)
from pocketbert.core.predict.spans import Span
from pocketbert.core.tasks import LabelKind

CONTEXT = "Ada wrote it in 1843. Ada lived in London."
WORDS = ["Ada", "met", "New York", "."]
GOOD = {"text": "a good film", "label": "positive"}


def read(path: Path, *rows: dict[str, Any], kind: LabelKind = LabelKind.NAME, **columns: Any) -> list[Example]:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return read_examples(DataSource(path=str(path), **columns), kind=kind)


def read_csv(path: Path, text: str, kind: LabelKind = LabelKind.NAME, **columns: Any) -> list[Example]:
    path.write_text(text)
    return read_examples(DataSource(path=str(path), **columns), kind=kind)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ('{"text":' + "[" * 99999, "not valid JSON"),
        ("[1]", "this is list"),
        ("{}", "the row is empty"),
        ('{"text": 3, "label": 0}', "holds int, not text"),
        ('{"text": "  ", "label": 0}', "is empty"),
        ('{"text": "half \\ud83d", "label": 0}', "is not Unicode text"),
        *[(json.dumps({"text": t, "label": 1}), "no character that can be seen") for t in "\u200b\0\u3164\x1b"],
        ('{"text": "a", "label": [0, 1]}', "label is list"),
        ('{"text": "a", "label": {"x": 2}}', "label is dict"),
        (
            '{"texts": "x", "label": 1}',
            "no column 'text'; did you mean 'texts'? (allowed: label, texts). Fix: Name the",
        ),
    ],
)
def test_bad_rows_are_refused_with_their_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + line + "\n")
    with pytest.raises(InputError) as caught:
        read_examples(DataSource(path=str(path)))
    [problem] = caught.value.problems
    assert problem.where == f"{path}:2"
    assert message in str(problem)


@pytest.mark.parametrize("empty", ['""', "null", "NaN", '"nan"', '" "', "[]"])
def test_rows_without_a_label_are_left_out_and_counted(tmp_path: Path, empty: str) -> None:
    path = tmp_path / "a.jsonl"
    good, bad = json.dumps(GOOD) + "\n", f'{{"text": "a", "label": {empty}}}\n'
    path.write_text(good + bad)
    examples, unlabelled = read_labelled_examples(DataSource(path=str(path)))
    assert (len(examples), [(e.text, e.label, e.row) for e in unlabelled]) == (1, [("a", None, 2)])
    path.write_text(good + bad * 2)  # most rows: the labels are in another column
    with pytest.raises(InputError, match="2 of 3 rows have no label in column 'label'"):
        read_examples(DataSource(path=str(path)))


def test_twenty_bad_rows_are_listed_with_their_count_and_a_missing_column_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.jsonl", *({"text": "" if i % 2 else "fine", "label": 0} for i in range(100)))
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[0].endswith("a.jsonl:2: column 'text' is empty.")
    assert lines[-1].endswith("and 30 more bad rows (50 in all).")
    path = tmp_path / "a.csv"
    with pytest.raises(InputError) as caught:
        read_csv(path, "sentence,intent\n" + "hello,a\n" * 700)
    first, more = str(caught.value).splitlines()
    assert first.startswith(f"{path}:2: no column 'text'; allowed: intent, sentence. Fix: Name the columns with --text")
    assert more == f"{path}: and 699 more bad rows (700 in all)."


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "exactly one"),
        ({"path": "a", "dataset": "b"}, "exactly one"),
        ({"dataset": "b"}, "needs a 'split'"),
        ({"path": "a", "split": "x", "config": "y"}, "config, split belong to 'dataset'"),
        ({"path": "a", "lable": "x"}, "Extra inputs"),
    ],
)
def test_a_source_has_one_origin(keys: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSource.model_validate(keys)


# What a label column may hold

FIRST, SECOND = GoldAnswer(0, "Ada"), GoldAnswer(22, "Ada")


def span(start: Any, end: int, label: str = "per") -> dict[str, Any]:
    return {"start": start, "end": end, "label": label}


@pytest.mark.parametrize(
    ("kind", "row", "label"),
    [
        *[
            (LabelKind.NAMES, {"label": cell}, label)
            for cell, label in (
                ([], ()),
                ("joy; anger", ("joy", "anger")),
                ("", ()),
                ([True], ("true",)),
                (["2", 1.0], (2, 1)),
                (["a;b"], ("a;b",)),
            )
        ],
        *[
            (kind, {"label": cell}, value)
            for kind in (LabelKind.SCORE, LabelKind.SCORE_OR_NONE)
            for cell, value in ((2.5, 2.5), (0, 0.0), ("-1e-3", -0.001), (" 4 ", 4.0))
        ],
        # a label may be missing where it is not needed
        (LabelKind.SCORE_OR_NONE, {}, None),
        (LabelKind.NONE, {}, None),
        (LabelKind.NONE, {"label": {"whatever": 1}}, None),
        # words with tags, and spans of a running text
        (
            LabelKind.SPANS,
            {"text": WORDS, "label": ["B-per", "O", "B-loc", "O"]},
            (Span(0, 3, "per"), Span(8, 16, "loc")),
        ),
        (LabelKind.SPANS, {"label": []}, ()),
        (
            LabelKind.SPANS,
            {"text": "Ada lived near New York", "label": [span(15, 23, "loc"), {**span(0, 3), "id": 7}]},
            (Span(0, 3, "per"), Span(15, 23, "loc")),
        ),
        # answers as the Hub has SQuAD: each answer once, in their order; and in other forms
        *[
            (LabelKind.ANSWERS, row, label)
            for row, label in (
                (
                    {"label": {"text": ["Ada", "1843", "Ada"], "answer_start": [22, 16, 22]}},
                    (SECOND, GoldAnswer(16, "1843")),
                ),
                ({"label": {"text": [], "answer_start": []}}, ()),
                ({"label": ["Ada"], "answer_start": [22]}, (SECOND,)),
                ({"label": "Ada", "answer_start": 22}, (SECOND,)),
                ({"label": [{"text": "Ada", "answer_start": 22}]}, (SECOND,)),
                ({"label": ["Ada"]}, (FIRST,)),
                ({"label": ""}, ()),
            )
        ],
    ],
)
def test_labels_are_read(tmp_path: Path, kind: LabelKind, row: dict[str, Any], label: Any) -> None:
    [example] = read(tmp_path / "a.jsonl", {"text": "x", "pair": CONTEXT, **row}, kind=kind, text_pair="pair")
    assert example.label == label
    assert type(example.label) is type(label)


def test_answers_in_csv_begin_where_their_column_says(tmp_path: Path) -> None:
    text = f"text,pair,label,answer_start\nWho?,{CONTEXT},Ada,22\nWhere?,{CONTEXT},London,35\nWhy?,{CONTEXT},,\n"
    found = read_csv(tmp_path / "a.csv", text, LabelKind.ANSWERS, text_pair="pair")
    assert [e.label for e in found] == [(SECOND,), (GoldAnswer(35, "London"),), ()]


NO_NAMES, NO_SCORE, NO_SPAN = "not a list of names or numbers", "is not a finite number", "is not {start, end, label}"


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        *[(LabelKind.NAMES, {"label": cell}, NO_NAMES) for cell in (3, {"a": 1}, ["a", None], [["a"]], [1.5])],
        *[(LabelKind.SCORE, {"label": cell}, NO_SCORE) for cell in ("inf", "1e999", "high", True, [1.0], {"score": 1})],
        (LabelKind.SCORE, {}, "no column 'label'"),
        *[
            (LabelKind.SPANS, {"text": text, "label": cell}, message)
            for text, cell, message in (
                (WORDS, ["O", "O"], r"numbers of tags (2) and of words (4) differ"),
                (WORDS, [0, 1, 2, 0], "numbers need names"),
                (WORDS, 3, "tags are int '3', not a list"),
                ("Ada met Bob", ["O", "O"], "need a text that is a list of words"),
                ("Ada met Bob", "", "need a text that is a list of words"),
                ("Ada", [span(0, 4)], "within the 3 characters"),
                ("Ada", [span(2, 2)], NO_SPAN),
                ("Ada", [span(-1, 2)], NO_SPAN),
                ("Ada", [span("first", 2)], NO_SPAN),
                ("Ada", [span(True, 2)], NO_SPAN),
                ("Ada", [span(0, 2), span(1, 3, "loc")], "spans overlap"),
                ("Ada", [span(0, 2, "B-52")], "label 'B-52' reads like a tag"),
                ("Ada", [span(0, 2), "O"], "neither names nor {start, end, label}"),
                (["Ada", "met"], ["B", "O"], "B, I and O without a label"),
                (["Ada", " "], ["O", "O"], "column 'text' holds list, not text"),
                ([], [], "column 'text' is empty"),
            )
        ],
        *[
            (LabelKind.ANSWERS, row, message)
            for row, message in (
                ({"label": {"text": ["Ada"], "answer_start": [3]}}, "is not in the context at character 3"),
                ({"label": {"text": ["Ada"], "answer_start": [-42]}}, "is not in the context at character"),
                ({"label": ["Charles"]}, "answer 'Charles' is not in the context."),
                ({"label": {"text": ["Ada"], "answer_start": [True]}}, "is not in the context at character"),
                ({"label": {"text": ["Ada", "1843"], "answer_start": [22]}}, "1 places for 2 answers"),
                ({"label": 7}, "answers are int '7'"),
                ({"label": [""]}, "answer '' is not text"),
                ({"label": [{"start": 0}]}, "answer None is not text"),
            )
        ],
    ],
)
def test_what_is_no_label_is_refused_with_its_row(
    tmp_path: Path, kind: LabelKind, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.jsonl", {"text": "x", "pair": CONTEXT, **row}, kind=kind, text_pair="pair")
    [problem] = caught.value.problems
    assert problem.where == f"{tmp_path / 'a.jsonl'}:1"
    assert message in problem.what


@pytest.mark.parametrize(
    ("other", "spans"),
    [
        (["PER", "O"], [(0, 7)]),  # a name of two words, as the other row has words without a name
        (["NOUN", "VERB"], [(0, 3), (4, 7)]),  # parts of speech: a span for each word
    ],
)
def test_all_rows_of_a_file_have_one_scheme_of_tags(
    tmp_path: Path, other: list[str], spans: list[tuple[int, int]]
) -> None:
    rows = [{"text": ["Ann", "Lee"], "label": tags} for tags in (["PER", "PER"], other)]
    first, _ = read(tmp_path / "a.jsonl", *rows, kind=LabelKind.SPANS)
    assert [(span.start, span.end) for span in first.label] == spans  # type: ignore[union-attr]


@settings(max_examples=10)
@given(words=st.lists(st.text(min_size=1).filter(str.strip), max_size=6))
def test_words_with_tags_become_one_text_with_spans(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    row = {"text": ["a", *words], "label": ["B-x"] * (len(words) + 1)}
    [example] = read(tmp_path_factory.getbasetemp() / "joined.jsonl", row, kind=LabelKind.SPANS)
    assert [example.text[s.start : s.end] for s in example.label] == ["a", *words]  # type: ignore[union-attr]
    assert example.text == " ".join(["a", *words])


# Digests, and the rows that are held out by them

TEXTS = st.lists(st.integers(0, 40).map("text {}".format), max_size=60)


def examples(texts: list[str]) -> list[Example]:
    return [Example(t, None, 0, i) for i, t in enumerate(texts, 1)]


def check_division(texts: list[str], keep: list[Example], held: list[Example]) -> None:
    """Every row is on one side in its order, equal texts on one together."""
    assert Counter(e.row for e in keep + held) == Counter(range(1, len(texts) + 1))
    assert not {e.text for e in keep} & {e.text for e in held}
    for side in (keep, held):
        assert [e.row for e in side] == sorted(e.row for e in side)


@settings(max_examples=40)
@given(st.text(), st.text())
def test_digests_ignore_case_and_outer_blanks(text: str, pair: str) -> None:
    assert Example(f" {text} ", None, 0, 1).digest == Example(text.strip().lower(), None, 1, 9).digest
    assert Example("q" + text, pair, 0, 1).digest == Example("q" + text, pair.strip(), 0, 1).digest


def test_digests_tell_pairs_from_single_texts_and_rows_that_occur_elsewhere_are_dropped() -> None:
    digests = {Example(*texts, 0, 1).digest for texts in (("a", "b"), ("ab", ""), ("ab", "b"), ("b", "a"))}
    assert len(digests) == 4
    left, dropped = drop_duplicates_of(examples(["a", "B ", "c", "b"]), examples(["b", "d"]))
    assert [e.text for e in left] == ["a", "c"]
    assert dropped == 2
    held = [Example("is this the only one", None, "a", 1)]
    pair, alone = Example("is this the only one", "yes", "a", 2), Example("so is this the only one", None, "b", 3)
    assert drop_overlapping([pair, alone], held) == ([pair, alone], 0)


@given(TEXTS, st.randoms(), st.integers(0, 30))
def test_whole_texts_are_held_out_whatever_the_order_and_never_more_than_half(
    texts: list[str], random: Any, rows: int
) -> None:
    keep, held = hold_out(examples(texts), rows)
    check_division(texts, keep, held)
    assert len(held) <= len(keep)
    random.shuffle(texts)
    assert {e.text for e in held} == {e.text for e in hold_out(examples(texts), rows)[1]}


@given(st.lists(st.integers(), unique=True, max_size=60), st.integers(0, 100))
def test_distinct_texts_give_the_wanted_number_up_to_half(numbers: list[int], rows: int) -> None:
    texts = examples([f"text {n}" for n in numbers])
    _, held = hold_out(texts, rows)
    assert len(held) == min(rows, len(numbers) // 2)
    assert {e.text for e in held} <= {e.text for e in hold_out(texts, rows + 5)[1]}


@pytest.mark.parametrize(
    ("text", "drops"),
    [
        ("a charming and often", True),  # a part of a held-out text
        ("It 's A charming and often affecting journey . ", True),  # the same text
        ("yes , it 's a charming and often affecting journey . they say", True),  # a held-out text is a part of it
        ("an affecting journey", False),  # three words stand anywhere
        ("charming and often affecting films", False),  # neither is a part of the other
        ("uncharming and often affecting", False),  # whole words only
        ("a charming and oft", False),
        ("", False),
    ],
)
def test_rows_that_say_what_held_out_rows_say_are_dropped(text: str, drops: bool) -> None:
    held = examples(["it 's a charming and often affecting journey .", "an affecting journey", ""])
    rows = examples([text, "another text with the same label"])
    assert drop_overlapping(rows, held) == ((rows[1:], 1) if drops else (rows, 0))


@given(TEXTS, TEXTS, st.floats(0.05, 0.5))
def test_a_share_is_stable_when_rows_are_added(texts: list[str], more: list[str], fraction: float) -> None:
    keep, held = hold_out_share(examples(texts), fraction)
    check_division(texts, keep, held)
    _, later = hold_out_share(examples(texts + more), fraction)
    assert {e.text for e in held} <= {e.text for e in later}


def test_a_share_is_about_as_large_as_asked_and_leaves_a_row_of_each_label() -> None:
    _, held = hold_out_share(examples([f"text {n}" for n in range(5000)]), 0.1)
    assert 430 < len(held) < 570
    rare = [Example(f"text {n}", None, f"label {n}", n) for n in range(50)]
    assert hold_out_share(rare, 0.5) == (rare, [])
    often = [Example(f"text {n}", None, ("a", f"b{n % 2}"), n) for n in range(50)]
    keep, held = hold_out_share(often, 0.5)
    assert held
    assert {name for e in keep for name in e.label} == {"a", "b0", "b1"}
