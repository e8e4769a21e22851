"""Which teacher layer a student layer learns from, or starts from."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.errors import InputError, Problem


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
