"""Verbs that follow a recipe: the whole chain, parts of it, and what it would do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.pipeline.options import DataFiles, Plan, PlannedStep

if TYPE_CHECKING:
    from pocketbert.core.recipe.recipe import Recipe
    from pocketbert.pipeline.learn.starting import AnyRecipe, StartingRecipe
    from pocketbert.pipeline.run import Run
    from pocketbert.pipeline.run_folder.result import RunResult


def load_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, or a shipped recipe by name.

    Args:
        recipe: Path, or a name that `pocketbert recipes ls` lists.
        overrides: ``key.sub=value`` texts.

    Raises:
        InputError: Listing every problem.
    """
    from pocketbert.core.recipe.file import load_recipe as load
    from pocketbert.pipeline.shipped import recipe_path

    return load(recipe_path(recipe), overrides)


def starting_recipe(files: DataFiles, output: str | Path, overrides: Sequence[str] = ()) -> StartingRecipe:
    """Make a recipe for a data file: what `files` leaves out, lengths and passes are found in the rows.

    Args:
        files: The data.
        output: The run folder in which `run` will keep the recipe.
        overrides: ``key.sub=value`` texts.

    Raises:
        InputError: If the file cannot be read, or its columns or its task are not clear.
    """
    from pocketbert.pipeline.learn import starting

    return starting.starting_recipe(files, Path(output), overrides)


def run(recipe: AnyRecipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> RunResult:
    """Run the whole chain of a recipe: teacher, student, files, gates, benchmark, artefact folder and report.

    Started again with the same arguments it continues where it was, however it ended.

    Args:
        recipe: What to do; one that was made for a data file is kept in the folder as ``recipe.yaml``.
        output: The run folder.
        overwrite: Whether results of another recipe, or of other library versions, in that folder may be replaced.
        resume_anyway: Whether results and unfinished work of other library versions are taken as they are; the artefact
            folder's lineage records it.

    Returns:
        Where everything is, and the closing table.

    Raises:
        PocketBertError: InputError, GateError, MachineError or MissingBackendError.
    """
    whole = _run_at(recipe, output, overwrite, resume_anyway)
    whole.execute()
    return whole.finish()


def finetune(recipe: Recipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> Path:
    """Load or fine-tune the teacher of a recipe and return its folder, in Hugging Face layout."""
    whole = _run_at(recipe, output, overwrite, resume_anyway)
    whole.execute(until="teacher")
    return whole.path / "teacher"


def distill(recipe: Recipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> Path:
    """Make the teacher and the student of a recipe, without exporting files.

    Returns:
        The student's folder, in Hugging Face layout.

    Raises:
        InputError: If the recipe has no student.
    """
    from pocketbert.core.errors import InputError, Problem

    if recipe.student is None:
        why = "the recipe has no student section."
        raise InputError(Problem("student", why, "Add student: {layers: 3} and a distill stage."))
    whole = _run_at(recipe, output, overwrite, resume_anyway)
    whole.execute(until="student")
    return whole.path / "student"


def plan(recipe: AnyRecipe, output: str | Path, overwrite: bool = False, resume_anyway: bool = False) -> Plan:
    """List what `run` would do, without doing it."""
    return [PlannedStep(*row) for row in _run_at(recipe, output, overwrite, resume_anyway).plan()]


def demo(output: str | Path, overwrite: bool = False, overrides: Sequence[str] = ()) -> RunResult:
    """Run the whole chain on the built-in corpus with the real MiniLM teacher."""
    from pocketbert.pipeline.demo import run_demo

    return run_demo(Path(output), overwrite, overrides)


def _run_at(recipe: AnyRecipe, output: str | Path, overwrite: bool, resume_anyway: bool) -> Run:
    from pocketbert.pipeline.direct import ChoosingRun
    from pocketbert.pipeline.learn.starting import resolved
    from pocketbert.pipeline.run_folder import Permission, run_destination

    return ChoosingRun(recipe, run_destination(resolved(recipe), Path(output)), Permission(overwrite, resume_anyway))
