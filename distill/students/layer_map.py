"""Which teacher layer a student layer learns from, or starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family


def layer_map(student: int, teacher: int, listed: Sequence[int] | None = None, where: str = "layers") -> list[int]:
    """Return the teacher layer (from 1) for each student layer.

    TinyBERT's ``g(m) = m * N / M`` (arXiv 1909.10351, section 3.1), rounded where N is not a multiple of M.

    Args:
        student: Student layers M.
        teacher: Teacher layers N.
        listed: An explicit map, M numbers from 1 to N.
        where: Recipe key, for errors.

    Returns:
        M numbers from 1 to N.

    Raises:
        InputError: If M > N without a list, or the list does not fit.
    """
    if listed is not None:
        wrong = [n for n in listed if not 1 <= n <= teacher]
        if wrong or len(listed) != student:
            raise InputError(
                Problem(
                    where,
                    f"{list(listed)} does not map {student} student layers to teacher layers 1 to {teacher}.",
                )
            )
        return list(listed)
    if student > teacher:
        raise InputError(
            Problem(
                where,
                f"the student has {student} layers, the teacher only {teacher}.",
                "Give student.layers a number not above the teacher's.",
            )
        )
    # half up, so that the map does not depend on Python's rounding to even
    return [max(1, (2 * m * teacher + student) // (2 * student)) for m in range(1, student + 1)]


# --- copied_layers ---
# Which of a teacher's stored layers a student of the same class starts from, where layers are of two kinds or shared.


_WHERE = "student.teacher_layers"


def shorten(config: Any, family: Family, layers: int) -> None:
    """Leave as many kinds of layers, and no more shared layers, than a student has layers.

    Args:
        config: The teacher's configuration, copied; changed in place.
        family: Its row of the family table.
        layers: The student's layers.

    Raises:
        InputError: If the teacher names the kind of each layer, and has fewer layers.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        if layers > len(kinds):
            what = f"the student has {layers} layers, the teacher only {len(kinds)} whose kind is known."
            raise InputError(Problem("student.layers", what, "Give student.layers a number not above the teacher's."))
        config.layer_types = list(kinds[:layers])
    if family.stored_layers != "num_hidden_layers":
        setattr(config, family.stored_layers, min(getattr(config, family.stored_layers), layers))


def copied_layers(teacher: Any, student: Any, family: Family, listed: Sequence[int] | None) -> list[int]:
    """Return the teacher's stored layer (from 1) for each stored layer of the student.

    Args:
        teacher: The teacher's configuration.
        student: The student's.
        family: Their row of the family table.
        listed: Teacher layers (from 1) that the recipe lists, one for each layer that runs.

    Raises:
        InputError: If a layer would be copied to the place of another kind, or one shared layer from two.
    """
    deep, depth = teacher.num_hidden_layers, student.num_hidden_layers
    chosen = layer_map(depth, deep, listed, _WHERE)
    if family.stored_layers != "num_hidden_layers":
        return _shared(chosen, (deep, getattr(teacher, family.stored_layers)), getattr(student, family.stored_layers))
    kinds = getattr(teacher, "layer_types", None)
    if kinds is None:
        return chosen
    return _of_a_kind(chosen, list(kinds), list(student.layer_types), listed is not None)


def _shared(chosen: Sequence[int], teacher: tuple[int, int], groups: int) -> list[int]:
    """Of shared layers: run n of a depth uses layer ``int(n / (depth / groups))``."""
    deep, stored = teacher
    sources: dict[int, set[int]] = {}
    for place, number in enumerate(chosen):
        own = int(place / (len(chosen) / groups))
        sources.setdefault(own, set()).add(int((number - 1) / (deep / stored)) + 1)
    torn = sorted(g + 1 for g, found in sources.items() if len(found) > 1)
    if torn:
        what = f"{list(chosen)} starts shared layer {torn[0]} of the student from several of the teacher's {stored}."
        raise InputError(Problem(_WHERE, what, f"List layers that share weights where the student's {groups} do."))
    return [sources[g].pop() for g in range(groups)]


def _of_a_kind(chosen: list[int], theirs: list[str], ours: list[str], listed: bool) -> list[int]:
    """Of layers of two kinds: the nearest to the usual choice that is of the same kind; the first only from the first.

    The first layer has no normalization before its attention, and the others have one.
    """
    if listed:
        for place, number in enumerate(chosen):
            if theirs[number - 1] != ours[place] or (number == 1) != (place == 0):
                what = (
                    f"layer {place + 1} of the student is of the kind {ours[place]}, layer {number} of the teacher of the "
                    f"kind {theirs[number - 1]}; and the first layer can only start from the first."
                )
                raise InputError(Problem(_WHERE, what, "Leave teacher_layers out: layers of the same kind are chosen."))
        return chosen
    out = [1]
    for place in range(1, len(ours)):
        same = [n for n in range(2, len(theirs) + 1) if theirs[n - 1] == ours[place]]
        later = [n for n in same if n > out[-1]]
        # never empty: the student's kinds are the beginning of the teacher's
        out.append(min(later or same, key=lambda n, wanted=chosen[place]: (abs(n - wanted), n)))  # type: ignore[misc]
    return out
