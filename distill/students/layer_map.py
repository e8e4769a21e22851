"""Choose the teacher layers that the layers of a student learn from, or start from.

`layer_map` is the usual choice. `shorten_layer_lists` and `copied_layers` are for a student of the teacher's class,
which starts from the teacher's layers: layers may be of two kinds of attention, or share their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family

_TEACHER_LAYERS = "student.teacher_layers"


def layer_map(student: int, teacher: int, listed: Sequence[int] | None = None, where: str = "layers") -> list[int]:
    """Return, for each student layer, the number (from 1) of the teacher layer that it learns from.

    TinyBERT's ``g(m) = m * N / M`` (arXiv 1909.10351, section 3.1), rounded if N is not a multiple of M.

    Args:
        student: Student layers M.
        teacher: Teacher layers N.
        listed: An explicit map, M numbers from 1 to N.
        where: Recipe key that error messages name.

    Returns:
        M numbers from 1 to N.

    Raises:
        InputError: If M > N without a list, or the list does not fit.
    """
    if listed is not None:
        if len(listed) != student or any(not 1 <= number <= teacher for number in listed):
            what = f"{list(listed)} does not map {student} student layers to teacher layers 1 to {teacher}."
            raise InputError(Problem(where, what))
        return list(listed)
    if student > teacher:
        what = f"the student has {student} layers, the teacher only {teacher}."
        raise InputError(Problem(where, what, "Give student.layers a number not above the teacher's."))
    # half up, so that the map does not depend on Python's rounding to even
    return [max(1, (2 * m * teacher + student) // (2 * student)) for m in range(1, student + 1)]


def shorten_layer_lists(config: Any, family: Family, layers: int, listed: Sequence[int] | None) -> None:
    """Shorten the per-layer lists in a configuration, such as ``layer_types``, to a student's number of layers.

    Entries with one value for each layer keep those of the layers that the student starts from. Kinds of attention are
    the first ones of the teacher. There are at most as many shared layers as layers.

    Args:
        config: The teacher's configuration, copied; changed in place.
        family: Its row of the family table (names, layer paths, inputs).
        layers: The student's layers.
        listed: Teacher layers (from 1) that the recipe lists.

    Raises:
        InputError: If the teacher has kinds of attention for fewer layers.
    """
    for name in family.by_layer:
        values = getattr(config, name, None)
        if isinstance(values, list) and len(set(values)) > 1:
            chosen = layer_map(layers, len(values), listed, _TEACHER_LAYERS)
            setattr(config, name, [values[n - 1] for n in chosen])
        elif isinstance(values, list):
            setattr(config, name, values[:1] * layers)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        if layers > len(kinds):
            what = f"the student has {layers} layers, the teacher only {len(kinds)} whose kind is known."
            raise InputError(Problem("student.layers", what, "Give student.layers a number not above the teacher's."))
        config.layer_types = list(kinds[:layers])
    if family.stored_layers != "num_hidden_layers":
        setattr(config, family.stored_layers, min(getattr(config, family.stored_layers), layers))


def copied_layers(teacher: Any, student: Any, family: Family, listed: Sequence[int] | None) -> list[int]:
    """Return, for each stored layer of a student, the number (from 1) of the teacher's layer that it is copied from.

    Args:
        teacher: The teacher's configuration.
        student: The student's.
        family: Their row of the family table.
        listed: Teacher layers (from 1) that the recipe lists, one for each layer that runs.

    Raises:
        InputError: If a layer would be copied to one of another kind, or one shared layer from two.
    """
    teacher_depth, depth = teacher.num_hidden_layers, student.num_hidden_layers
    chosen = layer_map(depth, teacher_depth, listed, _TEACHER_LAYERS)
    if family.stored_layers != "num_hidden_layers":
        teacher_stored, stored = (getattr(config, family.stored_layers) for config in (teacher, student))
        return _map_shared_layers(chosen, teacher_depth, teacher_stored, stored)
    kinds = getattr(teacher, "layer_types", None)
    if kinds is None:
        return chosen
    return _match_kinds(chosen, list(kinds), list(student.layer_types), listed is not None)


def _map_shared_layers(chosen: Sequence[int], teacher_depth: int, teacher_stored: int, stored: int) -> list[int]:
    """Return, for each weight-shared layer of the student, the teacher's shared layer (from 1) that it is copied from.

    transformers runs layer ``int(n / (depth / stored))`` in step n.
    """
    sources: dict[int, set[int]] = {}
    for step, number in enumerate(chosen):
        shared_layer = int(step / (len(chosen) / stored))
        sources.setdefault(shared_layer, set()).add(int((number - 1) / (teacher_depth / teacher_stored)) + 1)
    ambiguous = sorted(layer + 1 for layer, numbers in sources.items() if len(numbers) > 1)
    if ambiguous:
        what = (
            f"{list(chosen)} starts shared layer {ambiguous[0]} of the student from several of the teacher's "
            f"{teacher_stored}."
        )
        fix = f"List layers that share weights where the student's {stored} do."
        raise InputError(Problem(_TEACHER_LAYERS, what, fix))
    return [sources[layer].pop() for layer in range(stored)]


def _match_kinds(chosen: list[int], teacher_kinds: list[str], student_kinds: list[str], listed: bool) -> list[int]:
    """Return, for each student layer, the nearest teacher layer with its kind of attention, ascending if possible.

    The first layer is only copied to the first: it has no normalization before its attention, and the others have one.
    A listed choice is not changed, but raises InputError if it does not fit.
    """
    if listed:
        for place, number in enumerate(chosen):
            if teacher_kinds[number - 1] != student_kinds[place] or (number == 1) != (place == 0):
                what = (
                    f"layer {place + 1} of the student is of the kind {student_kinds[place]}, "
                    f"layer {number} of the teacher of the kind {teacher_kinds[number - 1]}; "
                    "and the first layer can only start from the first."
                )
                fix = "Leave teacher_layers out: layers of the same kind are chosen."
                raise InputError(Problem(_TEACHER_LAYERS, what, fix))
        return chosen
    matched = [1]
    for place in range(1, len(student_kinds)):
        same = [n for n in range(2, len(teacher_kinds) + 1) if teacher_kinds[n - 1] == student_kinds[place]]
        later = [n for n in same if n > matched[-1]]
        # never empty: the student's kinds are the beginning of the teacher's
        matched.append(min(later or same, key=lambda n, usual=chosen[place]: (abs(n - usual), n)))  # type: ignore[misc]
    return matched
