"""A finished run of three formats, and a process that runs commands for us and may die doing it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import commander as commands
from support.commands import completed_run
from support.fixtures import finished, task
from support.folders import once
from support.mutations import mutations

FORMATS = ["onnx", "tflite", "coreml"]
COUNTS = {"recipe": (96, 320), "data": (85, 255), "folder": (80, 240), "model": (77, 231), "source": (24, 120)}
"""Mutations by kind: in the usual suite, and beyond it."""


@pytest.fixture(scope="session")
def trio(task: Any, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the tiny task in three formats, all gates passed; read-only by convention."""
    with once(tmp_path_factory, "tiny-run-trio") as (folder, there):
        if not there:
            shutil.copytree(finished, folder)
            completed_run(folder, task.recipe, f"export.formats=[{', '.join(FORMATS)}]", "--overwrite")
    return folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each mutation of the kind whose name the test takes; those beyond the usual number are slow."""
    for kind, (count, more) in COUNTS.items():
        if f"{kind}_mutation" in metafunc.fixturenames:
            usual = mutations(kind, count)
            extra = mutations(kind, more, first=count)
            cases = [pytest.param(m, id=m.name) for m in usual]
            cases += [pytest.param(m, id=m.name, marks=pytest.mark.slow) for m in extra]
            metafunc.parametrize(f"{kind}_mutation", cases)


@pytest.fixture(scope="session")
def commander(task: Any, trio: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Runs commands in a process that may die."""
    folder = tmp_path_factory.mktemp("commander")
    warm = [
        ["data", "check", task.recipe],
        ["verify", "-m", trio / "phone"],
        ["predict", "-m", trio / "phone", "a lamp"],
        ["export", "-m", trio / "student", "-o", folder / "warm", "--format", "onnx", "-q"],
    ]
    made = commands.Commander(folder, warm)
    yield made
    made.close()


@pytest.fixture
def refused(commander: Any, tmp_path: Path) -> Callable[..., Any]:
    """`refused(mutation, *arguments)`: the command says one clear thing, changes nothing, and takes no memory.

    It ends with 2 or 3; with 0 only where the mutation says that this command is not concerned.
    """

    def check(mutation: Any, *arguments: object, codes: tuple[int, ...] = (2, 3)) -> Any:
        before = commands.tree(tmp_path)
        ended = commander.run(*arguments)
        verb = " ".join(str(a) for a in arguments[: 2 if arguments[0] in ("recipes", "data") else 1])
        about = f"{verb}: exit {ended.code}, {ended.grown >> 20} MiB\n{ended.out[-500:]}\n{ended.err[-3000:]}"
        allowed = (*codes, 0) if verb in mutation.maker.harmless else codes
        assert ended.code in allowed, about
        assert "Traceback" not in ended.err + ended.out, about
        if ended.code:
            assert commands.one_message(ended.err), about
        assert ended.grown < commands.GROWTH, about
        after = commands.tree(tmp_path)
        if verb == "export" and ended.code == 3:  # the files of a closed gate stay, to be looked at
            after = {n: v for n, v in after.items() if not n.startswith(".phone.")}
        assert after == before, about
        return ended

    return check
