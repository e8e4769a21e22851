from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.errors import InputError
from pocketbert.distill.students.layer_map import layer_map


@pytest.mark.parametrize(
    ("student", "teacher", "wanted"), [(3, 6, [2, 4, 6]), (4, 12, [3, 6, 9, 12]), (2, 3, [2, 3]), (4, 6, [2, 3, 5, 6])]
)
def test_known_maps(student: int, teacher: int, wanted: list[int]) -> None:
    assert layer_map(student, teacher) == wanted


@settings(max_examples=25)
@given(st.integers(1, 48).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))))
def test_maps_rise_to_the_last_layer(sizes: tuple[int, int]) -> None:
    student, teacher = sizes
    found = layer_map(student, teacher)
    assert len(found) == student and found == sorted(set(found)) and found[-1] == teacher
    assert all(abs(n - m * teacher / student) <= 0.5 for m, n in enumerate(found, 1))


def test_a_listed_map_is_taken_as_it_is() -> None:
    assert layer_map(3, 6, [1, 1, 5]) == [1, 1, 5]
    assert layer_map(3, 2, [1, 2, 2]) == [1, 2, 2]


@pytest.mark.parametrize("listed", [[1, 2], [1, 2, 7], [0, 1, 2], []])
def test_a_list_that_does_not_fit_is_refused(listed: list[int]) -> None:
    with pytest.raises(InputError, match="distill.0.layers: .* does not map 3 student layers to teacher layers 1 to 6"):
        layer_map(3, 6, listed, "distill.0.layers")


def test_a_student_deeper_than_its_teacher_is_refused() -> None:
    with pytest.raises(InputError, match="the student has 7 layers, the teacher only 6"):
        layer_map(7, 6)
