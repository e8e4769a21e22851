"""Smaller students that a budget considers next to the recipe's own: what may be cut, and what is wrong with a choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydantic import Field, PositiveInt, model_validator

from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.section import Section
from pocketbert.core.recipe.vocabulary import VocabularySection, vocabulary_problems
from pocketbert.core.tasks import TaskName

OWN = "own"
"""Name of the recipe's own student among those that are considered."""


class SmallerStudent(Section):
    """A student that is pruned from the recipe's own."""

    intermediate: PositiveInt | None = Field(
        None, description="Feed-forward neurons that stay in each layer, the most important ones."
    )
    vocabulary: VocabularySection | None = Field(
        None, description="Pieces of the vocabulary that stay; {} for those of the training rows."
    )

    @model_validator(mode="after")
    def _smaller(self) -> SmallerStudent:
        if self.intermediate is None and self.vocabulary is None:
            raise ValueError("nothing is smaller: give intermediate: N, vocabulary: {}, or both")
        return self

    @property
    def name(self) -> str:
        """What tables and folders call it, e.g. ``intermediate-768-vocabulary-2``."""
        parts = [] if self.intermediate is None else [f"intermediate-{self.intermediate}"]
        if (pieces := self.vocabulary) is not None:
            parts.append("vocabulary" + (f"-{pieces.at_least}" if pieces.at_least > 1 else ""))
            parts += [f"top-{pieces.top}"] if pieces.top else []
            parts += [f"resplit-{100 * pieces.resplit:.0f}"] if pieces.resplit else []
        return "-".join(parts)


class RecipeBudget(BudgetSection):
    """Limits of the files that a run chooses, and the students that it chooses among."""

    students: list[SmallerStudent] = Field(
        default_factory=list,
        description="Smaller students to consider as well: each is pruned from the recipe's own student, learns the teacher's logits "
        "for student_steps, and one student is chosen for the whole folder.",
    )
    student_steps: PositiveInt = Field(150, description="Steps that each smaller student learns.")

    @model_validator(mode="after")
    def _named(self) -> RecipeBudget:
        names = [s.name for s in self.students]
        twice = dict.fromkeys(name for i, name in enumerate(names) if name in names[:i])
        if twice:
            raise ValueError(f"students lists {', '.join(twice)} twice")
        if "student_steps" in self.model_fields_set and not self.students:
            raise ValueError("student_steps has no meaning without students: list them, or leave it out")
        return self


class OwnStudent(Protocol):
    """What a smaller student is pruned from: the section `student` of a recipe."""

    @property
    def vocabulary(self) -> VocabularySection | None:
        """The pieces that it keeps."""

    @property
    def intermediate(self) -> int | None:
        """Feed-forward neurons of each layer, where the recipe names them."""


def smaller_problems(students: Sequence[SmallerStudent], task: TaskName, own: OwnStudent | None) -> list[str]:
    """List what does not go together with smaller students, each with the fix and without a full stop.

    Args:
        students: What the budget lists.
        task: What they do.
        own: The recipe's own student, if it has one.
    """
    key = "quantize.budget.students"
    if not students:
        return []
    if own is None:
        return [f"{key}: there is no student to prune: add a student and a distill stage, or leave students out"]
    problems = []
    if own.vocabulary is not None:
        problems.append(
            f"{key}: the recipe's own student has a pruned vocabulary, which cannot be pruned again: leave student.vocabulary out, and "
            "list {vocabulary: {}} in students"
        )
    for number, student in enumerate(students):
        if student.vocabulary is not None:
            found = vocabulary_problems(student.vocabulary, task, (), has_rows=True)
            problems += [p.replace("student.vocabulary", f"{key}.{number}.vocabulary") for p in found]
        if own.intermediate is not None and student.intermediate is not None:
            found = [width_problem(student.intermediate, own.intermediate)]
            problems += [f"{key}.{number}.intermediate: {p}" for p in found if p]
    return problems


def width_problem(wanted: int, width: int) -> str:
    """Say that a student is not smaller than the recipe's own; empty where it is.

    Args:
        wanted: Neurons that are to stay.
        width: Those that each layer of the recipe's own student has.
    """
    if wanted < width:
        return ""
    return (
        f"{wanted} neurons are to stay, and each layer of the recipe's own student has {width}: choose a number below {width}, for "
        f"example {width // 2}"
    )
