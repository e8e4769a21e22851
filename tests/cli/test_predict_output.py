"""`predict -o`: answers beside the columns of their rows, in a file that is whole or not there."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows with a number and a label of their own; one cell holds the separator and a quotation mark."""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [["id", "sentence", "label"], ["7", 'dim the "bulb", now', "lamp"], ["8", "a nice old song", "timer"]]
        )
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_table_keeps_every_column(cli: Cli, finished: Path, rows: Path, tmp_path: Path, kind: str) -> None:
    made = tmp_path / "new" / f"answers.{kind}"
    told = cli("predict", "-m", finished / "phone", "--file", rows, "-o", made)
    assert told.exit_code == 0, told.stderr
    assert told.stdout == ""
    assert f"2 answers: {made}" in told.stderr
    with made.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file, delimiter="," if kind == "csv" else "\t"))
    assert [*read[0]] == ["id", "sentence", "label", "predicted_label", "predicted_score", "predicted_truncated"]
    assert [(r["id"], r["sentence"], r["label"], r["predicted_label"]) for r in read] == [
        ("7", 'dim the "bulb", now', "lamp", "lamp"),
        ("8", "a nice old song", "timer", "music"),
    ]
    assert all(0.5 < float(r["predicted_score"]) <= 1 for r in read)


def test_json_lines_keep_every_field(cli: Cli, finished: Path, rows: Path, tmp_path: Path) -> None:
    told = cli("predict", "-m", finished / "phone", "--file", rows, "-o", tmp_path / "a.jsonl", "--top", 2)
    assert told.exit_code == 0, told.stderr
    first, second = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert (first["id"], first["label"], first["answer"]["label"]) == ("7", "lamp", "lamp")
    assert second["answer"]["top"][0]["label"] == "music"
    assert len(second["answer"]["top"]) == 2


def test_json_on_stdout_has_the_other_columns(cli: Cli, finished: Path, rows: Path) -> None:
    told = cli("predict", "-m", finished / "phone", "--file", rows, "--json")
    found = [json.loads(line) for line in told.stdout.splitlines()]
    assert [f["row"] for f in found] == [{"id": "7", "label": "lamp"}, {"id": "8", "label": "timer"}]
    assert [f["label"] for f in found] == ["lamp", "music"]
    assert "row" not in json.loads(cli("predict", "-m", finished / "phone", "a song", "--json").stdout)


@pytest.mark.parametrize(
    ("name", "message"),
    [("answers.txt", "is no kind of file for answers"), ("rows.csv", "is read by this command"), ("old.csv", "exists")],
)
def test_a_file_that_cannot_be_written_is_refused_first(
    cli: Cli, finished: Path, rows: Path, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "old.csv").write_text("mine\n")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    told = cli("predict", "-m", finished / "phone", "--file", rows, "-o", tmp_path / name)
    assert told.exit_code == 2
    assert message in told.stderr
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_an_empty_text_is_answered_with_a_remark(cli: Cli, finished: Path) -> None:
    told = cli("predict", "-m", finished / "phone", "a nice old song", "", "  ", "--json")
    assert len(told.stdout.splitlines()) == 3
    assert "text 2 is empty (2 in all): its answer does not mean anything" in told.stderr
    assert "empty" not in cli("predict", "-m", finished / "phone", "a nice old song").stderr


def test_rows_without_a_header_are_all_answered(cli: Cli, finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('7,"dim the ""bulb"", now",lamp\n8,a nice old song,timer\n9,play the old song again,timer\n')
    told = cli("predict", "-m", finished / "phone", "--file", path, "--json")
    assert "no header: column 2 is the text" in told.stderr
    assert [json.loads(line)["row"]["column 1"] for line in told.stdout.splitlines()] == ["7", "8", "9"]
    assert len(cli("predict", "-m", finished / "phone", "--file", path, "--header", "--json").stdout.splitlines()) == 2
    made = tmp_path / "made.csv"
    assert cli("predict", "-m", finished / "phone", "--file", path, "--text", "column 2", "-o", made).exit_code == 0
    assert made.read_text().splitlines()[0].startswith("column 1,column 2,column 3,predicted_label")


def test_only_tables_take_the_options_of_a_header(cli: Cli, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a song\n")
    for given in (("--file", tmp_path / "a.txt", "--no-header"), ("a song", "--header")):
        told = cli("predict", "-m", finished / "phone", *given)
        assert (told.exit_code, "belong to a .csv or .tsv file" in told.stderr) == (2, True)


def test_rows_with_numbers_are_scored_only_where_it_is_clear_which_label_they_are(
    cli: Cli, finished: Path, tmp_path: Path
) -> None:
    names = ["lamp", "music", "timer"]  # the model's labels in order
    texts = ["dim the bulb now", "a nice old song", "wake me in ten minutes"] * 4
    for first, code, message in ((0, 0, "passed"), (1, 2, "which is which?")):
        path = tmp_path / f"from{first}.csv"
        path.write_text("".join(f"{text} {i},{first + i % len(names)}\n" for i, text in enumerate(texts)))
        told = cli("verify", "-m", finished / "phone", "--data", path, "--max-drop", 1)
        assert (told.exit_code, message in told.stdout + told.stderr) == (code, True), told.output
        assert "no header: column 1 is the text, column 2 the label (3 numbers)" in told.stderr
