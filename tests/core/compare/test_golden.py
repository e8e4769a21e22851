"""Golden rows and recorded errors: read as they were written; what proves nothing is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.compare import golden
from pocketbert.core.compare.golden import (
    SIMULATED_FILE,
    GoldenRow,
    SimulatedErrors,
    read_golden,
    read_golden_tokens,
    read_simulated,
    write_golden,
    write_simulated,
)
from pocketbert.core.errors import InputError

ROWS = [
    GoldenRow(
        text="a naïve film 👍", label="yes", reference=[0.5, 1.25], outputs={"m": [0.5, 1.0]}, tolerance={"m": 0.1}
    ),
    GoldenRow(text=("a", "b"), label="no", reference=[1.0, 0.0], outputs={"m": [0.1 + 0.2, 0.0]}, tolerance={"m": 0.1}),
]


def test_rows_and_recorded_errors_go_there_and_back(tmp_path: Path) -> None:
    write_golden(tmp_path / "golden.jsonl", ROWS)
    assert read_golden(tmp_path / "golden.jsonl") == ROWS
    assert ROWS[1].input == ("a", "b")
    np.testing.assert_array_equal(ROWS[0].expected("m"), np.array([[0.5, 1.0]], np.float32))
    record = SimulatedErrors(texts=64, errors={"a": 0.02, "b": 0.03})
    assert read_simulated(tmp_path) == SimulatedErrors()
    write_simulated(tmp_path, record)
    assert read_simulated(tmp_path) == record


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "a"}', "\xff"])
def test_a_wrong_row_is_named_by_its_line_and_keys_of_newer_rows_are_ignored(tmp_path: Path, line: str) -> None:
    path = tmp_path / "golden.jsonl"
    newer = ROWS[0].model_dump_json().replace('{"text"', '{"news": 1, "text"')
    path.write_text(newer + "\n")
    assert read_golden(path) == ROWS[:1]
    path.write_text(newer + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"golden.jsonl:2: not a golden row"):
        read_golden(path)


def test_the_number_of_rows_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "golden.jsonl"
    path.write_text("")
    with pytest.raises(InputError, match="no rows"):
        read_golden(path)
    write_golden(path, ROWS)
    with pytest.raises(InputError, match="2 rows; at least 4 are needed"):
        read_golden(path, least=4)
    monkeypatch.setattr(golden, "_MAX_ROWS", 1)
    with pytest.raises(InputError, match="more than 1 rows"):
        read_golden(path)


SOUND = {"text": "a", "label": "x", "reference": [0.5, 1.0], "outputs": {"m": [0.5, 1.0]}, "tolerance": {"m": 0.1}}


def rows_with(path: Path, **values: Any) -> Path:
    """Eight rows whose answers differ, the third changed."""
    rows = [{**SOUND, "reference": [float(i), 1.0]} for i in range(8)]
    rows[2] |= values
    path.write_text("".join(json.dumps({k: v for k, v in r.items() if v is not None}) + "\n" for r in rows))
    return path


@pytest.mark.parametrize(
    "values",
    [
        {"tolerance": None},
        {"tolerance": {}},
        {"tolerance": {"m": float("inf")}},
        {"tolerance": {"m": float("nan")}},
        {"tolerance": {"m": -1.0}},
        {"tolerance": {"m": 1e9}},
        {"reference": []},
        {"reference": [0.5, float("nan")]},
        {"reference": [[0.5], [1.0, 2.0]]},
        {"reference": [0.5, 1.0, 2.0], "outputs": {"m": [0.5, 1.0, 2.0]}},
        {"outputs": {"m": [0.5]}},
        {"outputs": {"m": [0.5, float("inf")]}},
        {"padded": [1.0]},
        {"places": [0, 1, 2]},
        {"columns": [1]},
        {"text": "\ud800"},
        {"text": ["a", "b", "c"]},
    ],
    ids=str,
)
def test_rows_that_prove_nothing_are_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    assert len(read_golden(rows_with(tmp_path / "sound.jsonl"))) == 8
    with pytest.raises(InputError, match="golden.jsonl"):
        read_golden(rows_with(tmp_path / "golden.jsonl", **values))


@pytest.mark.parametrize(
    "line",
    [
        "junk",
        '{"text": ["a"], "ids": [1]}',
        "[" * 100_000,
        '{"text": "a", "ids": [-1]}',
        '{"text": "a", "ids": []}',
        '{"text": "\\ud800", "ids": [1]}',
        "\xff",
    ],
)
def test_wrong_rows_of_a_tokenizer_are_named(tmp_path: Path, line: str) -> None:
    path, sound = tmp_path / "golden_tokens.jsonl", json.dumps({"text": ["a", "b"], "ids": [1, 2]})
    path.write_text(f"{sound}\n" * 4)
    assert read_golden_tokens(path)[0].input == ("a", "b")
    path.write_bytes(f"{sound}\n".encode() + line.encode("latin-1") + f"\n{sound}\n".encode() * 4)
    with pytest.raises(InputError, match="golden_tokens.jsonl:2: not a golden row of a tokenizer"):
        read_golden_tokens(path)


def test_golden_files_are_bounded_and_never_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "golden_tokens.jsonl"
    for prepare in (lambda _: None, os.mkfifo):
        prepare(path)
        for read in (read_golden_tokens, read_golden):
            with pytest.raises(InputError, match="file not found"):
                read(path)
    path.unlink()
    path.write_text(json.dumps({"text": "a", "ids": [1]}) + "\n")
    with pytest.raises(InputError, match="1 rows; at least 4 are needed"):
        read_golden_tokens(path)
    for size, message in ((5, "more than 4 MiB"), (700, "larger than 64 MiB")):
        os.truncate(path, size << 20)
        with pytest.raises(InputError, match=message):
            read_golden_tokens(path)


@pytest.mark.parametrize("content", ["", "[]", "5", '{"errors": 5}', '{"errors": {"a": NaN}}', "[" * 100_000, "\xff"])
def test_what_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / SIMULATED_FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=SIMULATED_FILE):
        read_simulated(tmp_path)
