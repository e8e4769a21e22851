"""The fixtures of the tiny task and its finished runs, and commands that must end well or be refused."""

from collections.abc import Callable
from typing import Any

import pytest

from support.fixtures import (
    cli,
    coreml_copy,
    finished,
    finished_coreml,
    finished_tflite,
    pb,
    phone,
    refused,
    run_copy,
    task,
    tflite_copy,
)


@pytest.fixture
def succeed(cli: Callable[..., Any]) -> Callable[..., Any]:
    """`succeed(*arguments)`: a command that must end with 0."""

    def run(*arguments: object) -> Any:
        result = cli(*arguments)
        assert result.exit_code == 0, result.output + result.stderr
        return result

    return run


@pytest.fixture
def refuse(cli: Callable[..., Any]) -> Callable[..., str]:
    """`refuse(*arguments, code=2)`: what a command that must be refused writes to stderr, on one line."""

    def run(*arguments: object, code: int = 2) -> str:
        result = cli(*arguments)
        assert result.exit_code == code, result.output + result.stderr
        return " ".join(result.stderr.split())

    return run
