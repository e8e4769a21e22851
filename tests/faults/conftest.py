"""A finished run of three formats, and a check that a command refuses a damaged input."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.commander import GROWTH, one_message, run_command, tree
from support.commands import completed_run
from support.fixtures import finished, finished_coreml, finished_tflite, task
from support.folders import once
from support.mutations import Mutation, mutations
from support.tiny_task import Task

COUNTS = {"recipe": (16, 400), "data": (20, 320), "folder": (20, 300), "model": (22, 286), "source": (12, 132)}
"""Mutations by kind: in the usual suite (each maker once, of models and sources twice), and beyond it."""


@pytest.fixture(scope="session")
def trio(task: Task, finished_tflite: Path, finished_coreml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the tiny task in three formats, all gates passed; read-only by convention.

    Its files are those of the runs in one format each: only what joins them is made.
    """
    with once(tmp_path_factory, "tiny-run-trio") as (folder, there):
        if not there:
            shutil.copytree(finished_tflite, folder)
            for step in ("coreml", "coreml-w8"):
                shutil.copytree(finished_coreml / step, folder / step)
                shutil.copy(finished_coreml / ".steps" / f"{step}.json", folder / ".steps")
            completed_run(folder, task.recipe, "export.formats=[onnx, tflite, coreml]", "--overwrite")
    return folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each mutation of the kind whose name the test takes; those beyond the usual number are slow."""
    for kind, (count, more) in COUNTS.items():
        if f"{kind}_mutation" in metafunc.fixturenames:
            cases = [pytest.param(m, id=m.name) for m in mutations(kind, count)]
            cases += [pytest.param(m, id=m.name, marks=pytest.mark.slow) for m in mutations(kind, more, first=count)]
            metafunc.parametrize(f"{kind}_mutation", cases)


@pytest.fixture(scope="session")
def outputs(task: Any, trio: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what commands print and remember; the libraries that they need are loaded."""
    folder = tmp_path_factory.mktemp("outputs")
    for arguments in (
        ["data", "check", task.recipe],
        ["verify", "-m", trio / "phone"],
        ["export", "-m", trio / "student", "-o", folder / "warm", "--format", "onnx", "-q"],
    ):
        ended = run_command(folder, *arguments, bounded=False)
        assert ended.code == 0, ended
    return folder


@pytest.fixture
def refused(outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`refused(mutation, *arguments)`: the command says one clear thing, changes nothing, and takes no memory.

    It ends with 2 or 3; with 0 only where the mutation says that this command is not concerned.
    """
    monkeypatch.setenv("POCKETBERT_CACHE", str(outputs / "cache"))
    seen: list[dict[str, str]] = []

    def check(mutation: Mutation, *arguments: object, codes: tuple[int, ...] = (2, 3)) -> None:
        before = seen.pop() if seen else tree(tmp_path)
        ended = run_command(outputs, *arguments)
        verb = " ".join(str(a) for a in arguments[: 2 if arguments[0] in ("recipes", "data") else 1])
        about = f"{verb}: exit {ended.code}, {ended.grown >> 20} MiB\n{ended.out[-500:]}\n{ended.err[-3000:]}"
        assert ended.code in ((*codes, 0) if verb in mutation.maker.harmless else codes), about
        assert "Traceback" not in ended.err + ended.out, about
        assert ended.code == 0 or one_message(ended.err), about
        assert ended.grown < GROWTH, about
        after = tree(tmp_path)
        if verb == "export" and ended.code == 3:  # the files of a closed gate stay, to be looked at
            after = {n: v for n, v in after.items() if not n.startswith(".phone.")}
        assert after == before, about
        seen.append(after)

    return check
