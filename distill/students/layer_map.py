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
        student: Number of student layers M.
        teacher: Number of teacher layers N.
        listed: An explicit map, M numbers from 1 to N, which is returned if it fits; None for TinyBERT's.
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
    """Shorten the per-layer lists in a student's configuration, such as ``layer_types``, to its number of layers.

    A list keeps the values of the layers that the student is copied from, except that the kinds of attention
    (``layer_types``) are those of the teacher's first layers. A student of a family that shares weights between layers
    stores at most as many layers as it runs.

    Args:
        config: Copy of the teacher's configuration; changed in place.
        family: Names and features of the teacher's model family.
        layers: Number of layers of the student.
        listed: Teacher layers (from 1) that the recipe lists; None for the default.

    Raises:
        InputError: If the teacher's configuration has kinds of attention for fewer layers than the student.
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
    """Return the number, from 1, of the teacher layer from which each layer of a student gets its first weights.

    The layers that the recipe lists are taken, else layers spread evenly over the teacher's. Two kinds of models need
    more:

    - Models that run one layer's weights several times (ALBERT) store fewer layers than they run: the result has one
      entry for each stored layer, and counts the teacher's stored layers.
    - In models with several kinds of attention (`layer_types` in the configuration), a layer is copied from the nearest
      teacher layer of its own kind, and the first layer always from the first.

    Args:
        teacher: Configuration of the teacher.
        student: Configuration of the student.
        family: Names and features of their model family.
        listed: Teacher layers that the recipe lists, from 1, one for each layer that the student runs; None for the
            default.

    Raises:
        InputError: If a listed layer has another kind of attention than the student layer copied from it; if one of the
            two is the first layer and the other is not; if a layer that the student stores once would have to be copied
            from two different teacher layers; or if the numbers of layers do not fit.
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
    """Return, for each layer that a student stores, the teacher's stored layer (from 1) that it is copied from.

    In models with shared layers (ALBERT), transformers runs stored layer ``int(n / (depth / stored))`` as n-th layer.

    Args:
        chosen: Number, from 1, of the teacher layer for each layer that the student runs.
        teacher_depth: Number of layers that the teacher runs.
        teacher_stored: Number of layers that the teacher stores.
        stored: Number of layers that the student stores.

    Raises:
        InputError: If a stored layer of the student would be copied from several stored layers of the teacher.
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
    """Return, for each student layer, the nearest teacher layer with the same kind of attention, ascending if possible.

    The first layer is copied from the first only: it has no normalization before its attention, all others have one. If
    the recipe lists the layers (`listed`), they are returned unchanged, or InputError is raised if one of them does not
    fit.
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
