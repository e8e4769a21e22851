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


def refused(path: Path, **cells: list) -> str:
    with pytest.raises(InputError) as caught:
        columns(path, **cells)
    [problem] = caught.value.problems
    return str(problem)


@pytest.mark.parametrize(
    ("text", "label"),
    [("text", "label"), ("sentence", "intent"), ("Utterance", "CLASS"), ("query", "category"), ("Review", "Sentiment")],
)
def test_usual_names(tmp_path: Path, text: str, label: str) -> None:
    found = columns(tmp_path, None, None, **{"id": list(range(40)), label: names(), text: TEXTS})
    assert taken(found) == (text, None, label)
    assert found.note == f"text: column '{text}', label: column '{label}' (4 names)"
    assert found.kind is LabelKind.NAME


def test_the_surer_name_wins(tmp_path: Path) -> None:
    found = columns(tmp_path, title=TEXTS, text=TEXTS, label=[0, 1] * 20, label_text=["no", "yes"] * 20)
    assert taken(found) == ("text", None, "label")
    assert found.note.endswith("(2 numbers)")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_by_content_of_a_table(tmp_path: Path, separator: str) -> None:
    rows = [separator.join(["when", "who", "what was said", "where it went"])]
    rows += [
        separator.join([f"2026-01-{i % 7:02d}", f"user{i}", t, n])
        for i, (t, n) in enumerate(zip(TEXTS, names(), strict=True))
    ]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    with pytest.raises(InputError, match="'when', 'where it went' could be the labels"):
        guess_columns(DataSource(path=str(tmp_path / "a.csv")))  # dates come back too
    found = guess_columns(DataSource(path=str(tmp_path / "a.csv"), label="where it went"))
    assert taken(found) == ("what was said", None, "where it went")


def test_by_content(tmp_path: Path) -> None:
    found = columns(tmp_path, key=[f"k{i}" for i in range(40)], said=TEXTS, goal=names(), part=["train"] * 40)
    assert taken(found) == ("said", None, "goal")


def test_given_columns_are_kept(tmp_path: Path) -> None:
    found = columns(
        tmp_path, None, {"label": "topic", "text": "body"}, text=TEXTS, body=TEXTS, label=names(), topic=names()
    )
    assert taken(found) == ("body", None, "topic")


@pytest.mark.parametrize("pair", [("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence")])
def test_pairs_by_their_names(tmp_path: Path, pair: tuple[str, str]) -> None:
    found = columns(tmp_path, idx=list(range(40)), **{pair[0]: TEXTS, pair[1]: TEXTS, "label": [0, 1] * 20})
    assert taken(found) == (*pair, "label")
    assert f"second text: column '{pair[1]}'" in found.note


def test_two_texts_without_a_pairs_names_are_a_question(tmp_path: Path) -> None:
    message = refused(tmp_path, first=TEXTS, other=TEXTS, label=names())
    assert "'first', 'other' could be the texts" in message
    assert "--text" in message
    assert "'label'" in message


def test_two_labels_are_a_question(tmp_path: Path) -> None:
    message = refused(tmp_path, text=TEXTS, intent=names(), topic=names())
    assert "'intent', 'topic' could be the labels" in message
    assert "--label 'intent'" in message


def test_no_label_is_a_question(tmp_path: Path) -> None:
    message = refused(tmp_path, text=TEXTS, row=[f"row {i}" for i in range(40)])
    assert "no column is surely the labels" in message


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


def test_taggers_take_words_and_tags(tmp_path: Path) -> None:
    words, tags = [t.split() for t in TEXTS], [["O"] * 10 for _ in TEXTS]
    found = columns(tmp_path, tokens=words, tags=tags, intent=names())
    assert taken(found) == ("tokens", None, "tags")
    assert found.kind is LabelKind.SPANS
    found = columns(tmp_path, LabelKind.NAME, {"text": "raw"}, raw=TEXTS, tokens=words, tags=tags, intent=names())
    assert taken(found) == ("raw", None, "intent")


def test_the_task_chooses_the_label(tmp_path: Path) -> None:
    cells = {"text": TEXTS, "score": [i / 7 for i in range(40)], "sentiment": names()}
    assert columns(tmp_path, LabelKind.SCORE, **cells).source.label == "score"
    assert "could be the labels" in refused(tmp_path, **cells)


def test_questions_and_contexts(tmp_path: Path) -> None:
    answers = [{"text": ["orders"], "answer_start": [0]}] * 40
    found = columns(
        tmp_path, LabelKind.ANSWERS, id=names(), title=names(), question=TEXTS, context=TEXTS, answers=answers
    )
    assert taken(found) == ("question", "context", "answers")
    found = columns(tmp_path, question=TEXTS, context=TEXTS, answers=answers)
    assert found.kind is LabelKind.ANSWERS


def test_text_only(tmp_path: Path) -> None:
    assert taken(columns(tmp_path, LabelKind.NONE, content=TEXTS))[0] == "content"
    assert taken(columns(tmp_path, LabelKind.SCORE_OR_NONE, content=TEXTS, part=names()))[0] == "content"


def test_files_sorted_by_label(tmp_path: Path) -> None:
    cells = {"said": [f"{t} and {i}" for i in range(20) for t in TEXTS], "goal": sorted(names(800))}
    assert columns(tmp_path, **cells).note == "text: column 'said', label: column 'goal' (4 names)"


def test_parquet_with_class_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "kind": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = datasets.Dataset.from_dict({"sentence": TEXTS, "kind": [0, 1] * 20}, features)
    rows.to_parquet(str(tmp_path / "a.parquet"))
    found = guess_columns(DataSource(path=str(tmp_path / "a.parquet")))
    assert found.note == "text: column 'sentence', label: column 'kind' (2 names)"


def test_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n")
    with pytest.raises(InputError, match="no rows"):
        guess_columns(DataSource(path=str(tmp_path / "a.csv")))
