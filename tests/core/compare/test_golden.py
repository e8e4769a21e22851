from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.compare import golden
from pocketbert.core.compare.golden import GoldenRow, read_golden, write_golden
from pocketbert.core.errors import InputError

ROWS = [
    GoldenRow(
        text="a naïve film 👍", label="yes", reference=[0.5, 1.25], outputs={"m": [0.5, 1.0]}, tolerance={"m": 0.1}
    ),
    GoldenRow(text=("a", "b"), label="no", reference=[1.0, 0.0], outputs={"m": [0.1 + 0.2, 0.0]}, tolerance={"m": 0.1}),
]


def test_rows_go_there_and_back(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden.jsonl", ROWS)
    assert read_golden(tmp_path / "golden.jsonl") == ROWS
    assert ROWS[1].input == ("a", "b")
    np.testing.assert_array_equal(ROWS[0].expected("m"), np.array([[0.5, 1.0]], np.float32))


def test_keys_of_newer_rows_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "golden.jsonl"
    path.write_text(ROWS[0].model_dump_json().replace('{"text"', '{"news": 1, "text"') + "\n")
    assert read_golden(path) == ROWS[:1]


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "a"}', "\xff"])
def test_a_wrong_row_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "golden.jsonl"
    path.write_text(ROWS[0].model_dump_json() + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"golden.jsonl:2: not a golden row"):
        read_golden(path)


def test_other_encodings_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "golden.jsonl"
    with pytest.raises(InputError, match="file not found"):
        read_golden(path)
    path.write_text("")
    with pytest.raises(InputError, match="no rows"):
        read_golden(path)
    path.write_bytes(b'{"text": "na\xefve"}\n')
    with pytest.raises(InputError, match="golden.jsonl"):
        read_golden(path)


def test_the_number_of_rows_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "MAX_ROWS", 1)
    write_golden(tmp_path / "golden.jsonl", ROWS)
    with pytest.raises(InputError, match="more than 1 rows"):
        read_golden(tmp_path / "golden.jsonl")
