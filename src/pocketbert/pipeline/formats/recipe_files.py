"""Which model files a recipe makes, format by format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.pipeline.formats.model_files import ModelFile, exported_file, smaller
from pocketbert.pipeline.formats.place import bounds_of, place_of
from pocketbert.pipeline.formats.run_model import RunModel, open_weights


def model_files(recipe: Recipe, weights: Path) -> list[ModelFile]:
    """List the files that a recipe makes, each exported file before what is made from it.

    Args:
        recipe: What to do.
        weights: Folder of the exported model, whose tokenizer decides whether a client can run it.
    """
    out = []
    for format in recipe.export.formats:
        place = place_of(format)
        scheme = place.exported_scheme(recipe)
        bases = [exported_file(format, scheme, client) for client in (None, *place.clients(recipe, weights))]
        out += [*bases, *smaller(recipe, bases)]
    return out


def open_run_model(recipe: Recipe, run: Path, weights: Path, length: int) -> RunModel:
    """Open the model that a run exports.

    Args:
        recipe: What to do.
        run: The run folder.
        weights: Folder of the model in it.
        length: Longest input in tokens.
    """
    return replace(open_weights(recipe, run, weights, length), files=model_files(recipe, weights))


def absent_files(recipe: Recipe, weights: Path) -> dict[str, str]:
    """List files that a reader of the folder may look for, and why they are not there."""
    return {k: v for format in recipe.export.formats for k, v in place_of(format).absent(recipe, weights).items()}


def check_bounds(recipe: Recipe) -> None:
    """Refuse a recipe before its first step if nothing could tell whether one of its files is right.

    Raises:
        InputError: Naming every format, scheme and runtime without bounds.
    """
    problems = []
    for format in recipe.export.formats:
        try:
            base = exported_file(format, place_of(format).exported_scheme(recipe))
            files = [base, *smaller(recipe, [base])]
        except InputError as error:
            problems += error.problems
            continue
        for file in files:
            try:
                bounds_of(file)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)
