"""A system that PocketBERT does not run on: one line that names the fix, and no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
sys.platform = "win32"
sys.modules.update(dict.fromkeys(("resource", "fcntl", "pwd"), None))  # importing them raises ImportError
sys.argv = ["pocketbert", *{arguments!r}]
from pocketbert.cli.main import main
main()
"""


@pytest.mark.parametrize("arguments", [["--help"], ["doctor"], ["run", "sst2", "-o", "out"]])
def test_windows_is_refused_in_one_line(arguments: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-c", CODE.format(arguments=arguments)], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert "runs on Linux and macOS, not on Windows. Fix: install it in WSL" in ran.stderr


def test_the_verbs_are_refused_on_windows_and_the_package_is_importable() -> None:
    code = (
        CODE.split("sys.argv")[0]
        + "import pocketbert, pocketbert.distill\nfrom pocketbert import InputError\npocketbert.api"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("ImportError: PocketBERT runs on Linux and macOS, not on Windows. Fix: install it in WSL")
