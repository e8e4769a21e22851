"""The error of a file as this machine computes it, and records that are no errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.compare import simulated
from pocketbert.core.compare.simulated import FILE_NAME, Simulated, read_simulated, write_simulated
from pocketbert.core.errors import InputError
from pocketbert.core.host.hardware import Machine

RECORD = Simulated(texts=64, errors={"a": 0.02, "b": 0.03, "c": 0.04}, saturating={"a": 0.1, "c": 0.01})


def machine(arch: str, *isa: str) -> Machine:
    return Machine(cpu="", arch=arch, isa=list(isa), cores=1, system="", python="")


@pytest.mark.parametrize(
    ("here", "error"),
    [
        (machine("x86_64", "avx2", "avx512_vnni"), 0.02),
        (machine("x86_64", "avx2", "avx_vnni"), 0.02),
        (machine("aarch64", "asimd"), 0.02),
        (machine("x86_64", "avx2"), 0.1),
        (machine("AMD64"), 0.1),  # nothing is seen: it may saturate
    ],
)
def test_the_error_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch, here: Machine, error: float) -> None:
    monkeypatch.setattr(simulated, "machine", lambda: here)
    assert RECORD.on_this_machine("a") == error
    assert RECORD.on_this_machine("b") == 0.03
    assert RECORD.on_this_machine("c") == 0.04, "the larger of both"
    assert RECORD.on_this_machine("d") is None


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_simulated(tmp_path) == Simulated()
    write_simulated(tmp_path, RECORD)
    assert read_simulated(tmp_path) == RECORD


@pytest.mark.parametrize(
    "content", ["", "[]", "5", '{"errors": 5}', '{"saturating": {"a": NaN}}', "[" * 100_000, "\xff"]
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=FILE_NAME):
        read_simulated(tmp_path)
