from __future__ import annotations

import pytest
from pydantic import ValidationError

from pocketbert.core.recipe.student import StudentSection


def test_a_student_of_another_family_is_one_that_the_table_has_teachers_for() -> None:
    assert StudentSection(layers=1, family="distilbert").family == "distilbert"
    with pytest.raises(ValidationError, match=r"students of 'distil-bert'; did you mean 'distilbert'"):
        StudentSection(layers=1, family="distil-bert")
    with pytest.raises(ValidationError, match="no teacher of another family can have students of 'bert'"):
        StudentSection(layers=1, family="bert")
