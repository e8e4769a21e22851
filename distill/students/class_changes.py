"""Students of another class than their teacher: which changes exist, and the weights under their new names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.loading.registry import Registry


@dataclass(frozen=True)
class ClassChange:
    """How a model of one family starts a student of another.

    Attributes:
        teacher: Name of the teacher's row of the family table.
        student: Name of the student's.
        heads: Class suffixes that change, old to new (``ForPreTraining`` to ``ForMaskedLM``); others stay.
        layers: Teacher layers (from 1) that the student's authors chose, by (student depth, teacher depth).
        config: The student's configuration from the teacher's.
        weights: The student's state dict from (the teacher's, its layers from 1, whether segment 0 is folded in).
    """

    teacher: str
    student: str
    config: Callable[[Any], Any]
    weights: Callable[[Mapping[str, Tensor], list[int], bool], dict[str, Tensor]]
    heads: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[tuple[int, int], list[int]] = field(default_factory=dict)


CLASS_CHANGES: Registry[ClassChange] = Registry("class-change", "register_class_change")


def register_class_change(change: ClassChange) -> None:
    """Register how a teacher of one family starts a student of another.

    Args:
        change: How; it replaces the one between the same families.
    """
    CLASS_CHANGES.register(_key(change.teacher, change.student), change)


def add_class_change(change: ClassChange) -> None:
    """Add one of the package's own."""
    CLASS_CHANGES.add(_key(change.teacher, change.student), change)


def _key(teacher: str, student: str) -> str:
    return f"{teacher} to {student}"


def class_change(teacher: str, student: str, where: str = "student.family") -> ClassChange:
    """The change from one family to another.

    Args:
        teacher: Name of the teacher's family.
        student: Name of the student's.
        where: Recipe key, for errors.

    Raises:
        InputError: If there is none.
    """
    changes = CLASS_CHANGES.values()
    for change in changes:
        if (change.teacher, change.student) == (teacher, student):
            return change
    possible = [teacher, *(c.student for c in changes if c.teacher == teacher)]
    raise InputError(
        Problem(
            where,
            f"'{student}' cannot be made from a teacher of family '{teacher}'; possible: {', '.join(possible)}.",
            "Choose one of these, or leave family out.",
        )
    )
