"""Real clients, each in an environment of its own below `.venv-clients/`, kept between runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-clients"
MINUTES = 60


def uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        pytest.fail(
            f"uv is needed to build client environments: neither {beside} nor uv on the PATH is there."
        )
    return found


def run(command: Sequence[str], what: str, timeout: float = 20 * MINUTES) -> str:
    """Run a program without this session's import path; a failure is a failed test that shows what it said."""
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=own, check=False)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{what}: not finished after {timeout:.0f} s.")
    if done.returncode:
        pytest.fail(f"{what} (exit {done.returncode}):\n{done.stderr[-3000:]}")
    return done.stdout


def build(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of an environment with exactly these packages; built once, rebuilt when the list changes."""
    folder, wanted = HOME / name, json.dumps([sys.version_info[:2], *packages])
    python, note = folder / "bin" / "python", folder / "packages.json"
    HOME.mkdir(exist_ok=True)
    with FileLock(HOME / f".{name}.lock"):
        if not (python.exists() and note.is_file() and note.read_text() == wanted):
            shutil.rmtree(folder, ignore_errors=True)
            where = f"{name}: could not install {', '.join(packages)}; these tests need the package registry"
            run([uv(), "venv", "-q", "--python", sys.executable, str(folder)], where)
            run([uv(), "pip", "install", "-q", "--python", str(python), *packages], where)
            note.write_text(wanted)  # last: an environment without it is not finished
    return python


@pytest.fixture(scope="session")
def environment() -> Callable[..., Path]:
    """`environment(name, packages)`: path of a Python that has these packages, and nothing of ours."""
    return build


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`ask(python, script, question)`: what a script of this folder answers; both as JSON files."""

    def call(python: Path, script: str, question: Any) -> Any:
        folder = tmp_path_factory.mktemp("client")
        (folder / "question.json").write_text(json.dumps(question))
        files = [str(folder / "question.json"), str(folder / "answer.json")]
        run([str(python), str(Path(__file__).parent / script), *files], script)
        return json.loads((folder / "answer.json").read_text())

    return call
