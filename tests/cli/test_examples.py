"""Examples below the help of each command: every command has some, and every one is a command line that parses."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from pocketbert.cli.commands import EXAMPLES
from pocketbert.cli.main import app

ROOT: Any = typer.main.get_command(app)


def commands(group: Any = ROOT, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by the words that a user types."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


def test_every_command_has_examples_of_itself() -> None:
    assert {name for name, _ in commands()} == set(EXAMPLES)
    for name, command in commands():
        for line in EXAMPLES[name]:
            assert line.split()[: 1 + len(name.split())] == ["pocketbert", *name.split()]
            assert line in command.epilog


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_parses(line: str) -> None:
    words = shlex.split(line)[1:]
    command = ROOT
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)  # raises for an unknown option or a missing value
