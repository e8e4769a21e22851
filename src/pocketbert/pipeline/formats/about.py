"""What files tell about themselves."""

from __future__ import annotations

from pocketbert.core.host.versions import version_of
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task


def description_of(recipe: Recipe, folder: ModelFolder, task: Task) -> str:
    """Describe a model in one sentence: the recipe's, or its family and task."""
    return recipe.description or f"{folder.family.title} for {task.name}"


def maker() -> str:
    """Name this package and its version."""
    return f"PocketBERT {version_of('pocketbert') or ''}".strip()
