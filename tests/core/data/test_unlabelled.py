"""Texts without labels: what is read of each form of file, what is left out, and which pairs are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.data.source import DataSource
from pocketbert.core.data.unlabelled import PairDrawing, TransferCounts, draw_pairs, read_transfer_rows
from pocketbert.core.errors import InputError
from pocketbert.core.predict.examples import Example
from pocketbert.core.tasks import LabelKind

NAME, PAIRS = LabelKind.NAME, {"pairs": PairDrawing()}
FORMS: list[tuple[str, str, LabelKind, dict[str, Any], list[tuple[str, str | None]]]] = [
    ("a.txt", "one two\n\nthree\n", NAME, {}, [("one two", None), ("three", None)]),
    ("a.csv", "text,label\none,7\ntwo,\n", NAME, {}, [("one", None), ("two", None)]),
    ("a.tsv", "id\tbody\n1\tone\n", NAME, {"text": "body"}, [("one", None)]),
    ("a.jsonl", '{"text": "one", "label": {"odd": []}}\n', NAME, {}, [("one", None)]),
    ("a.jsonl", '{"text": ["Bob", "ran"], "label": ["B-x"]}\n', LabelKind.SPANS, {}, [("Bob ran", None)]),
    ("a.csv", 'text,label\n"[""Bob"", ""ran""]",O\n', LabelKind.SPANS, {}, [("Bob ran", None)]),
    ("a.csv", "text,other\none,two\n", LabelKind.SCORE, {"text_pair": "other", **PAIRS}, [("one", "two")]),
    ("a.csv", "text,other\none,two\n", LabelKind.SCORE_OR_NONE, {"text_pair": "other"}, [("one", None), ("two", None)]),
]


def read(
    paths: Sequence[Path], labels: LabelKind = NAME, text: str = "text", text_pair: str | None = None, **said: Any
) -> tuple[list[Example], TransferCounts]:
    counts = TransferCounts()
    sources = [DataSource(path=str(path), text=text, text_pair=text_pair) for path in paths]
    return list(read_transfer_rows(sources, labels, counts, **said)), counts


@pytest.mark.parametrize(("name", "content", "labels", "said", "wanted"), FORMS)
def test_each_form_of_file_is_read_without_its_labels(
    tmp_path: Path, name: str, content: str, labels: LabelKind, said: dict[str, Any], wanted: list[Any]
) -> None:
    (tmp_path / name).write_text(content)
    rows, counts = read([tmp_path / name], labels, **said)
    assert [(row.text, row.pair) for row in rows] == wanted
    assert all(row.label is None for row in rows)
    assert counts.rows == len(wanted)


def test_known_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    one, two = tmp_path / "a/t.txt", tmp_path / "t.txt"
    one.write_text("Held out \nknown\nnew\n")
    two.write_text("new\nheld OUT\nlast\n")
    held, known = [Example("held out", None, "x", 1)], [Example("Known", None, "x", 1)]
    rows, counts = read([one, two], held_out=held, trained=known)
    assert [row.text for row in rows] == ["new", "last"]
    assert (counts.held_out, counts.trained, counts.repeated) == (2, 1, 1)
    assert counts.files == {"a/t.txt": 3, f"{tmp_path.name}/t.txt": 3}
    told = "2 rows without labels from a/t.txt (3)"
    assert counts.line.startswith(told)
    assert counts.line.endswith("left out: 2 evaluation or held-out rows, 1 training rows, 1 repeated")


TEXTS = [f"{word} {i} the same end" for word in ("oak", "elm", "ash", "fir") for i in range(10)]


def test_pairs_are_drawn_with_the_seed_and_share_a_rare_word_as_often_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    rows, counts = read([path], LabelKind.SCORE, pairs=PairDrawing(60, 0.25, 3))
    assert (counts.rows, counts.near_pairs, counts.random_pairs, counts.single_texts) == (60, 15, 45, 40)
    assert "60 of them are pairs drawn from 40 single texts: 15 with a rare word in common, 45 random" in counts.line
    assert len({frozenset((row.text, row.pair)) for row in rows}) == 60
    again, _ = read([path], LabelKind.SCORE, pairs=PairDrawing(60, 0.25, 3))
    other, _ = read([path], LabelKind.SCORE, pairs=PairDrawing(60, 0.25, 4))
    assert again == rows != other
    near = [
        (TEXTS[a].split(), TEXTS[b].split()) for a, b, is_near in draw_pairs(TEXTS, PairDrawing(30, 1.0)) if is_near
    ]
    assert near
    assert all(a[1] == b[1] for a, b in near), "the number; the other words are in many texts"


def test_no_drawn_pair_holds_a_text_of_an_evaluation_pair(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    held = [Example(TEXTS[0].upper(), TEXTS[1], 1.0, 1)]
    rows, counts = read([path], LabelKind.SCORE, held_out=held, **PAIRS)
    assert (counts.single_texts, counts.held_out, counts.rows) == (38, 2, 38)
    assert not {TEXTS[0], TEXTS[1]} & {text for row in rows for text in (row.text, row.pair)}
    assert list(draw_pairs(["alone"], PairDrawing(5))) == []
    assert list(draw_pairs(TEXTS, PairDrawing(0))) == []


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("text,other\na,b\n", {"text_pair": "other"}, "gives pairs, and the training rows are single texts"),
    ("text,other\na,b\n", {"text": "body"}, "no column 'body'"),
    ("text,other\n", {}, "no rows"),
    ("text,other\na,b\n,b\n", {}, "column 'text' is empty"),
]


@pytest.mark.parametrize(("content", "said", "message"), REFUSED)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: str, said: dict[str, Any], message: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        read([tmp_path / "a.csv"], **said)


def test_the_limits_of_a_source_hold(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"text {i}\n" for i in range(4)))
    source = DataSource(path=str(tmp_path / "a.txt"), max_rows=3)
    with pytest.raises(InputError, match="more than 3"):
        list(read_transfer_rows([source], NAME, TransferCounts()))
