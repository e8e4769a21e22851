"""Verbs on a recipe's data, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pocketbert.core.data_report import DataReport
    from pocketbert.core.recipe.recipe import Recipe
    from pocketbert.pipeline.learn.augmenting import AugmentCounts


def data_check(recipe: Recipe) -> DataReport | None:
    """Read a recipe's data and describe it, without training; return None if the recipe has no data."""
    from pocketbert.pipeline.learn.data import load_data
    from pocketbert.pipeline.teacher import open_teacher

    return load_data(recipe, open_teacher(recipe)).report


def data_prepare(recipe: Recipe, output: str | Path) -> list[Path]:
    """Tokenize a recipe's plain text (``data.corpus``) into prepared corpora, which recipes can name as sources.

    Args:
        recipe: Its teacher's tokenizer is used.
        output: Folder for the corpora, one folder per source; sources that are prepared already stay where they are.

    Returns:
        The corpora's folders in the order of the sources.

    Raises:
        InputError: If the recipe has no corpus, or its text cannot be read.
    """
    from pocketbert.pipeline.learn.corpora import prepare_corpora

    return prepare_corpora(recipe, Path(output))


def data_augment(recipe: Recipe, output: str | Path, overwrite: bool = False) -> AugmentCounts:
    """Write a recipe's training rows, each followed by copies in which words are replaced (``data.augment``).

    Started again after it was stopped it continues. A run makes these rows by itself for stages with ``augmented: true``.

    Args:
        recipe: Its data, teacher and seed.
        output: The file, ``.jsonl`` or ``.jsonl.gz``; read it with ``data.holdout: 0``.
        overwrite: Whether an existing file may be replaced.

    Returns:
        How many rows and copies it holds.

    Raises:
        InputError: If the task's labels do not belong to whole texts, or a setting does not fit.
    """
    from pocketbert.pipeline.learn.augmenting import augment_file

    return augment_file(recipe, Path(output), overwrite=overwrite)


def data_demo(output: str | Path) -> dict[str, Path]:
    """Write the built-in corpus of assistant commands to an empty folder and return its files by split."""
    from pocketbert.pipeline.demo import write_corpus

    return write_corpus(Path(output))
