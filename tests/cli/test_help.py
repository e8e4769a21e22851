"""What a user types before knowing a command: help, examples, version, completion, and a system that is not supported."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import pocketbert
from pocketbert.cli.commands import EXAMPLES
from pocketbert.cli.main import app, main
from pocketbert.pipeline.options import OPTION_RECIPE_KEYS

Cli = Callable[..., Any]
ROOT: Any = typer.main.get_command(app)
EVERY_HELP = """
import json, sys
from typer.testing import CliRunner
from pocketbert.cli.main import app
helped = {}
for name in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, [*name.split(), "--help"])
    helped[name] = [result.exit_code, result.stdout, result.stderr]
heavy = {"torch", "transformers", "onnxruntime", "numpy", "tokenizers", "onnx", "datasets"} & {*sys.modules}
print(json.dumps([helped, sorted(heavy)]))
"""
ON_WINDOWS = """
import sys
sys.platform = "win32"
sys.modules.update(dict.fromkeys(("resource", "fcntl", "pwd"), None))  # importing them raises ImportError
sys.argv = ["pocketbert", "run", "sst2", "-o", "out"]
"""


def commands(group: Any = ROOT, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by the words that a user types."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


def run(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, env={**os.environ, **more}
    )


def test_help_of_every_command_imports_nothing_heavy() -> None:
    names = [name for name, _ in commands()]
    done = run(sys.executable, "-c", EVERY_HELP, json.dumps(["", "data", "recipes", *names]))
    helped, heavy = json.loads(done.stdout)
    assert heavy == []
    for name, (code, out, err) in helped.items():
        assert (code, "Usage:" in out, err) == (0, True, ""), name
    for name in names:
        if not name.startswith("recipes"):
            assert all(option in helped[name][1] for option in ("--quiet", "--verbose", "--debug")), name
        if name not in ("recipes show", "recipes cp", "recipes validate", "recipes schema"):
            assert "--json" in helped[name][1], name
    for key in OPTION_RECIPE_KEYS.values():
        assert f"(recipe: {key})" in " ".join(helped["export"][1].split()), key


def test_every_command_has_examples_that_parse() -> None:
    found = dict(commands())
    assert set(found) == set(EXAMPLES)
    for name, command in found.items():
        for line in EXAMPLES[name]:
            words = shlex.split(line)
            count = 1 + len(name.split())
            assert words[:count] == ["pocketbert", *name.split()]
            assert line in command.epilog
            command.make_context(command.name, words[count:])  # raises for an unknown option or a missing value


def test_help_has_a_short_form_and_is_shown_without_arguments(cli: Cli) -> None:
    for words in ("-h", "export -h", "recipes ls -h"):
        helped = cli(*words.split())
        assert (helped.exit_code, helped.stdout[:6]) == (0, "Usage:")
    nothing = cli()
    assert nothing.exit_code == 2
    assert "Exit codes: 0 done" in nothing.output


@pytest.mark.parametrize("words", ["data check --help", "-h", "plna", "diff --jsno"])
def test_a_command_line_builds_one_command_and_says_what_all_of_them_say(
    words: str, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pocketbert", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    whole, alone = cli(*words.split()), capsys.readouterr()
    assert ended.value.code == whole.exit_code
    # by words: the runner of tests prints two columns more
    assert (alone.out.split(), alone.err.split()) == (whole.stdout.split(), whole.stderr.split())


def test_the_package_is_a_command_and_knows_its_version() -> None:
    done = run(sys.executable, "-m", "pocketbert", "-V")
    assert done.stdout.strip() == pocketbert.__version__
    assert pocketbert.__version__.count(".") == 2


def test_the_shell_completes_commands_and_python_completes_public_names() -> None:
    words = {"COMP_WORDS": "pocketbert ex", "COMP_CWORD": "1", "_POCKETBERT_COMPLETE": "complete_bash"}
    assert run(Path(sys.executable).with_name("pocketbert"), **words).stdout.split() == ["export"]
    assert {n for n in dir(pocketbert) if not n.startswith("__")} == set(pocketbert.__all__)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("from pocketbert.cli.main import main\nmain()", ""),
        ("import pocketbert, pocketbert.distill\nfrom pocketbert import InputError\npocketbert.api", "ImportError: "),
    ],
    ids=["command", "import"],
)
def test_windows_is_refused_in_one_line(code: str, kind: str) -> None:
    done = run(sys.executable, "-c", ON_WINDOWS + code)
    assert (done.returncode, done.stdout) == (1, "")
    *before, last = done.stderr.splitlines()
    assert last.startswith(kind)
    assert "PocketBERT runs on Linux and macOS, not on Windows. Fix: install it in WSL" in last
    assert kind or not before
