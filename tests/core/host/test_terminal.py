"""What is printed of an error, and of a text that somebody else wrote."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.host.terminal import (
    _MAX_COLUMNS,
    _MAX_LINES,
    escape_control_characters,
    escape_separators,
    format_error,
)

ANY = st.text(st.characters(exclude_categories=()), max_size=60)
LONG = st.builds(lambda text, times: text * times, ANY, st.sampled_from([1, 7, 300, 5000]))


def test_one_problem_and_several() -> None:
    assert format_error(["a: wrong."]) == "Error: a: wrong."
    assert format_error(["a: wrong.", "b: wrong."]) == "2 problems:\n  a: wrong.\n  b: wrong."
    assert format_error([""]) == "Error: unknown, without a message"


def test_what_does_not_fit_goes_on_in_the_next_line() -> None:
    words = " ".join(f"word{i}" for i in range(60))
    lines = format_error([words]).splitlines()
    assert len(lines) == 3
    assert " ".join(line.strip() for line in lines) == f"Error: {words}"
    assert all(line.startswith("  ") for line in lines[1:])


def test_long_values_keep_the_fix() -> None:
    text = format_error([f"label '{'x' * 150_000}' is wrong. Fix: Correct the row."])
    assert text.endswith("Fix: Correct the row.")
    assert "characters left out" in text


def test_long_lists_are_cut_with_a_count() -> None:
    lines = format_error([f"row {i}: wrong." for i in range(3000)]).splitlines()
    assert lines[0] == "3000 problems:"
    assert lines[-2:] == ["  and 2,962 more.", "  row 2999: wrong."]  # the last one may count what was not listed
    assert len(lines) == _MAX_LINES
    exact = format_error([f"row {i}: wrong." for i in range(_MAX_LINES - 1)]).splitlines()
    assert exact[-1] == "  row 38: wrong."


@given(st.lists(LONG, min_size=1, max_size=60))
def test_every_error_is_bounded_and_harmless(problems: list[str]) -> None:
    lines = format_error(problems).split("\n")
    assert len(lines) <= _MAX_LINES
    assert max(map(len, lines)) <= _MAX_COLUMNS
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


def test_a_failure_of_the_machine_has_a_text() -> None:
    import errno

    from pocketbert.cli.commands import _machine_error

    assert _machine_error(OSError(errno.EFBIG, "File too large", "x")).startswith("Error: a file would be larger than")
    assert _machine_error(ValueError()) == "Error: ValueError: ValueError (--debug prints where; so does run.log)"
    assert _machine_error(MemoryError()).startswith("Error: MemoryError")
