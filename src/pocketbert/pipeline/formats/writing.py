"""What files tell about themselves: tokenizer and labels inside a file for MediaPipe, descriptions, the maker."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.host.versions import version_of
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.pooling import DEFAULT_POOLING, pooling_of
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task, TaskName


def _output(folder: ModelFolder, task: Task) -> dict[str, str]:
    if task.name is not TaskName.FEATURE_EXTRACTION:
        return {}
    return {"output": (pooling_of(folder.path) or DEFAULT_POOLING).title}


def write_client_data(recipe: Recipe, folder: ModelFolder, task: Task, path: Path) -> None:
    """Put tokenizer and labels into a file for MediaPipe, before or after quantization."""
    from pocketbert.export.mediapipe_vocabulary import vocabulary_of
    from pocketbert.export.tflite_metadata import MediaPipeInfo, write_metadata

    info = MediaPipeInfo(
        name=recipe.name,
        description=description_of(recipe, folder, task),
        version=f"made by {maker()}",
        author="",
        license=folder.licence,
        labels=tuple(folder.labels or ()) if task.names_labels else (),
        vocabulary=vocabulary_of(folder.path),
        **_output(folder, task),
    )
    path.write_bytes(write_metadata(path.read_bytes(), info))


def description_of(recipe: Recipe, folder: ModelFolder, task: Task) -> str:
    """Describe a model in one sentence: the recipe's, or its family and task."""
    return recipe.description or f"{folder.family.title} for {task.name}"


def maker() -> str:
    """This package and its version."""
    return f"PocketBERT {version_of('pocketbert') or ''}".strip()
