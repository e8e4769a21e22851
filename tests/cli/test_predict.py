"""`predict`: texts from arguments, stdin and files; answers on stdout or beside the columns of their rows; hostile texts."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.cli import predict
from pocketbert.cli.output import json_text, print_answer, print_table
from pocketbert.core.errors import InputError
from pocketbert.core.predict.answers import Excerpt, Filled, FoundSpan, Guess, Labelling, Prediction, Spans
from pocketbert.runtime.model import Model
from support.commands import command

Cli = Callable[..., Any]
FORGED = "a\nalarm\t0.99"


@pytest.fixture
def ask(cli: Cli, finished: Path) -> Cli:
    """`ask(*arguments, input=None)`: `predict` with the folder of the tiny run, which must succeed."""

    def call(*arguments: object, **more: Any) -> Any:
        told = cli("predict", "-m", finished / "phone", *arguments, **more)
        assert told.exit_code == 0, told.output
        return told

    return call


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows with a number and a label of their own; one cell holds the separator and a quotation mark."""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [["id", "sentence", "label"], ["7", 'dim the "bulb", now', "lamp"], ["8", "a nice old song", "timer"]]
        )
    return path


def read_json(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.split("\n")[:-1]]


def labels(result: Any) -> list[str]:
    return [answer["label"] for answer in read_json(result)]


# where texts come from


def test_texts_from_files_of_every_kind(ask: Cli, tmp_path: Path) -> None:
    texts = ["a nice old song", "wake the friend, at now", "the bright table"]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "a.csv").write_text("id,sentence\n" + "".join(f'{i},"{t}"\n' for i, t in enumerate(texts)))
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{t}\tx\n" for t in texts))
    for name, more in (("a.txt", []), ("a.jsonl", []), ("a.csv", ["--text", "sentence"]), ("a.tsv", [])):
        assert labels(ask("--file", tmp_path / name, "--json", *more)) == ["music", "timer", "lamp"]


def test_pairs_come_from_columns_or_one_after_the_other(ask: Cli, cli: Cli, finished: Path, tmp_path: Path) -> None:
    pairs = [{"a": "the song", "b": "my chair"}, {"a": "my door", "b": "the timer"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(r) + "\n" for r in pairs))
    from_file = ask("--file", tmp_path / "p.jsonl", "--text", "a", "--text-pair", "b", "--json")
    from_arguments = ask("--text-pair", "b", "--json", *(text for pair in pairs for text in pair.values()))
    assert from_file.stdout == from_arguments.stdout
    assert read_json(from_file)[0]["text"] == ["the song", "my chair"]
    odd = cli("predict", "-m", finished / "phone", "--text-pair", "b", "one", "two", "three")
    assert odd.exit_code == 2
    assert "3 texts do not form pairs" in odd.stderr


