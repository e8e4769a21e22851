"""Whether the first row of a table is a header: files as people have them, with their header and without."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.files import read_rows, table_form
from pocketbert.core.data.source import DataSource

Row = Sequence[object]
DRAW = random.Random(3)
OPENINGS = ("I watched this film with my family", "The plot, as far as I can tell, makes no sense", "Not bad at all!")
ENDINGS = ("and we liked it.", "but the actors did well; really.", "so I left", "(the second time)", "again and again")
COMMANDS = (
    "play music",
    "stop",
    "turn on the lights",
    "what is the weather",
    "next",
    "set a timer",
    "louder",
    "call my mother",
)
PLACES = ("in the kitchen", "now", "please", "for ten minutes", "at seven", "later today", "")
EMAILS = "Subject: {0}\nDear all,\nthe meeting about {0} is moved, see you there.\nBest regards"


def texts(count: int = 60) -> list[str]:
    return [f"{OPENINGS[DRAW.randrange(3)]} {ENDINGS[DRAW.randrange(5)]} {i}" for i in range(count)]


def commands(count: int = 60) -> list[str]:
    return [f"{DRAW.choice(COMMANDS)} {DRAW.choice(PLACES)}".strip() for _ in range(count)]


def cycle(*values: object, count: int = 60) -> list[object]:
    return [values[i * 7 % len(values)] for i in range(count)]


def drawn(*values: object, count: int = 60) -> list[object]:
    return [DRAW.choice(values) for _ in range(count)]


def written(rows: Iterable[Row], separator: str = ",", mark: str = "") -> str:
    stream = io.StringIO()
    csv.writer(stream, delimiter=separator).writerows(rows)
    return mark + stream.getvalue()


FILES: dict[str, tuple[Sequence[str], list[list[object]]]] = {
    "text and 0/1": (("text", "label"), [texts(), cycle(0, 1)]),
    "text and names": (("review", "sentiment"), [texts(), cycle("positive", "negative")]),
    "label first": (("gold_label", "sentence"), [cycle("pos", "neg", "neutral"), texts()]),
    "unknown names": (("foo", "bar"), [texts(), cycle("pos", "neg")]),
    "unknown names, numbers": (("foo", "bar"), [texts(), cycle(1, 2, 3, 4, 5)]),
    "unknown names of several words": (("My Question", "Kind of Thing"), [texts(), cycle("a thing", "other thing")]),
    "capitals": (("Review Text", "Rating"), [texts(), cycle(1, 2, 3, 4, 5)]),
    "commands": (("utterance", "intent"), [commands(), drawn("music", "light", "time", "weather")]),
    "commands, unknown names": (("spoken", "goal"), [commands(), drawn("music", "light", "time", "weather")]),
    "words as labels of words": (("token", "part"), [[f"w{i % 23}x" for i in range(60)], drawn("NOUN", "VERB", "ADJ")]),
    "one column of texts": (("text",), [texts()]),
    "one column of commands, usual name": (("utterance",), [commands()]),
    "one column of texts, unknown name": (("foo",), [texts()]),
    "one column of emails": (("body",), [[EMAILS.format(t) for t in texts()]]),
    "line breaks and quotes": (("text", "label"), [[f'He said "{t}",\nand left' for t in texts()], cycle("a", "b")]),
    "index of pandas": (("", "text", "label"), [list(range(60)), texts(), cycle(0, 1)]),
    "index of pandas read twice": (("Unnamed: 0", "text", "label"), [list(range(60)), texts(), cycle(0, 1)]),
    "two texts": (("sentence1", "sentence2", "label"), [texts(), texts(), cycle("entailment", "neutral", "contradiction")]),
    "two texts, unknown names": (("left", "right", "same"), [texts(), texts(), cycle(0, 1)]),
    "scores": (("sentence1", "sentence2", "score"), [texts(), texts(), [round(DRAW.random() * 5, 3) for _ in range(60)]]),
    "scores, one text": (("essay", "grade"), [texts(), [round(DRAW.random() * 5, 2) for _ in range(60)]]),
    "MRPC": (
        ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        [cycle(0, 1), [702876 + 13 * i for i in range(60)], [904876 + 7 * i for i in range(60)], texts(), texts()],
    ),
    "CoLA": (("id", "label", "star", "sentence"), [cycle("gj04", "cj99", "bc01"), cycle(1, 0, 1), cycle("", "*", ""), texts()]),
    "Sentiment140": (
        ("target", "ids", "date", "flag", "user", "text"),
        [
            cycle(0, 4),
            [1467810369 + i for i in range(60)],
            [f"Mon Apr 06 22:{i:02d}:45 PDT 2009" for i in range(60)],
            ["NO_QUERY"] * 60,
            [f"user_{i}" for i in range(60)],
            [f"@user{i} {t}" for i, t in enumerate(texts())],
        ],
    ),
    "AG News": (("Class Index", "Title", "Description"), [cycle(1, 2, 3, 4), commands(), texts()]),
    "an empty column": (("text", "note", "label"), [texts(), [""] * 60, cycle("a", "b")]),
    "empty cells here and there": (("text", "label"), [texts(), cycle("a", "b", "", "a")]),
    "labels of several": (("text", "tags"), [texts(), cycle("a;b", "b", "a")]),
    "one column per label": (("comment_text", "toxic", "obscene", "insult"), [texts(), cycle(0, 1, 0), cycle(1, 0, 0), cycle(0, 0, 1)]),
    "dates": (("created_at", "text", "label"), [[f"2026-01-{1 + i % 28:02d}" for i in range(60)], texts(), cycle("a", "b")]),
    "years as labels": (("text", "year"), [texts(), cycle(1999, 2004, 2010)]),
    "many labels": (("text", "intent"), [texts(200), [f"label_{DRAW.randrange(77)}" for _ in range(200)]]),
    "sorted by label": (("text", "label"), [texts(), sorted(map(str, cycle("neg", "pos")))]),
    "labels called like columns": (("text", "kind"), [texts(), cycle("question", "comment", "title")]),
    "questions of a form": (
        ("Timestamp", "How do you rate us?", "What could we do better?"),
        [[f"2026/01/{1 + i % 28:02d} 10:00:00" for i in range(60)], cycle(1, 2, 3, 4, 5), texts()],
    ),
    "Chinese": (("评论", "标签"), [[f"我看了{i}遍\uff0c这部电影真的很好看" for i in range(60)], cycle("好评", "差评")]),
    "Chinese, English names": (("text", "label"), [[f"我看了{i}遍{chr(44) * (i % 2)}这部电影真的很好看" for i in range(60)], cycle(0, 1)]),
    "missing numbers": (("text", "stars"), [texts(), cycle("NA", 1, 2, 3, 4)]),
    "five rows": (("text", "label"), [texts(5), cycle("pos", "neg", count=5)]),
    "two rows": (("text", "label"), [texts(2), cycle("pos", "neg", count=2)]),
    "two rows, numbers": (("foo", "bar"), [texts(2), cycle(1, 0, count=2)]),
}  # fmt: skip
WAYS = ((",", ""), (";", "\ufeff"), ("\t", ""))
WITHOUT = sorted(FILES.keys() - {"two rows", "words as labels of words"})
"""Files whose first row of data tells that it is one; of the others it could be a header."""


def rows_of(name: str) -> list[list[object]]:
    return [list(row) for row in zip(*FILES[name][1], strict=True)]


def made(path: Path, rows: Iterable[Row], separator: str = ",", mark: str = "") -> Path:
    path.write_bytes(written(rows, separator, mark).encode())
    return path


def has_header(path: Path, **named: Any) -> bool:
    form = table_form(DataSource(path=str(path), **named))
    assert form is not None
    return form.header


def ways(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Each file with commas, with semicolons and a byte order mark, and with tabs; a single column has commas only."""
    return [(n, *way) for n in names for way in WAYS[: None if len(FILES[n][0]) > 1 else 1]]


@pytest.mark.parametrize(("name", "separator", "mark"), ways(FILES))
def test_headers_are_found(tmp_path: Path, name: str, separator: str, mark: str) -> None:
    path = made(tmp_path / "a.csv", [FILES[name][0], *rows_of(name)], separator, mark)
    assert has_header(path)
    [(number, row), *_] = read_rows(DataSource(path=str(path)), BadRows("a"))
    assert (number, list(row)) == (2, list(FILES[name][0]))


@pytest.mark.parametrize(("name", "separator", "mark"), ways(WITHOUT))
def test_files_without_a_header_lose_no_row(tmp_path: Path, name: str, separator: str, mark: str) -> None:
    rows = rows_of(name)
    for first in range(min(5, len(rows))):  # whichever row is the first one
        path = made(tmp_path / "a.csv", [*rows[first:], *rows[:first]], separator, mark)
        read = list(read_rows(DataSource(path=str(path)), BadRows("a")))
        assert len(read) == len(rows), rows[first]
        assert read[0] == (1, {f"column {i}": str(cell) for i, cell in enumerate(rows[first], 1)})
