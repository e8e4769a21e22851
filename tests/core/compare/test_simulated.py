"""Errors of files that were recorded, and records that are no errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.compare.golden import SIMULATED_FILE as FILE_NAME
from pocketbert.core.compare.golden import SimulatedErrors, read_simulated, write_simulated
from pocketbert.core.errors import InputError

RECORD = SimulatedErrors(texts=64, errors={"a": 0.02, "b": 0.03})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_simulated(tmp_path) == SimulatedErrors()
    write_simulated(tmp_path, RECORD)
    assert read_simulated(tmp_path) == RECORD


@pytest.mark.parametrize("content", ["", "[]", "5", '{"errors": 5}', '{"errors": {"a": NaN}}', "[" * 100_000, "\xff"])
def test_what_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=FILE_NAME):
        read_simulated(tmp_path)
