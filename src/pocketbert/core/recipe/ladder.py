"""The students that `student: auto` chooses among, smallest first, and the recipe of each.

`list_rungs` lists the shapes that a teacher's config.json allows: a static student, encoders of 1, 2, 3, 4 and 6 layers, and encoders
with half the feed-forward neurons between them. `rung_recipe` returns the plain recipe that trains one of them, briefly or fully.
Nothing is opened or trained here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, check_prunable, list_static_problems
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import STATIC_DIMENSIONS, StudentSection
from pocketbert.core.tasks import TaskName

_DEPTHS = (1, 2, 3, 4, 6)
"""Numbers of layers of the students."""
_NARROW_DEPTHS = (2, 4)
"""Depths that have a student with half the feed-forward neurons too, each between two full ones in size and work."""
_WIDTH_STEP = 32
"""Feed-forward widths are multiples of this number, the block of the quantizers."""
_STATIC_PASSES, _STATIC_RATE = 2.0, 2e-3
"""Passes of a static student relative to those of the recipe's stage, and its learning rate: a table needs more of both than layers."""
_STATIC_COST = 0.7
"""Time of a static student's training relative to that of three layers: the table is made by the teacher, and each row is answered by it once."""
_STATIC_WORK = 0.01
"""Work of a static student that takes a mean, relative to a layer."""
_MOST_STATIC_WORK = 0.9
"""The most work that windows over neighbours count as: they come before any layer."""


@dataclass(frozen=True)
class Rung:
    """The shape of a student.

    Attributes:
        name: Short name for tables and folders: ``static``, ``layers-2``, ``layers-2-width-768``.
        layers: Encoder layers; 0 for a static student.
        width: Feed-forward neurons of each layer, if not all of the teacher's; else None.
        work: Multiplications for a token in the layers, relative to one of the teacher's layers.
        is_teacher: Whether it has all layers and neurons of the teacher, so that it starts with the teacher's answers.
        cost: Estimated time of its training relative to that of a student of three layers.
    """

    name: str
    layers: int
    width: int | None = None
    work: float = 0.0
    is_teacher: bool = False
    cost: float = 0.0

    @property
    def student(self) -> StudentSection:
        """The section `student` of a plain recipe with this shape."""
        if self.width is None:
            return StudentSection(layers=self.layers)
        return StudentSection(layers=self.layers, init="pruned", intermediate=self.width)


def list_rungs(config: Mapping[str, Any], family: Family, task: TaskName, pairs: bool = False) -> list[Rung]:
    """List the students that can be made of a teacher, the one with the least work first.

    Args:
        config: Entries of the teacher's config.json.
        family: The teacher's row of the family table.
        task: The task; some have no static student.
        pairs: Whether the rows are pairs of texts, whose second text a static student must find by segment ids.

    Returns:
        A static student where task and teacher allow it, then the encoders with no more layers than the teacher. Those with half the
        neurons are left out where the family's neurons cannot be pruned.
    """
    sizes = "num_hidden_layers", "hidden_size", "intermediate_size"
    depth, hidden, width = (family.read_size(config, name) for name in sizes)
    static_problems = list_static_problems(family, task, pairs and task is not TaskName.FEATURE_EXTRACTION)
    work = _STATIC_WORK
    if task is TaskName.TOKEN_CLASSIFICATION and hidden:
        # four windows of three tokens, where a layer has twelve square products
        work = min((min(STATIC_DIMENSIONS, hidden) / hidden) ** 2, _MOST_STATIC_WORK)
    rungs = [] if static_problems else [Rung("static", 0, work=work)]
    rungs += [Rung(f"layers-{n}", n, work=float(n), is_teacher=n == depth) for n in _DEPTHS if n <= (depth or 0)]
    half = (width or 0) // 2 // _WIDTH_STEP * _WIDTH_STEP
    if half and hidden and width and _is_prunable(config, family, half):
        # four square products for attention, two with the neurons
        share = (2 * hidden + half) / (2 * hidden + width)
        narrow = [n for n in _NARROW_DEPTHS if n <= (depth or 0)]
        rungs += [Rung(f"layers-{n}-width-{half}", n, half, n * share) for n in narrow]
    costs = {rung.name: _estimate_cost(rung, depth or 0) for rung in rungs}
    return sorted((replace(rung, cost=costs[rung.name]) for rung in rungs), key=lambda rung: rung.work)


def _estimate_cost(rung: Rung, depth: int) -> float:
    """Estimate the time of a rung's training, as a multiple of that of three layers, for a teacher of `depth` layers.

    A step runs all layers of the teacher once, and those of the student forward and, at twice the work, backward. A
    static student has a fixed cost, and one with all layers of the teacher none.
    """
    if rung.layers == 0:
        return _STATIC_COST
    return 0.0 if rung.is_teacher else (depth + 3 * rung.work) / (depth + 9)


def _is_prunable(config: Mapping[str, Any], family: Family, width: int) -> bool:
    """Return whether the feed-forward neurons of a teacher can be pruned to a width."""
    try:
        check_prunable(family, config, width)
    except InputError:
        return False
    return True


def rung_recipe(recipe: Recipe, rung: Rung, share: float = 1.0) -> Recipe:
    """Return the plain recipe that trains one student of a recipe with `student: auto`.

    The stage of `distill` keeps its settings but for its length (`share`) and two students. A static student learns outputs and gold
    labels only, with its own learning rate, without dropout, for twice as many passes, and usually from stored answers of the teacher.
    A student with all layers of the teacher learns for one step, since it gives the teacher's answers from the start.

    Args:
        recipe: The recipe.
        rung: The student.
        share: Share of the stage's steps or passes, for a brief training.
    """
    assert recipe.student is not None
    (stage,) = recipe.distill
    settings = stage.model_dump(mode="json", exclude_unset=True)
    if rung.layers == 0:
        settings |= {"lr": _STATIC_RATE, "dropout": None, "signals": _static_signals(recipe)}
        is_plain = recipe.data.transfer is None and not stage.on_augmented
        # there are several passes, and the student is cheaper than the teacher
        settings["cache_teacher"] = "fp32" if is_plain else None
        share *= _STATIC_PASSES
    if rung.is_teacher:
        settings.pop("epochs", None)
        settings["steps"] = 1
    elif stage.epochs is not None:
        settings["epochs"] = stage.epochs * share
    else:
        settings["steps"] = ceil(stage.steps * share)
    student = rung.student.model_dump(mode="json", exclude_defaults=True)
    if recipe.student.vocabulary is not None:
        student["vocabulary"] = recipe.student.vocabulary.model_dump(mode="json")
    content = recipe.model_dump(mode="json", by_alias=True)
    return Recipe.model_validate({**content, "student": student, "distill": [settings]})


def _static_signals(recipe: Recipe) -> dict[str, float]:
    """Return the weights of the terms that a static student learns: outputs, and gold labels where the teacher learned some too."""
    has_labels = recipe.teacher.finetune is not None and recipe.data.train is not None
    return {"logits": 1.0, "hidden": 0.0, "attention": 0.0, "labels": float(has_labels)}
