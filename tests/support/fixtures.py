"""Fixtures that several test folders take: the tiny task, its finished runs, and the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.commander import unwrapped
from support.commands import command, completed_run, one_core
from support.folders import once
from support.tiny_task import Task, write_task


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """The tiny task; read-only by convention."""
    with once(tmp_path_factory, "tiny-task") as (folder, there):
        if not there:
            write_task(folder)
    return Task(folder)


def finished_run(factory: pytest.TempPathFactory, task: Task, name: str, before: Path | None, *changes: str) -> Path:
    """A run folder, made once for all processes: of the tiny task, or an earlier one that is changed."""
    with once(factory, name) as (folder, there):
        if not there:
            if before is not None:
                shutil.copytree(before, folder)
            completed_run(folder, task.recipe, *changes, *(["--overwrite"] if before else []))
    return folder


@pytest.fixture(scope="session")
def finished(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the tiny task, all gates passed; read-only by convention. Beside it what the command printed."""
    return finished_run(tmp_path_factory, task, "tiny-run", None)


@pytest.fixture(scope="session")
def finished_tflite(task: Task, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with TFLite first, for MediaPipe and for an old runtime too; its ONNX files are those of `finished`."""
    schemes = "quantize={files: [int8, {scheme: int8, runtime: tflite216}]}"
    return finished_run(tmp_path_factory, task, "tiny-run-tflite", finished, "export.formats=[tflite, onnx]", schemes)


@pytest.fixture(scope="session")
def finished_coreml(task: Task, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with Core ML first; its ONNX files are those of `finished`."""
    return finished_run(tmp_path_factory, task, "tiny-run-coreml", finished, "export.formats=[coreml, onnx]")


@pytest.fixture
def tflite_copy(finished_tflite: Path, tmp_path: Path) -> Path:
    """A copy of that run folder, to be broken; the same below."""
    return Path(shutil.copytree(finished_tflite, tmp_path / "run"))


@pytest.fixture
def coreml_copy(finished_coreml: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_coreml, tmp_path / "run"))


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def phone(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished / "phone", tmp_path / "phone"))


@pytest.fixture
def cli() -> Callable[..., Any]:
    """`cli(*args, input=None)`: a command in this process; exit_code, stdout and stderr apart, each problem on one line."""
    from pocketbert.cli.main import app

    def invoke(*args: object, input: str | None = None) -> Any:
        result = CliRunner().invoke(app, [str(a) for a in args], input=input)
        result.stderr_bytes = unwrapped(result.stderr).encode(errors="surrogateescape")
        return result

    return invoke


@pytest.fixture
def refused(cli: Callable[..., Any], tmp_path: Path) -> Callable[..., list[str]]:
    """`refused(run, *expected)`: `verify` names the expected gates and exits 3; `pack` then refuses and leaves nothing.

    Returns all gates that closed, as ``file gate``.
    """

    def check(run: Path, *expected: str) -> list[str]:
        target = tmp_path / "out" / "packed"
        target.parent.mkdir()
        verified = cli("verify", "-m", run, "--json")
        assert verified.exit_code == 3, verified.output
        result = json.loads(verified.stdout.splitlines()[-1])
        failed = [f"{g['file']} {g['name']}" for g in result["gates"] if not g["passed"]]
        assert set(expected) <= set(failed), failed
        for file, gate in (name.rsplit(" ", 1) for name in expected):
            assert f"{file}: gate '{gate}' failed:" in verified.stderr
        assert result["status"] == "failed"
        assert json.loads((run / ".steps" / "verify.json").read_text())["status"] == "failed"
        packed = cli("pack", "-m", run, "-o", target)
        assert packed.exit_code == 3, packed.output
        assert "nothing was packed" in packed.stderr.lower()
        assert not list(target.parent.iterdir())
        return failed

    return check


@pytest.fixture
def pb() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`pb(*args, pinned=False)`: a command in a process of its own, bound to one core if asked."""

    def call(*args: object, pinned: bool = False) -> subprocess.CompletedProcess[str]:
        argv = one_core(command(*args)) if pinned else command(*args)
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)

    return call
