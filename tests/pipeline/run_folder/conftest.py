"""A run of the real steps of a recipe whose makers write a line each, so that hundreds of edits can be tried in seconds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import GateError
from pocketbert.core.recipe.file import load_recipe
from pocketbert.pipeline.run import Run
from pocketbert.pipeline.run_folder import Permission, Step, StepPaths
from support.tiny_texts import task_rows, write_lines

TRAINING = ("teacher", "distill.0", "distill.1")
FOLDERS = ("corpus", "teacher", "augmented", "distill", "student", "onnx", "golden", "phone")


class KilledError(BaseException):
    """Ends a maker as a kill would: nothing after it runs."""


class Desk:
    """A run folder and a recipe to edit.

    Attributes:
        folder: The run folder.
        recipe: The recipe file.
        versions: What is said to be installed.
        killed: Step in which the process dies.
        failing: Steps whose gates fail.
        made: Steps that were made by the last run; resumed ones with the number they went on from.
    """

    def __init__(self, folder: Path, recipe: Path, versions: dict[str, str]) -> None:
        self.folder, self.recipe, self.versions = folder, recipe, versions
        self.killed, self.failing = "", set[str]()
        self.made: list[str] = []

    def run(self, *edits: str, overwrite: bool = False, resume_anyway: bool = False) -> list[str]:
        """Run the edited recipe; the steps that were made."""
        self.made = []
        self._run(edits, overwrite, resume_anyway).execute()
        return self.made

    def kill_in(self, step: str, *edits: str, **allowed: bool) -> None:
        """Run, and die in a step."""
        self.killed = step
        with pytest.raises(KilledError):
            self.run(*edits, **allowed)
        self.killed = ""

    def plan(self, *edits: str, overwrite: bool = False, resume_anyway: bool = False) -> dict[str, str]:
        """What a dry run says of each step: its state, and why it is made again."""
        rows = self._run(edits, overwrite, resume_anyway).plan()
        return {name: f"{state}: {why}" if why else state for name, _, state, why in rows}

    def result(self, name: str) -> str:
        """What a step has written."""
        path = self.folder / name
        return (path / "result.txt" if path.is_dir() else path).read_text()

    def results(self) -> dict[str, str]:
        """All results, by file."""
        inside = [p for p in self.folder.rglob("*") if p.is_file() and p.relative_to(self.folder).parts[0][0] != "."]
        return {p.relative_to(self.folder).as_posix(): p.read_text() for p in inside if p.name != "run.log"}

    def mark(self, step: str) -> Any:
        """What is remembered of a step."""
        return json.loads((self.folder / ".steps" / f"{step}.json").read_text())

    def _run(self, edits: Sequence[str], overwrite: bool, resume_anyway: bool) -> Run:
        desk, recipe = self, load_recipe(self.recipe, edits)

        class Faked(Run):
            def steps(self) -> list[Step]:
                return [replace(step, make=partial(desk._make, step.name)) for step in super().steps()]

        return Faked(recipe, self.folder, Permission(overwrite, resume_anyway))

    def _make(self, name: str, at: StepPaths) -> Sequence[str]:
        checkpoint, begun = at.work / "latest", 0
        if checkpoint.is_file():
            begun = int(checkpoint.read_text().removeprefix("step-"))
        if name == self.killed:
            if name in TRAINING:
                checkpoint.write_text(f"step-{begun + 50:07d}")
            raise KilledError(name)
        self.made.append(f"{name} from {begun}" if begun else name)
        (at.output / "result.txt" if at.output.is_dir() else at.output).write_text(f"{name} {at.work.name}\n")
        return [f"{name}: gate 'finite' failed"] if name in self.failing else []


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions of all libraries, to be changed."""
    installed = dict[str, str]()
    monkeypatch.setattr(
        "pocketbert.pipeline.run_folder.step.installed_versions",
        lambda names: {n: installed.get(n, "1.0") for n in names},
    )
    return installed


@pytest.fixture(scope="session")
def two_stages(task: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe of a general and a task stage, its data and its teacher; read-only by convention."""
    folder = tmp_path_factory.mktemp("two-stages")
    shutil.copytree(task.folder, folder, dirs_exist_ok=True)
    write_lines(folder / "text.jsonl", [{"text": row["text"]} for row in task_rows(20, 9)])
    here = {"path": str(folder / "train.jsonl")}, {"path": str(folder / "eval.jsonl")}
    task.variant(
        folder / "recipe.yaml",
        data={
            "train": here[0],
            "eval": here[1],
            "corpus": {"sources": [{"path": str(folder / "text.jsonl")}], "length": 32},
        },
        teacher={"model": str(folder / "teacher")},
        distill=[{"method": "minilm", "steps": 100, "batch": 8}, {"method": "task", "steps": 100, "batch": 8}],
        benchmark={"threads": [1]},
    )
    return folder


@pytest.fixture
def desk(two_stages: Path, versions: dict[str, str], tmp_path: Path) -> Iterator[Desk]:
    """A run that has not begun."""
    here = Path(shutil.copytree(two_stages, tmp_path / "here"))
    recipe = here / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(two_stages), str(here)))
    yield Desk(tmp_path / "run", recipe, versions)


@pytest.fixture
def finished_desk(desk: Desk) -> Desk:
    """A run whose steps are all finished."""
    desk.run()
    return desk


__all__ = ["Desk", "GateError", "KilledError"]