def test_stdin_and_a_file_are_read_alike(ask: Cli, tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbfone\rstill one\r\n\n two\x0b\xe2\x80\xa8\nlast"
    (tmp_path / "a.txt").write_bytes(raw)
    given = ask("--json", input=raw)
    assert [r["text"] for r in read_json(given)] == ["one\rstill one", "", " two\x0b\u2028", "last"]
    assert given.stdout == ask("--json", "--file", tmp_path / "a.txt").stdout
    assert ask(input="").stdout == ""


def test_other_encodings_of_a_file_are_said_and_of_stdin_are_given(ask: Cli, tmp_path: Path) -> None:
    raw = "déjà vu, the lamp\n".encode("cp1252")
    (tmp_path / "a.txt").write_bytes(raw)
    found = ask("--json", "--file", tmp_path / "a.txt")
    assert read_json(found)[0]["text"] == "déjà vu, the lamp"
    assert found.stderr.count("a.txt: read as cp1252 (--encoding, if that is wrong)") == 1
    given = ask("--json", "--encoding", "cp1252", input=raw)
    assert (given.stdout, given.stderr) == (found.stdout, "")


def test_what_is_no_text_on_stdin_is_bad_input(cli: Cli, tmp_path: Path) -> None:
    for raw, message in (
        ("naïve".encode("utf-16"), "stdin:1: contains a null byte"),
        (b"\xef\n", "stdin:1: not UTF-8"),
    ):
        result = cli("predict", "-m", tmp_path, input=raw)
        assert result.exit_code == 2
        assert message in result.stderr


class Unreadable(io.RawIOBase):
    """A stream that was opened for writing."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def test_a_stdin_that_is_closed_or_cannot_be_read_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    unreadable = io.TextIOWrapper(io.BufferedReader(Unreadable()))
    for stdin, message in ((None, "got no text"), (closed, "got no text"), (unreadable, "stdin: cannot be read")):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(InputError, match=message):
            predict.predict(tmp_path)


def test_wrong_inputs_are_refused(cli: Cli, finished: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")  # never waited for
    (tmp_path / "a.txt").write_text("too long " * 200)
    (tmp_path / "old.csv").write_text("mine")
    for arguments, message in (
        (["--file", tmp_path / "gone.txt"], "file not found."),
        (["--file", tmp_path / "gone.jsonl"], "file not found."),
        (["--file", tmp_path / "gone.txt", "text"], "--file: was given together with texts."),
        (["--file", tmp_path / "pipe.txt"], "is a pipe, not a file"),
        (["--file", tmp_path / "a.txt", "--max-line-mb", "0.001"], "line longer than 1,048 bytes"),
        (["--file", tmp_path / "a.txt", "--no-header"], "belong to a .csv or .tsv file"),
        (["a song", "--header"], "belong to a .csv or .tsv file"),
        (["--scheme", "w4", "a song"], "no 'w4' file in the folder"),
        (["--prompt", "query", "a song"], "query"),
        (["-o", tmp_path / "answers.txt", "a song"], "is no kind of file for answers"),
        (["-o", tmp_path / "old.csv", "a song"], "exists"),
    ):
        result = cli("predict", "-m", finished / "phone", *arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert message in result.stderr, arguments
    assert (tmp_path / "old.csv").read_text() == "mine"


# what is answered


def test_texts_are_answered_in_tab_separated_lines_and_what_was_cut_off_is_flagged(ask: Cli) -> None:
    texts = "the song", ("song " + "very " * 60).strip()
    assert [answer["truncated"] for answer in read_json(ask("--json", *texts))] == [False, True]
    lines = [line.split("\t") for line in ask(*texts).stdout.splitlines()]
    assert [(cells[0], cells[2]) for cells in lines] == [("music", texts[0]), ("music", f"{texts[1]}  [truncated]")]
    assert all(0.5 < float(cells[1]) <= 1 for cells in lines)


def test_more_labels_of_another_file_with_one_thread(ask: Cli) -> None:
    told = ask("--top", "3", "--scheme", "fp32", "--threads", "1", "--json", "the song")
    top = json.loads(told.stdout)["top"]
    assert top[0]["label"] == "music"
    assert sum(t["score"] for t in top) == pytest.approx(1, abs=1e-5)


def test_an_empty_text_is_answered_with_a_remark(ask: Cli) -> None:
    told = ask("a nice old song", "", "  ", "--json")
    assert len(told.stdout.splitlines()) == 3
    assert "text 2 is empty (2 in all): its answer does not mean anything" in told.stderr
    assert "empty" not in ask("a nice old song").stderr


# tables: the rows' other columns are kept


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_table_keeps_every_column(ask: Cli, rows: Path, tmp_path: Path, kind: str) -> None:
    made = tmp_path / "new" / f"answers.{kind}"
    told = ask("--file", rows, "-o", made)
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


def test_json_has_the_other_columns_in_a_file_and_on_stdout(ask: Cli, rows: Path, tmp_path: Path) -> None:
    ask("--file", rows, "-o", tmp_path / "a.jsonl", "--top", 2)
    first, second = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert (first["id"], first["label"], first["answer"]["label"]) == ("7", "lamp", "lamp")
    assert [second["answer"]["top"][0]["label"], len(second["answer"]["top"])] == ["music", 2]
    told = ask("--file", rows, "--json")
    assert [r["row"] for r in read_json(told)] == [{"id": "7", "label": "lamp"}, {"id": "8", "label": "timer"}]
    assert labels(told) == ["lamp", "music"]
    assert "row" not in read_json(ask("a song", "--json"))[0]


def test_rows_without_a_header_are_all_answered(ask: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('7,"dim the ""bulb"", now",lamp\n8,a nice old song,timer\n9,play the old song again,timer\n')
    told = ask("--file", path, "--json")
    assert "no header: column 2 is the text" in told.stderr
    assert [r["row"]["column 1"] for r in read_json(told)] == ["7", "8", "9"]
    assert len(ask("--file", path, "--header", "--json").stdout.splitlines()) == 2
    made = tmp_path / "made.csv"
    ask("--file", path, "--text", "column 2", "-o", made)
    assert made.read_text().splitlines()[0].startswith("column 1,column 2,column 3,predicted_label")


# many rows: in portions, which survive a kill


@pytest.mark.parametrize(("source", "made"), [("csv", "csv"), ("txt", "jsonl")])
def test_a_killed_command_goes_on_behind_its_finished_rows(
    ask: Cli, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, made: str
) -> None:
    texts = [f"{text} {i % 7}" for i in range(3000) for text in ("dim the bulb now", "a nice old song", "wake me")]
    path, output = tmp_path / f"rows.{source}", tmp_path / "new" / f"out.{made}"
    lines = ["id,text", *(f"{i},{t}" for i, t in enumerate(texts))] if source == "csv" else texts
    path.write_text("\n".join(lines) + "\n")
    kept = output.with_name(f".{output.name}.answers")
    arguments = ["-m", finished / "phone", "--file", path, "-o", output]
    killed = subprocess.Popen(command("predict", *arguments), stderr=subprocess.DEVNULL)
    while killed.poll() is None and not (kept.is_file() and kept.read_bytes().count(b"\n") > 1025):
        time.sleep(0.005)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert not output.exists()
    whole = kept.read_bytes().count(b"\n") // 1024 * 1024
    assert 1024 <= whole < len(texts)
    with kept.open("ab") as stream:
        stream.write(b'{"label": "half a li')
    computed: list[int] = []
    predict_rows = Model.predict
    monkeypatch.setattr(
        Model, "predict", lambda self, rows, *a, **k: computed.append(len(rows)) or predict_rows(self, rows, *a, **k)
    )
    told = ask("--file", path, "-o", output)
    assert f"{whole:,} rows were answered before; going on behind them" in told.stderr
    assert sum(computed) == len(texts) - whole
    assert [p.name for p in output.parent.iterdir()] == [output.name]
    ask("--file", path, "-o", tmp_path / f"whole.{made}", "--threads", 1)
    assert output.read_bytes() == (tmp_path / f"whole.{made}").read_bytes()


def test_kept_answers_of_other_rows_are_computed_anew_and_foreign_files_stay(
    ask: Cli, cli: Cli, finished: Path, rows: Path, tmp_path: Path
) -> None:
    kept = tmp_path / ".out.csv.answers"
    kept.write_text("0" * 64 + '\n{"label": "forged"}\n' * 3)
    assert "they are computed anew" in ask("--file", rows, "-o", tmp_path / "out.csv").stderr
    assert "forged" not in (tmp_path / "out.csv").read_text() and not kept.exists()
    kept.write_text("my notes\n")
    refused = cli("predict", "-m", finished / "phone", "--file", rows, "-o", tmp_path / "out.csv", "--overwrite")
    assert refused.exit_code == 2
    assert "is not a file of PocketBERT" in refused.stderr
    assert kept.read_text() == "my notes\n"


# labels and texts of strangers: no line or field is forged, and no terminal obeys


def list_texts(value: Any) -> list[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, dict):
        return [*value, *(t for v in value.values() for t in list_texts(v))]
    return [t for v in value for t in list_texts(v)] if isinstance(value, list) else [value]


ANSWERS = [
    Prediction(FORGED, 0.5, {FORGED: 0.5, "b": 0.5}, False),
    Labelling((FORGED,), {FORGED: 0.9}, False),
    Spans((FoundSpan(0, 3, FORGED, FORGED, 0.5),), False),
    Excerpt(FORGED, 0, 3, 0.5),
    Filled(((Guess(FORGED, FORGED, 0.5),),), False),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: type(a).__name__)
def test_no_answer_forges_a_line_or_a_field(answer: Any) -> None:
    line = answer.line(2)
    assert "\n" not in line
    assert "\\nalarm\\t0.99" in line
    assert FORGED in list_texts(json.loads(json_text(answer.fields(2))))  # --json has the text itself


def test_texts_with_breaks_stay_on_one_line(ask: Cli) -> None:
    told = ask(FORGED)
    assert told.stdout.count("\n") == 1
    assert told.stdout.endswith("\ta\\nalarm\\t0.99\n")


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    print_answer("\x1b[2J\t0.99\ta \x9b31m text \u202e")
    assert screen.getvalue() == "\\x1b[2J\t0.99\ta \\x9b31m text \\u202e\n"
    print_table(["[red]", "b"], [["\x1b[2J", "[/nothing]"]])
    assert "\\x1b[2J" in screen.getvalue()
    assert "[/nothing]" in screen.getvalue()


def test_a_pipe_and_json_get_the_text_itself(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer("\x1b[2J\t0.99")
    assert capsys.readouterr().out == "\x1b[2J\t0.99\n"
    for text in (FORGED, "\x1b[2J", "\u202e", "é"):
        assert json.loads(json_text({"label": text})) == {"label": text}
    assert (json_text("\ud800"), json_text("é")) == ('"\\ud800"', '"é"')
