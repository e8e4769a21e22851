"""Recipes that come with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pocketbert.core.data.files import is_data_file
from pocketbert.core.disk.destination import file_destination
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.tasks import TaskName

SCHEMA_FILE = "recipe.schema.json"
_HEADER = "# yaml-language-server: $schema="


def folder() -> Path:
    """Folder of the shipped recipes."""
    return Path(str(resources.files("pocketbert.recipes")))


def _shipped() -> dict[str, Path]:
    """Files of the shipped recipes by name; they lie in a folder for each task."""
    return {p.stem: p for p in folder().glob("*/*.yaml")}


def names() -> list[str]:
    """Names of the shipped recipes."""
    return sorted(_shipped())


def recipe_path(recipe: str | Path) -> Path:
    """File of a recipe given by path or by shipped name.

    Raises:
        InputError: If neither exists.
    """
    path = Path(recipe)
    if is_data_file(path.name):
        fix = f"Without a recipe: pocketbert run --data {recipe}"
        raise InputError(Problem(str(recipe), "is a data file, not a recipe.", fix))
    if path.is_file():
        return path
    shipped = _shipped().get(str(recipe))
    if shipped is not None:
        return shipped
    raise InputError(
        Problem(
            str(recipe),
            f"no recipe file here and no shipped recipe of that name; {nearest(str(recipe), names())}.",
            "List them: pocketbert recipes ls",
        )
    )


def starting_text(task: TaskName) -> str:
    """The shipped recipe that is a start for a task, with comments; its header names the schema where it is installed."""
    return _with_schema((folder() / task.value / f"{task.value}.yaml").read_text(encoding="utf-8"))


def without_schema(text: str) -> str:
    """The text of a recipe without the header that names the schema: its path differs between installations."""
    first, _, rest = text.partition("\n")
    return rest if first.startswith(_HEADER) else text


def _with_schema(text: str) -> str:
    lines = text.splitlines(keepends=True)
    if lines and lines[0].startswith(_HEADER):
        lines[0] = f"{_HEADER}{folder() / SCHEMA_FILE}\n"
    return "".join(lines)


def copy_recipe(name: str, destination: Path, overwrite: bool = False) -> Path:
    """Copy a shipped recipe for editing; its header names the schema so that editors complete keys.

    Returns:
        The file; where `destination` is a link, what it leads to.

    Raises:
        InputError: If `destination` exists and `overwrite` is not set, or cannot be used.
    """
    source = recipe_path(name)
    text = source.read_text(encoding="utf-8")
    destination = file_destination(destination, overwrite, source)
    destination.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(destination, _with_schema(text))
    return destination
