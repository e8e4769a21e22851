"""A finished run of three formats, and a process that runs commands for us and may die doing it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _beside(name: str, path: str) -> ModuleType:
    """A module of another test folder, which no import statement reaches."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there, and the makers of mutations import each other
    spec.loader.exec_module(module)
    return module


_tiny = _beside("pocketbert_tiny_run", "pipeline/conftest.py")

_commander = _beside("pocketbert_commander", "faults/commander.py")
_mutations = _beside("pocketbert_mutations", "faults/mutations.py")
for _kind in ("recipes", "data", "folders", "models"):
    _beside(f"pocketbert_broken_{_kind}", f"faults/broken_{_kind}.py")

kit, task, finished = _tiny.kit, _tiny.task, _tiny.finished

FORMATS = ["onnx", "tflite", "coreml"]
COUNTS = {
    "recipe": (96, 320),
    "data": (85, 255),
    "folder": (80, 240),
    "model": (77, 231),
    "source": (24, 120),
}
"""Mutations by kind: in the usual suite, and beyond it."""


@pytest.fixture(scope="session")
def victims() -> Any:
    """The module with the run that is killed and started again."""
    return _beside("pocketbert_kill", "pipeline/test_kill.py")


@pytest.fixture(scope="session")
def trio(task: Any, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the tiny task in three formats, all gates passed; read-only by convention."""
    with _tiny.once(tmp_path_factory, "tiny-run-trio") as (folder, there):
        if not there:
            shutil.copytree(finished, folder)
            _tiny.completed_run(folder, task.recipe, f"export.formats=[{', '.join(FORMATS)}]", "--overwrite")
    return folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each mutation of the kind whose name the test takes; those beyond the usual number are slow."""
    for kind, (count, more) in COUNTS.items():
        if f"{kind}_mutation" in metafunc.fixturenames:
            usual = _mutations.mutations(kind, count)
            extra = _mutations.mutations(kind, more, first=count)
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
    made = _commander.Commander(folder, warm)
    yield made
    made.close()


@pytest.fixture
def refused(commander: Any, tmp_path: Path) -> Callable[..., Any]:
    """`refused(mutation, *arguments)`: the command says one clear thing, changes nothing, and takes no memory.

    It ends with 2 or 3; with 0 only where the mutation says that this command is not concerned.
    """

    def check(mutation: Any, *arguments: object, codes: tuple[int, ...] = (2, 3)) -> Any:
        before = _commander.tree(tmp_path)
        ended = commander.run(*arguments)
        verb = " ".join(str(a) for a in arguments[: 2 if arguments[0] in ("recipes", "data") else 1])
        about = f"{verb}: exit {ended.code}, {ended.grown >> 20} MiB\n{ended.out[-500:]}\n{ended.err[-3000:]}"
        allowed = (*codes, 0) if verb in mutation.maker.harmless else codes
        assert ended.code in allowed, about
        assert "Traceback" not in ended.err + ended.out, about
        if ended.code:
            assert _commander.one_message(ended.err), about
        assert ended.grown < _commander.GROWTH, about
        after = _commander.tree(tmp_path)
        if verb == "export" and ended.code == 3:  # the files of a closed gate stay, to be looked at
            after = {n: v for n, v in after.items() if not n.startswith(".phone.run")}
        assert after == before, about
        return ended

    return check
