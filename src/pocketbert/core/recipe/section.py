"""What all parts of a recipe have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from pocketbert.core.errors import nearest
from pocketbert.core.families import all_families
from pocketbert.core.loading.plain_numbers import PlainNumbers

Fraction = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Section(PlainNumbers):
    """Base of all parts: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _has_other_teachers(name: str) -> str:
    possible = [f.name for f in all_families() if f.students_of]
    if name not in possible:
        raise ValueError(f"no teacher of another family can have students of '{name}'; {nearest(name, possible)}")
    return name


StudentFamily = Annotated[str, AfterValidator(_has_other_teachers)]
"""Name of a family whose students can have teachers of another one."""
