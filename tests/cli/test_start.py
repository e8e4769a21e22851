"""What a user types before knowing any command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pocketbert


def ran(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **more})


@pytest.mark.parametrize("words", [("-h",), ("export", "-h"), ("recipes", "ls", "-h")])
def test_help_has_a_short_form(words: tuple[str, ...]) -> None:
    done = ran(sys.executable, "-m", "pocketbert", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: pocketbert")


def test_the_package_is_a_command_and_knows_its_version() -> None:
    done = ran(sys.executable, "-m", "pocketbert", "-V")
    assert done.stdout.strip() == pocketbert.__version__
    assert pocketbert.__version__.count(".") == 2


def test_completion_offers_public_names_only() -> None:
    names = {n for n in dir(pocketbert) if not n.startswith("__")}
    assert names == set(pocketbert.__all__)
    assert "__version__" in dir(pocketbert)


def test_the_shell_completes_commands() -> None:
    words = {"COMP_WORDS": "pocketbert ex", "COMP_CWORD": "1", "_POCKETBERT_COMPLETE": "complete_bash"}
    done = ran(str(Path(sys.executable).with_name("pocketbert")), **words)
    assert done.stdout.split() == ["export"]
