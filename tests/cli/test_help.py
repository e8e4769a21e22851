"""--help of everything: exits 0, and is quick because it imports nothing heavy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from pocketbert.pipeline.options import OPTION_RECIPE_KEYS

CODE = """
import json, sys
from typer.main import get_command
from typer.testing import CliRunner
from pocketbert.cli.main import app

def paths(group, prefix=()):
    yield prefix
    for name, command in getattr(group, "commands", {}).items():
        yield from paths(command, (*prefix, name))

out = {}
for path in paths(get_command(app)):
    result = CliRunner().invoke(app, [*path, "--help"])
    out[" ".join(path)] = [result.exit_code, result.stdout, result.stderr]
heavy = [m for m in ("torch", "transformers", "onnxruntime", "numpy", "tokenizers", "onnx", "datasets") if m in sys.modules]
print(json.dumps([out, heavy]))
"""
VERBS = {
    "run", "finetune", "distill", "export", "quantize", "verify", "pack", "predict", "benchmark", "sensitivity", "report", "data check", "data augment",
    "recipes ls", "recipes show", "recipes cp", "recipes validate", "families", "devices", "doctor", "demo",
}  # fmt: skip


def test_help_of_every_command_imports_nothing_heavy() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    commands, heavy = json.loads(ran.stdout)
    assert heavy == []
    assert set(commands) >= VERBS | {"", "data", "recipes"}
    for path, (code, out, err) in commands.items():
        assert code == 0, path
        assert "Usage:" in out, path
        assert err == "", path
    for path in VERBS - {"recipes show", "recipes cp", "recipes validate", "recipes ls"}:
        for option in ("--quiet", "--verbose", "--debug"):
            assert option in commands[path][1], path
    for path in ("run", "export", "verify", "predict", "doctor", "recipes ls", "data check"):
        assert "--json" in commands[path][1], path
    for key in OPTION_RECIPE_KEYS.values():
        assert f"(recipe: {key})" in " ".join(commands["export"][1].split()), key


def listed(group: str) -> dict[str, list[tuple[str, str]]]:
    """The commands that the help of a group lists, with their lines, by title of their section."""
    ran = subprocess.run(
        [sys.executable, "-m", "pocketbert.cli.main", *group.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    sections: dict[str, list[tuple[str, str]]] = {}
    for block in ran.stdout.split("\n\n"):
        title, *lines = block.splitlines()
        if title.endswith(":") and title != "Options:":
            sections[title[:-1]] = [(line.split()[0], line) for line in lines]
    return sections


def test_commands_are_listed_in_groups() -> None:
    assert {title: [name for name, _ in rows] for title, rows in listed("").items()} == {
        "The whole chain": ["run", "finetune", "distill", "demo"],
        "Single steps": ["export", "quantize", "verify", "pack"],
        "Results": ["predict", "benchmark", "report", "sensitivity"],
        "Helpers": ["devices", "families", "doctor", "recipes", "data"],
    }


@pytest.mark.parametrize("group", ["", "data", "recipes"])
def test_each_command_is_one_whole_sentence_of_at_most_80_columns(group: str) -> None:
    for rows in listed(group).values():
        for name, line in rows:
            assert line.startswith(f"  {name} ")
            assert len(line) <= 80, line
            assert re.search(r" [A-Z][a-z]+,? .*\w\.$", line), f"cut off, or no sentence: {line}"
            assert "..." not in line


def test_entry_point_without_arguments_shows_help() -> None:
    ran = subprocess.run([sys.executable, "-m", "pocketbert.cli.main"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "Exit codes: 0 done" in ran.stdout + ran.stderr
    version = subprocess.run(
        [sys.executable, "-m", "pocketbert.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.strip()
