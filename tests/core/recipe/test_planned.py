"""The plan of a student: estimates of shapes that were not exported, limits, the choice, and names."""

from __future__ import annotations

import pytest

from pocketbert.core.recipe.planned import (
    PlanLimits,
    PlannedFile,
    PlannedStudent,
    PlannedTime,
    StudentShape,
    choose_student,
    estimate_costs,
    name_student,
)
from pocketbert.core.recipe.student import StudentSection, VocabularySection
from pocketbert.core.types import Scheme


def test_what_is_linear_is_estimated_exactly_and_noise_never_makes_a_larger_student_faster() -> None:
    def cost(shape: StudentShape) -> float:
        return 1000 + 50 * shape.layers + 3 * shape.neurons + 0.5 * shape.pieces

    measured = [StudentShape(*s) for s in ((1, 512, 9000), (2, 512, 9000), (6, 3072, 9000), (1, 512, 700))]
    wanted = [StudentShape(*s) for s in ((3, 1536, 9000), (4, 1024, 700), (6, 3072, 9000))]
    known = {shape: cost(shape) for shape in measured}
    assert estimate_costs(known, wanted) == pytest.approx([cost(shape) for shape in wanted])
    assert estimate_costs({**known, measured[2]: 7.0}, [measured[2]]) == [7.0]
    known = {StudentShape(1, 512): 1.0, StudentShape(2, 512): 3.5, StudentShape(6, 3072): 6.0}
    estimated = estimate_costs(known, [StudentShape(2, 1024), StudentShape(4, 1024), StudentShape(4, 2048)])
    assert 1.0 < estimated[0] < estimated[1] <= estimated[2] < 6.5
    assert estimate_costs({StudentShape(1, 64): 2.0}, [StudentShape(1, 64)]) == [2.0]


def student(name: str, work: float, pieces: int, **files: tuple[float, float]) -> PlannedStudent:
    """A student with files of (MB, p90 in ms) by scheme."""
    planned = [
        PlannedFile(
            student=name,
            file=f"onnx/model_{scheme}.onnx",
            scheme=Scheme(scheme),
            bytes=round(size * 1e6),
            times=[PlannedTime(p50_ms=p90, p90_ms=p90)],
        )
        for scheme, (size, p90) in files.items()
    ]
    section = StudentSection(layers=round(work))
    return PlannedStudent(name=name, layers=1, width=None, pieces=pieces, work=work, student=section, files=planned)


@pytest.mark.parametrize(
    ("limits", "chosen"),
    [
        ({}, ("layers-3", "int8")),
        ({"max_size_mb": 10}, ("layers-3", "small")),
        ({"max_p90_ms": 1.5}, ("layers-1", "int8")),
        ({"max_size_mb": 6}, ("layers-3-vocabulary", "int8")),
        ({"max_size_mb": 6, "max_p90_ms": 1.5}, ("layers-1", "small")),
        ({"max_size_mb": 1}, None),
    ],
)
def test_the_largest_student_inside_is_chosen_in_the_first_scheme_that_fits(
    limits: dict[str, float], chosen: tuple[str, str] | None
) -> None:
    students = [
        student("layers-1", 1, 30_000, int8=(8, 1.0), small=(5, 1.2)),
        student("layers-3-vocabulary", 3, 2_000, int8=(6, 3.0), small=(5, 3.1)),
        student("layers-3", 3, 30_000, int8=(12, 3.0), small=(9, 3.1)),
    ]
    found = choose_student(students, PlanLimits(**limits), [Scheme.INT8, Scheme.SMALL])
    assert (found and (found[0].name, found[1])) == chosen


def test_limits_say_what_is_exceeded() -> None:
    file = student("layers-1", 1, 9, int8=(8, 1.0)).files[0]
    assert PlanLimits(max_size_mb=8, max_p90_ms=1).exceeded(file) == []
    assert PlanLimits(max_size_mb=7, max_p90_ms=0.9).exceeded(file) == ["size", "p90 on local"]
    assert PlanLimits(max_size_mb=7, max_p90_ms=0.9).text == "at most 7 MB, p90 at most 0.9 ms"


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (StudentSection(layers=0), "static"),
        (StudentSection(layers=2, vocabulary=VocabularySection()), "layers-2-vocabulary"),
        (StudentSection(layers=2, init="pruned", intermediate=768), "layers-2-width-768"),
        (StudentSection(model="folder"), ""),
        (StudentSection(layers=2, hidden=128), ""),
        (StudentSection(layers=0, dimensions=64), ""),
        (StudentSection(layers=2, init="random", heads=2), ""),
        (StudentSection(layers=2, family="distilbert"), ""),
    ],
)
def test_the_names_of_students(section: StudentSection, name: str) -> None:
    assert name_student(section) == name
