"""The model of a run that becomes files, opened once for all steps that work on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import Task
from pocketbert.pipeline.formats.model_files import ModelFile

LICENCE_FILE = "LICENCE.txt"
"""Where the folder of a run's teacher names the licence of its weights."""


@dataclass(frozen=True)
class RunModel:
    """A trained model in a run folder, and what the run makes from it.

    Attributes:
        recipe: What to do.
        run: The run folder.
        folder: The model, opened.
        length: Longest input in tokens.
        files: The files that are made of it.
    """

    recipe: Recipe
    run: Path
    folder: ModelFolder
    length: int
    files: Sequence[ModelFile] = ()

    @property
    def weights(self) -> Path:
        """Folder of the model."""
        return self.folder.path

    @property
    def task(self) -> Task:
        """What the model does, with the score function that its files name."""
        return self.folder.task_row(self.recipe.task)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The model's tokenizer; it cuts at `length`."""
        return TextTokenizer(self.weights, self.length)

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names of tasks that have labels; other models' config.json may still name those of a classifier."""
        return tuple(self.folder.labels or ()) if self.task.names_labels else ()

    def source(self, file: ModelFile) -> Path:
        """Find one of its files in the run folder."""
        return self.run / file.source


def open_weights(recipe: Recipe, run: Path, weights: Path, length: int) -> RunModel:
    """Open a model of a run, with the licence of its teacher, before it is known which files are made of it."""
    folder, note = open_model_folder(str(weights)), run / "teacher" / LICENCE_FILE
    licence = note.read_text(encoding="utf-8").strip() if note.is_file() else folder.licence
    return RunModel(recipe, run, replace(folder, licence=licence), length)
