"""The place of a run folder, known to be usable before anything runs."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.disk.destination import folder_destination
from pocketbert.core.recipe.recipe import Recipe


def run_destination(recipe: Recipe, output: Path) -> Path:
    """Find out which folder the output of a run means; see `pocketbert.core.disk.destination.folder_destination`.

    Raises:
        InputError: If it cannot be used, or is a model folder or corpus of the recipe, or lies in one.
    """
    student, corpus = recipe.student, recipe.data.corpus
    named = [recipe.teacher.model, student.model if student else None]
    named += [source.path for source in corpus.sources] if corpus else []
    return folder_destination(output, *(path for name in named if name and (path := Path(name)).is_dir()))
