"""Whether a teacher and a student fit each other: what several methods refuse alike, in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.types import Signal
from pocketbert.distill.methods.method import TeacherStudent
from pocketbert.distill.students.layer_map import layer_map

_ALL_TOKENS = "full_attention"
"""What transformers calls a layer without a window; a configuration that names no kinds has no others."""


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


def layers_of_a_kind(pair: TeacherStudent[Any], depths: tuple[int, int], attention: bool) -> list[int]:
    """Map layers; where attention is learnt, each to one that attends as it does.

    Args:
        pair: Teacher and student; the stage may list a map.
        depths: Layers of the student, and of the teacher.
        attention: Whether attention maps or scores of the mapped layers are compared.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: If a listed map does not fit; with `attention` also if it joins layers of two kinds, or if the teacher
            has no layer of a kind.
    """
    where, listed = f"{pair.where}.layers", pair.stage.layers
    chosen = layer_map(*depths, listed, where)
    if not attention:
        return chosen
    return [of_its_kind(pair, place, number, listed is not None, where) for place, number in enumerate(chosen, 1)]


def of_its_kind(pair: TeacherStudent[Any], place: int, number: int, listed: bool, where: str) -> int:
    """Return a teacher layer that attends as a student layer does: to all tokens, or within a window.

    Scores of tokens outside a window say nothing, so a layer with one has nothing to teach to a layer without, or the
    other way round. The kinds are what ``layer_types`` of both configurations lists.

    Args:
        pair: Teacher and student.
        place: The student's layer, from 1.
        number: The teacher's layer, from 1, that the usual choice or the recipe names.
        listed: Whether the recipe names it.
        where: Recipe key of the choice.

    Returns:
        `number`, or the nearest layer of the right kind.

    Raises:
        InputError: If a listed layer is of another kind, or the teacher has no layer of the kind.
    """
    theirs, ours = (getattr(m.config, "layer_types", None) for m in (pair.teacher, pair.student))
    if theirs is None and ours is None:
        return number
    theirs = theirs or [_ALL_TOKENS] * pair.teacher.config.num_hidden_layers
    kind = ours[place - 1] if ours else _ALL_TOKENS
    same = [n for n, their in enumerate(theirs, 1) if their == kind]
    if number in same:
        return number
    if listed or not same:
        what = f"layer {place} of the student is of the kind {kind}, layer {number} of the teacher of the kind {theirs[number - 1]}."
        fix = (
            f"Teacher layers of that kind: {', '.join(map(str, same))}."
            if same
            else "Set the weight of attention to 0."
        )
        raise InputError(Problem(where, what, fix))
    return min(same, key=lambda n: (abs(n - number), n))


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
        layers = layers_of_a_kind(pair, depths, pair.stage.weights.attention > 0)
    except InputError as error:
        found += error.problems
    if found:
        raise InputError(found)
    return layers
