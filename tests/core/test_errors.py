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


def test_a_problem_reads_where_what_fix() -> None:
    assert str(Problem("a.yaml:7 lr", "too large.", "Lower it.")) == "a.yaml:7 lr: too large. Fix: Lower it."
    assert str(Problem("a.yaml", "missing.")) == "a.yaml: missing."


def test_input_error_lists_every_problem() -> None:
    error = InputError(Problem("a", "one."), Problem("b", "two."))
    assert str(error).splitlines() == ["a: one.", "b: two."]
    assert [p.where for p in error.problems] == ["a", "b"]


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


def test_a_missing_back_end_ends_with_its_command() -> None:
    error = MissingBackendError("the library 'datasets'", "pip install 'pocketbert[train]'")
    assert str(error).endswith(error.command)


def test_nearest_names_the_closest_value_and_all_others() -> None:
    assert suggest_allowed("methd", ["method", "steps"]) == "did you mean 'method'? (allowed: method, steps)"
    assert suggest_allowed("zzz", ["method", "steps"]) == "allowed: method, steps"
