"""Tables: whether the first row is a header, in files as people have them, with their header and without."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.columns import guess_columns
from pocketbert.core.data.files import guess_table_form, read_rows
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource, EvalSource
from pocketbert.core.errors import InputError
from pocketbert.core.tasks import LabelKind

Row = Sequence[object]
DRAW = random.Random(3)
OPENINGS = ("I watched this film with my family", "The plot, as far as I can tell, makes no sense", "Not bad at all!")
ENDINGS = ("and we liked it.", "but the actors did well; really.", "so I left", "(the second time)", "again and again")
COMMANDS = "play music|stop|turn on the lights|what is the weather|next|set a timer|louder|call me".split("|")
PLACES = ("in the kitchen", "now", "please", "for ten minutes", "at seven", "later today", "")


def texts(count: int = 60) -> list[str]:
    return [f"{OPENINGS[DRAW.randrange(3)]} {ENDINGS[DRAW.randrange(5)]} {i}" for i in range(count)]


def commands(count: int = 60) -> list[str]:
    return [f"{DRAW.choice(COMMANDS)} {DRAW.choice(PLACES)}".strip() for _ in range(count)]


def cycle(*values: object, count: int = 60) -> list[object]:
    return [values[i * 7 % len(values)] for i in range(count)]


def dates(form: str) -> list[object]:
    return [form.format(1 + i % 28) for i in range(60)]


def numbers(digits: int) -> list[object]:
    return [round(DRAW.random() * 5, digits) for _ in range(60)]


def drawn(*values: object, count: int = 60) -> list[object]:
    return [DRAW.choice(values) for _ in range(count)]


FILES: dict[str, tuple[Sequence[str], list[list[object]]]] = {
    "text and 0/1": (("text", "label"), [texts(), cycle(0, 1)]),
    "text and names": (("review", "sentiment"), [texts(), cycle("positive", "negative")]),
    "label first": (("gold_label", "sentence"), [cycle("pos", "neg", "neutral"), texts()]),
    "unknown names": (("foo", "bar"), [texts(), cycle("pos", "neg")]),
    "commands": (("utterance", "intent"), [commands(), drawn("music", "light", "time", "weather")]),
    "words as labels of words": (("token", "part"), [[f"w{i % 23}x" for i in range(60)], drawn("NOUN", "VERB", "ADJ")]),
    "one column of texts": (("text",), [texts()]),
    "one column of commands, usual name": (("utterance",), [commands()]),
    "line breaks and quotes": (("text", "label"), [[f'He said "{t}",\nand left' for t in texts()], cycle("a", "b")]),
    "index of pandas": (("", "text", "label"), [list(range(60)), texts(), cycle(0, 1)]),
    "two texts": (("sentence1", "sentence2", "label"), [texts(), texts(), cycle("entailment", "neutral", "other")]),
    "scores": (("sentence1", "sentence2", "score"), [texts(), texts(), numbers(3)]),
    "scores, one text": (("essay", "grade"), [texts(), numbers(2)]),
    "MRPC": (
        ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        [cycle(0, 1), [702876 + 13 * i for i in range(60)], [904876 + 7 * i for i in range(60)], texts(), texts()],
    ),
    "Sentiment140": (
        ("target", "ids", "date", "flag", "user", "text"),
        [
            cycle(0, 4),
            [1467810369 + i for i in range(60)],
            dates("Mon Apr 06 22:{:02d}:45 PDT 2009"),
            ["NO_QUERY"] * 60,
            [f"user_{i}" for i in range(60)],
            [f"@user{i} {t}" for i, t in enumerate(texts())],
        ],
    ),
    "an empty column": (("text", "note", "label"), [texts(), [""] * 60, cycle("a", "b")]),
    "labels of several": (("text", "tags"), [texts(), cycle("a;b", "b", "a")]),
    "one column per label": (("comment", "toxic", "insult"), [texts(), cycle(0, 1, 0), cycle(1, 0, 0)]),
    "dates": (("created_at", "text", "label"), [dates("2026-01-{:02d}"), texts(), cycle("a", "b")]),
    "many labels": (("text", "intent"), [texts(200), [f"label_{i % 77}" for i in range(200)]]),
    "sorted by label": (("text", "label"), [texts(), sorted(map(str, cycle("neg", "pos")))]),
    "labels called like columns": (("text", "kind"), [texts(), cycle("question", "comment", "title")]),
    "Chinese": (("评论", "标签"), [[f"我看了{i}遍\uff0c这部电影真的很好看" for i in range(60)], cycle("好评", "差评")]),
    "five rows": (("text", "label"), [texts(5), cycle("pos", "neg", count=5)]),
    "two rows": (("text", "label"), [texts(2), cycle("pos", "neg", count=2)]),
}
WAYS = ((",", ""), (";", "\ufeff"), ("\t", ""))
WITHOUT = sorted(FILES.keys() - {"two rows", "words as labels of words"})
"""Files whose first row of data tells that it is one; of the others it could be a header."""


def rows_of(name: str) -> list[list[object]]:
    return [list(row) for row in zip(*FILES[name][1], strict=True)]


def write(path: Path, rows: Iterable[Row], separator: str = ",", mark: str = "") -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        stream.write(mark)
        csv.writer(stream, delimiter=separator).writerows(rows)
    return path


def has_header(path: Path, **named: Any) -> bool:
    form = guess_table_form(DataSource(path=str(path), **named))
    assert form is not None
    return form.header


def ways(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Each file with commas, with semicolons and a byte order mark, or with tabs; a single column has commas only."""
    return [(n, *WAYS[i % 3 if len(FILES[n][0]) > 1 else 0]) for i, n in enumerate(names)]


