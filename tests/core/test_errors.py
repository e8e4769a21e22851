"""Errors: where, what, the fix, and the exit code."""

from __future__ import annotations

import pytest

from pocketbert.core.errors import (
    ExitCode,
    GateError,
    InputError,
    MachineError,
    MissingBackendError,
    PocketBertError,
    Problem,
    suggest_allowed,
)


def test_an_error_reads_where_what_fix_for_every_problem() -> None:
    error = InputError(Problem("a.yaml:7 lr", "too large.", "Lower it."), Problem("a.yaml", "missing."))
    assert str(error).splitlines() == ["a.yaml:7 lr: too large. Fix: Lower it.", "a.yaml: missing."]
    assert [p.where for p in error.problems] == ["a.yaml:7 lr", "a.yaml"]
    missing = MissingBackendError("the library 'datasets'", "pip install 'pocketbert[train]'")
    assert str(missing).endswith(missing.command)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PocketBertError("x"), 1),
        (MachineError("x"), 1),
        (InputError(Problem("a", "b")), 2),
        (GateError(["x"]), 3),
        (MissingBackendError("onnx", "pip install onnx"), 4),
    ],
)
def test_exit_codes(error: PocketBertError, code: int) -> None:
    assert error.exit_code == code
    assert ExitCode(code) is error.exit_code


def test_nearest_names_the_closest_value_and_all_others() -> None:
    assert suggest_allowed("methd", ["method", "steps"]) == "did you mean 'method'? (allowed: method, steps)"
    assert suggest_allowed("zzz", ["method", "steps"]) == "allowed: method, steps"
    hint = suggest_allowed("nome 7", [f"name {i}" for i in range(65_000)])
    assert len(hint) < 1000
    assert "and 64,940 more" in hint
    assert len(suggest_allowed("x" * 100_000, ["y" * 100_000] * 3)) < 1000
