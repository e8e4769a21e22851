"""What is printed of an error and of a text that somebody else wrote, and what a notebook shows of a result."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert import Gate, RunResult, Verification
from pocketbert.benchmarks.report import ModelFigures
from pocketbert.cli.commands import _machine_error
from pocketbert.core.host.terminal import escape_control_characters, escape_separators, format_error, html_table
from pocketbert.core.types import Status

MAX_LINES, MAX_COLUMNS = 40, 200
ANY = st.text(st.characters(exclude_categories=()), max_size=60)
LONG = st.builds(lambda text, times: text * times, ANY, st.sampled_from([1, 7, 300, 5000]))


def test_problems_are_listed_wrapped_and_cut_with_a_count() -> None:
    assert format_error(["a: wrong."]) == "Error: a: wrong."
    assert format_error(["a: wrong.", "b: wrong."]) == "2 problems:\n  a: wrong.\n  b: wrong."
    assert format_error([""]) == "Error: unknown, without a message"
    words = " ".join(f"word{i}" for i in range(60))
    lines = format_error([words]).splitlines()
    assert len(lines) == 3
    assert " ".join(line.strip() for line in lines) == f"Error: {words}"
    assert all(line.startswith("  ") for line in lines[1:])
    text = format_error([f"label '{'x' * 150_000}' is wrong. Fix: Correct the row."])
    assert text.endswith("Fix: Correct the row.")
    assert "characters left out" in text
    lines = format_error([f"row {i}: wrong." for i in range(3000)]).splitlines()
    assert lines[0] == "3000 problems:"
    assert lines[-2:] == ["  and 2,962 more.", "  row 2999: wrong."]  # the last one may count what was not listed
    assert len(lines) == MAX_LINES
    exact = format_error([f"row {i}: wrong." for i in range(MAX_LINES - 1)]).splitlines()
    assert exact[-1] == "  row 38: wrong."


@settings(max_examples=40)
@given(st.lists(LONG, min_size=1, max_size=60))
def test_every_error_is_bounded_and_harmless(problems: list[str]) -> None:
    lines = format_error(problems).split("\n")
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= MAX_COLUMNS
    assert all(line.isprintable() and line.strip() for line in lines)


@given(ANY, ANY)
def test_a_field_stays_a_field(first: str, second: str) -> None:
    line = f"{escape_separators(first)}\t{escape_separators(second)}"
    assert line.splitlines() == [line] or not line.strip("\t")
    assert line.count("\t") == 1
    line.encode()


@given(ANY)
def test_a_terminal_has_nothing_to_obey(text: str) -> None:
    assert not [c for c in escape_control_characters(text) if ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e"]


def test_scripts_that_need_joiners_are_shown_as_they_are() -> None:
    for text in ("می\u200cخواهم", "क्\u200dष", "👩\u200d🚀", "caf\u00e9", "a\u00a0b"):
        assert escape_control_characters(text) == text == escape_separators(text)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EFBIG, "File too large", "x"), "Error: a file would be larger than"),
        (ValueError(), "Error: ValueError: ValueError (--debug prints where; so does run.log)"),
        (MemoryError(), "Error: MemoryError"),
    ],
)
def test_a_failure_of_the_machine_has_a_text(error: Exception, text: str) -> None:
    assert _machine_error(error).startswith(text)


def test_cells_are_no_markup(tmp_path: Path) -> None:
    shown = html_table(("<b>",), [("<script>alert(1)</script>",)], "a & b", tmp_path / "re port.html")
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "a &amp; b" in shown
    assert "re%20port.html" in shown


def test_a_run_shows_its_closing_table() -> None:
    figures = ModelFigures("ONNX int8", "onnx/model_int8.onnx", True, 17_000_000, "accuracy", score=0.91)
    table = [["ONNX int8", "17 MB"]]
    result = RunResult(Path("runs/x"), Path("runs/x/phone"), None, ["model", "size"], table, [figures])
    assert "ONNX int8" in result._repr_html_()
    told = result.to_dict()
    (model,) = told.pop("models")
    assert told == {"folder": "runs/x", "phone": "runs/x/phone", "report": None}
    assert (model["bytes"], model["score"], model["p50_ms"]) == (17_000_000, 0.91, None)


def test_a_verification_shows_failures_by_file() -> None:
    gates = [
        Gate(name="finite", file="a.onnx", passed=True),
        Gate(name="golden", file="a.onnx", passed=False, detail="differs by 3"),
        Gate(name="integrity", file="", passed=True),
    ]
    found = Verification(status=Status.FAILED, gates=gates)
    assert "differs by 3" in found._repr_html_()
    assert found.to_dict()["gates"][1]["name"] == "golden"
    assert found.summary() == [("a.onnx: 1 check passed, 1 failed", True), ("folder: 1 check passed", False)]
    found.gates[0].skipped = found.gates[1].skipped = True
    assert found.summary()[0] == ("a.onnx: not checked", False)