@pytest.mark.parametrize(("name", "separator", "mark"), ways(FILES))
def test_headers_are_found(tmp_path: Path, name: str, separator: str, mark: str) -> None:
    path = write(tmp_path / "a.csv", [FILES[name][0], *rows_of(name)], separator, mark)
    assert has_header(path)
    [(number, row), *_] = read_rows(DataSource(path=str(path)), BadRows("a"))
    assert (number, list(row)) == (2, list(FILES[name][0]))


@pytest.mark.parametrize(("name", "separator", "mark"), ways(WITHOUT))
def test_files_without_a_header_lose_no_row(tmp_path: Path, name: str, separator: str, mark: str) -> None:
    rows = rows_of(name)
    for first in range(min(5, len(rows))):  # whichever row is the first one
        path = write(tmp_path / "a.csv", [*rows[first:], *rows[:first]], separator, mark)
        read = list(read_rows(DataSource(path=str(path)), BadRows("a")))
        assert len(read) == len(rows), rows[first]
        assert read[0] == (1, {f"column {i}": str(cell) for i, cell in enumerate(rows[first], 1)})


def test_tsv_has_no_quotes_and_a_cola_file_has_no_header(tmp_path: Path) -> None:
    lines = [f'gj04\t{i % 2}\t{"*" * (i % 2)}\tThe "book", I think, is number {i}.' for i in range(40)]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    found = guess_columns(DataSource(path=str(tmp_path / "a.tsv")))
    assert (found.source.text, found.source.label, found.source.header) == ("column 4", "column 2", False)
    assert len(read_examples(found.source)) == 40


TWO_FILES = [("text", "label"), *zip(texts(), cycle(1, 0), strict=True), ("text", "label"), ("fine", 1)]


@pytest.mark.parametrize(
    ("rows", "header"),
    [
        pytest.param([("0", "1"), *zip(texts(), cycle(1, 0), strict=True)], True, id="pandas' numbers as names"),
        pytest.param(TWO_FILES, True, id="two files in one"),
        pytest.param([("confirmed", "yes"), *zip(commands(), drawn("yes", "no"), strict=True)], False, id="a command"),
        pytest.param([("english", "french"), *((f"w{i}x", f"m{i}y") for i in range(60))], True, id="words: a tie"),
        pytest.param([("great film", 1)], False, id="one row of data"),
        pytest.param([("text", "label")], True, id="nothing below a header"),
    ],
)
def test_what_is_easily_taken_for_the_other(tmp_path: Path, rows: list[Row], header: bool) -> None:
    assert has_header(write(tmp_path / "a.csv", rows)) is header


def test_named_columns_and_the_user_decide_and_a_note_names_the_option(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [("stop", "go"), *zip(commands(), drawn("stop", "go", "rest"), strict=True)])
    assert not has_header(path)
    assert has_header(path, text="stop")
    assert has_header(path, header=True)
    assert next(read_rows(DataSource(path=str(path), header=True), BadRows("a")))[0] == 2
    other = write(tmp_path / "b.csv", [("text", "label"), ("good", 1), ("bad", 0)])
    first = next(read_rows(DataSource(path=str(other), header=False), BadRows("a")))
    assert first == (1, {"column 1": "text", "column 2": "label"})
    path = write(tmp_path / "a.csv", [("apple",), *((f"w{i}x",) for i in range(60))])
    found = guess_columns(DataSource(path=str(path)), LabelKind.NONE)
    assert found.note == "text: column 'apple'; --no-header, if these names are a row of data"
    assert guess_columns(DataSource(path=str(path), text="apple"), LabelKind.NONE).note == "text: column 'apple'"


