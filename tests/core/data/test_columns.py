"""Which columns are taken from a file that names none, and when the answer is a question to the user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.data.columns import Columns, guess_columns
from pocketbert.core.data.examples import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import LabelKind

TEXTS = [f"please tell me about the number {i} of my orders" for i in range(40)]
NAMES = ["orders", "weather", "music", "alarm"] * 10
CELLS: dict[str, list[Any]] = {
    "texts": TEXTS,
    "words": [t.split() for t in TEXTS],
    "names": NAMES,
    "0/1": [0, 1] * 20,
    "yes/no": ["yes", "no"] * 20,
    "numbers": list(range(40)),
    "scores": [i / 7 for i in range(40)],
    "keys": [f"key {i}" for i in range(40)],
    "one": ["train"] * 40,
    "tags": [["O"] * 10] * 40,
    "answers": [{"text": ["orders"], "answer_start": [0]}] * 40,
}


def guess(path: Path, cells: Mapping[str, Any] | str, kind: LabelKind | None = None, **given: str) -> Columns:
    """Guess the columns of rows that are given, or described as ``name=entry of CELLS``."""
    if isinstance(cells, str):
        cells = {name: CELLS[what] for name, what in (word.split("=") for word in cells.split())}
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return guess_columns(DataSource(path=str(path / "rows.jsonl"), **given), kind)


def taken(found: Columns) -> str:
    """The columns of the text, the second text and the label."""
    return f"{found.source.text} {found.source.text_pair or '-'} {found.source.label}"


@pytest.mark.parametrize(
    ("cells", "expected", "note"),
    [
        ("text=texts label=names", "text - label", "text: column 'text', label: column 'label' (4 names)"),
        ("id=numbers intent=names sentence=texts", "sentence - intent", ""),
        ("Utterance=texts CLASS=names", "Utterance - CLASS", ""),
        ("query=texts category=names", "query - category", ""),
        ("Review=texts Sentiment=names", "Review - Sentiment", ""),
        # the surer name wins
        ("title=texts text=texts label=0/1 label_text=yes/no", "text - label", "(2 numbers)"),
        # by content
        ("key=keys said=texts goal=names part=one", "said - goal", ""),
        # pairs
        (
            "idx=numbers sentence1=texts sentence2=texts label=0/1",
            "sentence1 sentence2 label",
            "second text: column 's",
        ),
        ("premise=texts hypothesis=texts label=names", "premise hypothesis label", ""),
        ("question=texts sentence=texts label=names", "question sentence label", ""),
        ("id=names title=names question=texts context=texts answers=answers", "question context answers", ""),
        # words with tags
        ("tokens=words tags=tags intent=names", "tokens - tags", ""),
    ],
)
def test_columns_are_found(tmp_path: Path, cells: str, expected: str, note: str) -> None:
    found = guess(tmp_path, cells, LabelKind.ANSWERS if "answers" in cells else None)
    assert taken(found) == expected
    assert note in found.note


def test_rows_that_are_sorted_by_label(tmp_path: Path) -> None:
    cells = {"said": [f"{t} and {i}" for i in range(20) for t in TEXTS], "goal": sorted(NAMES * 20)}
    assert guess(tmp_path, cells).note == "text: column 'said', label: column 'goal' (4 names)"


@pytest.mark.parametrize(
    ("cells", "messages"),
    [
        ("first=texts other=texts label=names", ["'first', 'other' could be the texts", "--text", "'label'"]),
        ("text=texts intent=names topic=names", ["'intent', 'topic' could be the labels", "--label 'intent'"]),
        ("text=texts row=keys", ["no column is surely the labels"]),
        ("text=texts score=scores sentiment=names", ["could be the labels"]),
    ],
)
def test_what_could_be_several_is_a_question(tmp_path: Path, cells: str, messages: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        guess(tmp_path, cells)
    [problem] = caught.value.problems
    assert all(message in str(problem) for message in messages)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (CELLS["scores"], LabelKind.SCORE),
        ([0.5, 1.5] * 20, None),
        (CELLS["numbers"], None),
        ([i % 3 for i in range(40)], LabelKind.NAME),
        (["1", "5"] * 20, LabelKind.NAME),
        ([["a", "b"], ["b"], [], ["a"]] * 10, LabelKind.NAMES),
        (["a; b", "b", "a", "b;c"] * 10, LabelKind.NAMES),
        (["yes; really", "no"] * 20, LabelKind.NAME),
        (CELLS["keys"], None),
        ([[{"start": 0, "end": 6, "label": "polite"}]] * 40, LabelKind.SPANS),
    ],
)
def test_kinds_of_labels(tmp_path: Path, cells: list, kind: LabelKind | None) -> None:
    assert guess(tmp_path, {"text": TEXTS, "label": cells}).kind is kind


def test_the_task_and_given_columns_choose(tmp_path: Path) -> None:
    cells = "raw=texts tokens=words tags=tags intent=names"
    assert taken(guess(tmp_path, cells, LabelKind.NAME, text="raw")) == "raw - intent"
    cells = "text=texts body=texts label=names topic=names"
    assert taken(guess(tmp_path, cells, label="topic", text="body")) == "body - topic"
    assert guess(tmp_path, "text=texts score=scores sentiment=names", LabelKind.SCORE).source.label == "score"
    for kind in (LabelKind.NONE, LabelKind.SCORE_OR_NONE):
        assert guess(tmp_path, "content=texts part=names", kind).source.text == "content"
    assert guess(tmp_path, "tokens=words tags=tags").kind is LabelKind.SPANS
    assert guess(tmp_path, "question=texts context=texts answers=answers").kind is LabelKind.ANSWERS


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_by_content_of_a_table(tmp_path: Path, separator: str) -> None:
    rows = [["when", "who", "what was said", "where it went"]]
    rows += [[f"2026-01-{i % 7:02d}", f"user{i}", TEXTS[i], NAMES[i]] for i in range(40)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(map(separator.join, rows)))
    with pytest.raises(InputError, match="'when', 'where it went' could be the labels"):
        guess_columns(DataSource(path=str(path)))  # dates come back too
    found = guess_columns(DataSource(path=str(path), label="where it went"))
    assert (found.source.text, found.source.label) == ("what was said", "where it went")


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


@pytest.mark.parametrize(
    ("scores", "is_answer"),
    [([0.7, 0.3], True), ("[0.7, 0.3]", True), ([0.3, 0.7], False), ([7, 3], False), ([0.7], False)],
)
def test_two_lists_are_zero_shot_answers_only_if_the_scores_fall(tmp_path: Path, scores: Any, is_answer: bool) -> None:
    labels = str(["a", "b"]) if isinstance(scores, str) else ["a", "b"]
    found = guess(tmp_path, {"sequence": TEXTS, "labels": [labels] * 40, "scores": [scores] * 40})
    assert (found.kind is LabelKind.NAME) is is_answer
    if is_answer:
        answer = read_examples(found.source, kind=LabelKind.NAME)[0].answer
        assert answer is not None
        assert dict(zip(answer.names, answer.values[0], strict=True)) == {"a": 0.7, "b": 0.3}


@pytest.mark.parametrize(
    ("answers", "is_answered"),
    [
        (["orders"] * 40, True),
        ([""] + ["orders"] * 39, True),
        ([["number"], [], ["my", "orders"], []] * 10, True),
        (["several of them"] + ["orders"] * 39, True),
        (["orders"] + ["yes", "no", "unknown"] * 13, False),
        (["orders", *"abcde"] + ["orders"] * 34, False),
        ([""] * 40, False),
        (["yes", "no"] * 20, False),
    ],
)
def test_questions_on_a_text_are_told_by_several_rows(tmp_path: Path, answers: list[Any], is_answered: bool) -> None:
    questions = [f"what is it that I asked in case {i}" for i in range(40)]
    cells = {"passage": TEXTS, "question": questions, "answer": answers}
    if is_answered:
        found = guess(tmp_path, cells)
        assert (found.kind, taken(found)) == (LabelKind.ANSWERS, "question context answers")
        return
    with suppress(InputError):
        assert guess(tmp_path, cells).kind is not LabelKind.ANSWERS


def draw_triplets(kind: str) -> list[list[str]]:
    """Three texts for each row, of which the third is the second one of another row, or something else."""
    words = (("find", "close", "paint"), ("old", "new", "red", "blue"), ("door", "shop", "car", "boat"))
    goals = [f"{verb} the {size} {thing}" for verb, size, thing in product(*words)]
    near = [f"please {goal} for me" for goal in goals]
    far = near[17:] + near[:17]
    thirds = {
        "triplets": far,
        "with explanations": [f"it says {goal}" for goal in goals],
        "in another language": [f"bitte {len(goal)} mal {i}" for i, goal in enumerate(goals)],
        "third is nearer": near,
        "of the same text": [*near],
    }
    match kind:
        case "third is nearer":
            return [list(row) for row in zip(goals, far, near, strict=True)]
        case "turns of a talk":
            return [list(row) for row in zip(goals, goals[1:], goals[2:], strict=False)]
        case "names of classes":
            names = ["ask the price of something", "ask the way to somewhere", "tell what was seen"]
            return [[f"{goal} now", names[i % 3], names[(i + 1) % 3]] for i, goal in enumerate(goals)]
    return [list(row) for row in zip(goals, near, thirds[kind], strict=True)]


@pytest.mark.parametrize(
    "kind",
    [
        "triplets",
        "with explanations",
        "in another language",
        "third is nearer",
        "of the same text",
        "turns of a talk",
        "names of classes",
    ],
)
@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_triplets_without_names_are_told_only_where_no_doubt_is(tmp_path: Path, kind: str, ending: str) -> None:
    rows, path = draw_triplets(kind), tmp_path / f"rows.{ending}"
    path.write_text("".join(("\t".join(row) if ending == "tsv" else json.dumps(row)) + "\n" for row in rows))
    if kind == "triplets":
        found = guess_columns(DataSource(path=str(path)))
        assert found.note.startswith("triplets, 96 rows")
        examples = read_examples(found.source, kind=LabelKind.SCORE_OR_NONE)
        assert [(e.text, e.pair, e.label) for e in examples[:2]] == [
            ("find the old door", "please find the old door for me", 1.0),
            ("find the old door", "please close the old shop for me", 0.0),
        ]
        named = guess_columns(DataSource(path=str(path), text="column 1", text_pair="column 2"), LabelKind.NONE)
        assert taken(named) == "column 1 column 2 label"
        return
    with pytest.raises(InputError) as caught:
        guess_columns(DataSource(path=str(path)))
    hint = "If they are triplets, name them in a first row: anchor, positive, negative."
    assert (hint in str(caught.value)) is (kind != "names of classes")
