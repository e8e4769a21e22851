"""What a run would find in its first minute, found before it: a missing head, missing columns, labels that do not fit."""

from __future__ import annotations

import re

from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.models.folder import DEMO_TEACHER, ModelFolder
from pocketbert.core.models.weight_names import weight_names
from pocketbert.core.recipe.data.section import DataSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.learn.data import check_files, load_data, read_splits
from pocketbert.pipeline.teacher import open_teacher

_HEAD = re.compile(r"classifier|score|qa_outputs|logits|(^|\.)cls\.|head|predictions|vocab|summary|start_|end_|answer")
"""Weights of heads, under the names that the systems' classes have for them."""


def look(recipe: Recipe) -> None:
    """Find what a run would find before it trains, as far as the files are here: nothing is loaded from the Hub.

    Raises:
        InputError: Listing the problems.
    """
    check_files(recipe.data)
    model = _local_teacher(recipe)
    if model is not None:
        check_head(recipe, model)
    if not is_local(recipe.data):
        return
    if model is None:
        read_splits(recipe.data, recipe.task)
    else:
        load_data(recipe, model)


def check_head(recipe: Recipe, model: ModelFolder) -> None:
    """Refuse a teacher without a trained head that is not fine-tuned, where its files are those of a bare encoder.

    Raises:
        InputError: If it is one.
    """
    if recipe.teacher.finetune is not None or recipe.task is TaskName.FEATURE_EXTRACTION:
        return
    if recipe.distill and all(stage.general for stage in recipe.distill):
        return
    bare = str((model.config.get("architectures") or [""])[0]).endswith("Model")
    if bare and not any(_HEAD.search(name) for name in weight_names(model.path)):
        raise InputError(
            Problem(
                "teacher.finetune",
                f"'{model.title}' has no trained head for {recipe.task}, and the recipe does not train one.",
                "Add it to teacher, e.g. finetune: {epochs: 4, batch: 48, lr: 3.0e-4}; or name a fine-tuned model.",
            )
        )


def is_local(section: DataSection) -> bool:
    """Whether a recipe has rows, and all of them are in files."""
    sources: list[DataSource] = [s for s in (section.train, section.eval_source) if s is not None]
    return bool(sources) and all(s.path is not None for s in sources)


def _local_teacher(recipe: Recipe) -> ModelFolder | None:
    """The model that a recipe starts from, where it is a folder or installed."""
    name = recipe.teacher.model
    if name != DEMO_TEACHER and name.count("/") == 1 and not name.startswith((".", "~", "/")):
        return None  # a name on the Hub: a folder here has an absolute path by now
    try:
        return open_teacher(recipe)
    except MissingBackendError:
        return None