@pytest.mark.parametrize(
    ("name", "kind", "note"),
    [
        ("text and 0/1", None, "column 1 is the text, column 2 the label (2 numbers)"),
        ("label first", None, "column 2 is the text, column 1 the label (3 names)"),
        ("commands", None, "column 1 is the text, column 2 the label (4 names)"),
        ("index of pandas", None, "column 2 is the text, column 3 the label (2 numbers)"),
        ("two texts", None, "column 1 is the text, column 2 the second text, column 3 the label (3 names)"),
        ("scores, one text", None, "column 1 is the text, column 2 the label (scores)"),
        ("one column of texts", LabelKind.NONE, "column 1 is the text"),
        ("one column of commands, usual name", LabelKind.SCORE_OR_NONE, "column 1 is the text"),
        ("an empty column", None, "column 1 is the text, column 3 the label (2 names)"),
        ("Sentiment140", None, "column 6 is the text, column 1 the label (2 numbers)"),
        ("MRPC", None, "column 4 is the text, column 5 the second text, column 1 the label (2 numbers)"),
    ],
)
def test_the_note_names_columns_without_a_header(tmp_path: Path, name: str, kind: LabelKind | None, note: str) -> None:
    path = write(tmp_path / "a.csv", rows_of(name))
    found = guess_columns(DataSource(path=str(path)), kind)
    assert found.note.split(";")[0] == f"no header: {note}"
    assert found.source.header is False
    assert len(read_examples(found.source, kind=kind or LabelKind.NONE)) == len(rows_of(name))


@pytest.mark.parametrize(
    ("header", "text", "fix"),
    [
        ([], "review", "give --header, or header: true in the recipe"),
        ([("review", "sentiment")], "column 1", "give --no-header, or header: false"),
    ],
)
def test_a_missing_column_tells_how_the_first_row_was_read(
    tmp_path: Path, header: list[Row], text: str, fix: str
) -> None:
    path = write(tmp_path / "a.csv", [*header, *rows_of("text and names")])
    with pytest.raises(InputError) as caught:
        read_examples(DataSource(path=str(path), text=text))
    assert fix in caught.value.problems[0].fix


def test_rows_of_another_length_and_repeated_headers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [*rows_of("text and 0/1"), ("one cell",)])
    with pytest.raises(InputError, match=r"a.csv:61: 1 columns, the first row has 2"):
        read_examples(DataSource(path=str(path), text="column 1", label="column 2"))
    path = tmp_path / "joined.tsv"
    path.write_text("text\tlabel\na lamp\tlamp\ntext\tlabel\na song\tmusic\n")
    with pytest.raises(InputError, match=r"joined.tsv:3: repeats the header"):
        read_examples(DataSource(path=str(path)))
    path.write_text("text\na lamp\ntext\n")  # one column: it may be a text
    bad = BadRows("joined.tsv")
    assert [row["text"] for _, row in read_rows(DataSource(path=str(path), header=True), bad)] == ["a lamp", "text"]


def test_only_tables_have_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": 1}\n')
    with pytest.raises(InputError, match="and only tables have one"):
        read_examples(DataSource(path=str(path), header=False))
    assert guess_table_form(DataSource(path=str(path))) is None
    with pytest.raises(ValidationError, match="header: a fraction of the training rows is read as they are"):
        EvalSource.model_validate({"fraction": 0.1, "header": True})
    with pytest.raises(ValidationError, match="at_most: limits a fraction of the training rows, and there is none"):
        EvalSource.model_validate({"path": "a.csv", "at_most": 5})


def test_rows_are_read_one_after_the_other(tmp_path: Path) -> None:
    rows = rows_of("text and names")
    path = write(tmp_path / "a.csv", rows * 100)
    with path.open("ab") as stream:
        stream.write(b"\x81 broken,x\n" + b"x" * 5_000_000)
    some = read_rows(DataSource(path=str(path)), BadRows("a"))
    assert next(some)[1] == {"column 1": rows[0][0], "column 2": rows[0][1]}
    with pytest.raises(InputError, match="not UTF-8"):
        list(some)
    with pytest.raises(InputError, match="more than 10 rows"):
        list(read_rows(DataSource(path=str(path), max_rows=10), BadRows("a")))
    write(path, rows[:10])
    assert len(list(read_rows(DataSource(path=str(path), max_rows=10), BadRows("a")))) == 10


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xef\xbb\xbf", b'"', b"\x00,\x00\n", b"," * 30_000, b'"a,b\n' * 9, b"\xff\xfe\n"]
)
def test_what_is_no_table_is_no_crash(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    bad = BadRows("a")
    try:
        rows = list(read_rows(DataSource(path=str(tmp_path / "a.csv")), bad))
    except InputError:
        return
    assert bad.count or all(isinstance(row, dict) for _, row in rows)
