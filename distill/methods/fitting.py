"""Whether a teacher and a student fit each other: what several methods refuse alike, in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.types import Signal
from pocketbert.distill.methods.method import TeacherStudent
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


def other_vocabulary(pair: TeacherStudent[Any]) -> list[Problem]:
    """The problem with two models of different vocabularies, if they are.

    Args:
        pair: Teacher and student.
    """
    teacher, student = pair.teacher.config, pair.student.config
    if student.vocab_size == teacher.vocab_size:
        return []
    what = f"the student has {student.vocab_size} vocabulary entries, the teacher {teacher.vocab_size}: both must read the same ids."
    fix = "Build the student from this teacher, or choose a teacher with the student's vocabulary."
    return [Problem(pair.where, what, fix)]


def mapped_layers(pair: TeacherStudent[Any], problems: list[Problem]) -> list[int]:
    """The layer map of two models that are compared layer by layer, once all else about them has been looked at.

    Args:
        pair: Teacher and student; the stage may list a map.
        problems: What was found before.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: Listing these, another vocabulary, and a map that does not fit.
    """
    layers, found = list[int](), [*problems, *other_vocabulary(pair)]
    depths = (pair.student.config.num_hidden_layers, pair.teacher.config.num_hidden_layers)
    try:
        layers = layer_map(*depths, pair.stage.layers, f"{pair.where}.layers")
    except InputError as error:
        found += error.problems
    if found:
        raise InputError(found)
    return layers
