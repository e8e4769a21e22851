"""The model that a recipe starts from."""

from __future__ import annotations

from dataclasses import replace

from pocketbert.core.families import TEXT_ONLY
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Attention


def open_teacher(recipe: Recipe, attention: Attention | None = None) -> ModelFolder:
    """Open the model that the section `teacher` of a recipe names, as the family that it names, for the recipe's task.

    Args:
        recipe: The recipe.
        attention: What attention in the files is over, where the recipe says so.

    Raises:
        InputError: If there is no such model, or it has not the family's graph.
        MissingBackendError: If the demo teacher or the library that loads models from the Hub is not installed.
    """
    teacher = recipe.teacher
    folder = open_model_folder(teacher.model, teacher.revision, "teacher.model", teacher.family, attention)
    # whatever form its files had: training knows text only, and the run writes its own files
    family = folder.family.in_form(TEXT_ONLY, folder.config)
    licence = teacher.licence or folder.licence
    return replace(folder, family=family, licence=licence, used_for=TaskName(recipe.task))


def say_row(folder: ModelFolder) -> None:
    """Say which row of the table of families a model is taken as, where several share its graph and one was chosen."""
    if folder.row_reason:
        say(
            f"{folder.title}: taken as {folder.family.title}, because {folder.row_reason}; "
            "--family (in a recipe teacher.family) decides"
        )
