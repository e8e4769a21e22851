"""Errors: where, what, the fix, and the exit code."""

from __future__ import annotations

from pocketbert.core.errors import (
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


def test_exit_codes() -> None:
    wrong, missing = InputError(Problem("a", "b")), MissingBackendError("onnx", "pip install onnx")
    errors = (PocketBertError("x"), MachineError("x"), wrong, GateError(["x"]), missing)
    assert [error.exit_code for error in errors] == [1, 1, 2, 3, 4]


def test_nearest_names_the_closest_value_and_all_others() -> None:
    assert suggest_allowed("methd", ["method", "steps"]) == "did you mean 'method'? (allowed: method, steps)"
    assert suggest_allowed("zzz", ["method", "steps"]) == "allowed: method, steps"
    hint = suggest_allowed("nome 7", [f"name {i}" for i in range(65_000)])
    assert len(hint) < 1000
    assert "and 64,940 more" in hint
    assert len(suggest_allowed("x" * 100_000, ["y" * 100_000] * 3)) < 1000
