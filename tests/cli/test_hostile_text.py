"""Labels and texts of strangers: no line or field is forged, no terminal obeys, and no home folder is needed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketbert.cli.output import json_text, print_answer, print_table
from pocketbert.core.predict.answers import Excerpt, Filled, FoundSpan, Guess, Labelling, Prediction, Spans

Cli = Callable[..., Any]
FORGED = "a\nalarm\t0.99"
ANSWERS = [
    Prediction(FORGED, 0.5, {FORGED: 0.5, "b": 0.5}, False),
    Labelling((FORGED,), {FORGED: 0.9}, False),
    Spans((FoundSpan(0, 3, FORGED, FORGED, 0.5),), False),
    Excerpt(FORGED, 0, 3, 0.5),
    Filled(((Guess(FORGED, FORGED, 0.5),),), False),
]


def _texts(value: Any) -> list[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, dict):
        return [*value, *(t for v in value.values() for t in _texts(v))]
    return [t for v in value for t in _texts(v)] if isinstance(value, list) else [value]


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: type(a).__name__)
def test_no_answer_forges_a_line_or_a_field(answer: Any) -> None:
    line = answer.line(2)
    assert "\n" not in line
    assert "\\nalarm\\t0.99" in line
    assert FORGED in _texts(json.loads(json_text(answer.fields(2))))  # --json has the text itself


def test_a_terminal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    print_answer("\x1b[2J\t0.99\ta \x9b31m text \u202e")
    assert screen.getvalue() == "\\x1b[2J\t0.99\ta \\x9b31m text \\u202e\n"
    print_table(["[red]", "b"], [["\x1b[2J", "[/nothing]"]])
    assert "\\x1b[2J" in screen.getvalue()
    assert "[/nothing]" in screen.getvalue()


def test_a_table_on_a_terminal_has_words_on_the_left_and_figures_on_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    print_table(
        ["name", "what it is", "p50 ms"], [["a", "short", "1.25"], ["b", "a longer text", "–"], ["c", "x", "12.5"]]
    )
    lines = [line.split("│") for line in screen.getvalue().splitlines() if "short" in line or " x " in line]
    assert [cells[2].index(w) for cells, w in zip(lines, ("short", "x"), strict=True)] == [1, 1]
    assert all(cells[3].endswith(" ") and cells[3][-2] != " " for cells in lines)


def test_a_pipe_gets_the_text_itself(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer("\x1b[2J\t0.99")
    assert capsys.readouterr().out == "\x1b[2J\t0.99\n"


def test_json_keeps_every_character() -> None:
    for text in (FORGED, "\x1b[2J", "\u202e", "é"):
        assert json.loads(json_text({"label": text})) == {"label": text}
    assert json_text("\ud800") == '"\\ud800"'
    assert json_text("é") == '"é"'


def test_texts_with_breaks_stay_on_one_line(cli: Cli, finished: Path) -> None:
    result = cli("predict", "-m", finished / "phone", FORGED)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    assert result.stdout.endswith("\ta\\nalarm\\t0.99\n")


@pytest.mark.parametrize("name", ["name" + ".a" * 5000, "data" + ".0" * 900, "x" + ".y" * 21, "distill." + "9" * 5000])
def test_overrides_that_are_too_deep(cli: Cli, task: Any, name: str) -> None:
    result = cli("recipes", "validate", task.recipe, f"{name}=1")
    assert result.exit_code == 2, result.output
    assert "nested more than 20 deep" in result.stderr or "the recipe has no entry" in result.stderr


def test_an_override_below_a_number(cli: Cli, task: Any) -> None:
    result = cli("recipes", "validate", task.recipe, "distill.0=1.5", "distill.0.steps=3")
    assert result.exit_code == 2, result.output
    assert "'distill.0' is 1.5, which has no keys." in result.stderr


def test_a_number_in_quotes(cli: Cli, task: Any) -> None:
    result = cli("recipes", "validate", task.recipe, "schema='1'")
    assert result.exit_code == 2
    assert "'1' is text, not a number. Fix: Write it without quotes." in result.stderr


HOMELESS = """
import os, pwd, sys
def unknown(*_):
    raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
from pocketbert.cli.main import main
main()
"""


@pytest.mark.parametrize("command", ["predict", "doctor", "export"])
def test_commands_without_a_home_folder(finished: Path, tmp_path: Path, command: str) -> None:
    arguments = {
        "predict": ["-m", str(finished / "phone"), "the song"],
        "doctor": [],
        "export": ["-m", str(finished / "student"), "-o", str(tmp_path / "out"), "--format", "onnx", "-q"],
    }[command]
    own = ("HOME", "POCKETBERT_CACHE", "XDG_CACHE_HOME", "HF_HOME", "USER", "LOGNAME")
    environment = {k: v for k, v in os.environ.items() if k not in own}
    words = [sys.executable, "-c", HOMELESS, command, *arguments]
    run = subprocess.run(words, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert {p.name for p in tmp_path.iterdir()} <= {"out", "pocketbert-cache"}
