"""Whether a teacher and a student fit each other: what several methods refuse alike, in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.types import Signal
from pocketbert.distill.students.layer_map import layer_map


def invalid_signals(family: Family, terms: Mapping[str, Signal], where: str) -> list[Problem]:
    """Terms that learn from a signal which the family does not give.

    Args:
        family: A row of the family table.
        terms: The signal that each weighted term learns from.
        where: Recipe key of the weights.
    """
    valid = ", ".join(family.signals)
    return [
        Problem(
            f"{where}.{name}",
            f"not valid for {family.title}: {family.invalid_signals.get(signal, 'the family does not offer it')}.",
            f"Set {name}: 0; valid signals: {valid}.",
        )
        for name, signal in terms.items()
        if signal not in family.signals
    ]


def other_vocabulary(teacher: Any, student: Any, where: str) -> list[Problem]:
    """The two read other ids.

    Args:
        teacher: Configuration of the teacher.
        student: Configuration of the student.
        where: Recipe key, for errors.
    """
    if student.vocab_size == teacher.vocab_size:
        return []
    what = f"the student has {student.vocab_size} vocabulary entries, the teacher {teacher.vocab_size}: both must read the same ids."
    return [
        Problem(where, what, "Build the student from this teacher, or choose a teacher with the student's vocabulary.")
    ]


def mapped_layers(
    teacher: Any, student: Any, listed: list[int] | None, where: str, problems: list[Problem]
) -> list[int]:
    """The layer map of two models that are compared layer by layer, once all else about them has been looked at.

    Args:
        teacher: Configuration of the teacher.
        student: Configuration of the student.
        listed: The stage's map, if it has one.
        where: Recipe key, for errors.
        problems: What was found before.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: Listing these, another vocabulary, and a map that does not fit.
    """
    layers, found = list[int](), [*problems, *other_vocabulary(teacher, student, where)]
    try:
        layers = layer_map(student.num_hidden_layers, teacher.num_hidden_layers, listed, f"{where}.layers")
    except InputError as error:
        found += error.problems
    if found:
        raise InputError(found)
    return layers
