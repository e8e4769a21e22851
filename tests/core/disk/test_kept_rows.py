"""Finished rows that are kept beside an output: whole portions only, for the same key, by one command at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.disk.kept_rows import keep_rows
from pocketbert.core.errors import InputError, MachineError

KEY, OTHER = "a" * 64, "b" * 64


def interrupted(output: Path, key: str, *portions: list[bytes]) -> None:
    """Keep portions, and fail."""
    with pytest.raises(RuntimeError), keep_rows(output, key, 2) as kept:
        for portion in portions:
            kept.add(portion)
        raise RuntimeError


def test_whole_portions_are_kept_until_the_output_is_written(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    interrupted(output, KEY, [b"1", b"2"], [b"3"])
    with (tmp_path / ".out.csv.answers").open("ab") as stream:
        stream.write(b"cut")
    with keep_rows(output, KEY, 2) as kept:
        assert (kept.done, "2 rows were answered before" in kept.note) == (2, True)
        kept.add([b"4"])
        assert [*kept.read()] == [b"1\n", b"2\n", b"4\n"]
    assert [*tmp_path.iterdir()] == []


def test_other_rows_begin_anew_and_nothing_is_left_of_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    interrupted(output, KEY)
    assert [*tmp_path.iterdir()] == []
    interrupted(output, KEY, [b"1", b"2"])
    with keep_rows(output, OTHER, 2) as kept:
        assert (kept.done, "computed anew" in kept.note) == (0, True)


def test_the_file_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / ".out.csv.answers").write_text("mine\n", encoding="utf-8")
    with pytest.raises(InputError, match="is not touched"), keep_rows(tmp_path / "out.csv", KEY, 2):
        pass
    assert (tmp_path / ".out.csv.answers").read_text(encoding="utf-8") == "mine\n"


def test_a_second_command_with_the_same_output_is_refused(tmp_path: Path) -> None:
    with keep_rows(tmp_path / "out.csv", KEY, 2) as kept:
        with pytest.raises(MachineError, match="another process is writing"), keep_rows(tmp_path / "out.csv", KEY, 2):
            pass
        kept.add([b"1"])
    assert [*tmp_path.iterdir()] == []
