"""The plain recipe that makes a smaller student of a run's own, and the lines of it that a user copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.smaller import SmallerStudent

_LR, _BATCH = 1e-4, 32
"""How a pruned student learns again: as in the tables of docs/results.md."""


def smaller_recipe(recipe: Recipe, wanted: SmallerStudent, steps: int, run: Path, licence: str | None = None) -> Recipe:
    """Return the plain recipe that makes a smaller student of a run's own, and only its exported files.

    Args:
        recipe: The recipe of the own student.
        wanted: The student.
        steps: Steps that it learns.
        run: The run folder, with ``teacher`` and ``student``.
        licence: Licence of the teacher's weights.
    """
    content = recipe.model_dump(mode="json", by_alias=True)
    teacher = {"model": str(run / "teacher"), "family": recipe.teacher.family, "licence": licence}
    content |= {"teacher": teacher, "student": _section(wanted, run), "distill": [_stage(steps)]}
    content["data"] |= {"corpus": None, "augment": None}  # of stages that the plain recipe does not have
    content["quantize"] = {"scheme": "fp32", "calibration": recipe.quantize.calibration}
    return Recipe.model_validate(content)


def student_lines(recipe: Recipe) -> list[str]:
    """The sections of a plain recipe that make its student, a line each, ready to copy.

    Args:
        recipe: What `smaller_recipe` returned.
    """
    assert recipe.student is not None
    student = recipe.student.model_dump(mode="json", exclude_defaults=True)
    (stage,) = (s.model_dump(mode="json", exclude_unset=True) for s in recipe.distill)
    sections = {"teacher": {"model": recipe.teacher.model}, "student": student, "distill": [stage]}
    return [f"{key}: {_flow(value)}" for key, value in sections.items()]


def _section(wanted: SmallerStudent, run: Path) -> dict[str, Any]:
    section: dict[str, Any] = {"model": str(run / "student")}
    if wanted.intermediate is not None:
        section |= {"init": "pruned", "intermediate": wanted.intermediate}
    if wanted.vocabulary is not None:
        section["vocabulary"] = wanted.vocabulary.model_dump(mode="json")
    return section


def _stage(steps: int) -> dict[str, Any]:
    signals = {"logits": 1.0, "hidden": 0.0, "attention": 0.0}
    return {"method": "task", "steps": steps, "batch": _BATCH, "lr": _LR, "dropout": 0.0, "signals": signals}


def _flow(value: object) -> str:
    """A value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(v)}" for key, v in value.items()) + "}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else f"{value}"
