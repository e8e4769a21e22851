"""The section of a recipe that prunes the student's vocabulary, and what does not go together with it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, PositiveInt

from pocketbert.core.recipe.methods import Stage
from pocketbert.core.recipe.section import Fraction, Section
from pocketbert.core.tasks import TaskName

LIMITS = ("max_unseen", "max_changed", "max_growth")
"""Keys that only judge a vocabulary."""
_WHOLE_TEXTS = (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.REGRESSION)
"""Tasks with one answer to a text, however it is split."""


class VocabularySection(Section):
    """Which pieces of the vocabulary the student keeps: those of the training rows, and what all words are spelt with."""

    at_least: PositiveInt = Field(1, description="Keep the pieces that occur at least this often in the training rows.")
    top: int = Field(
        0,
        ge=0,
        description="Also keep the first pieces of the vocabulary, this many; published vocabularies begin with frequent ones.",
    )
    resplit: Fraction = Field(
        0.0,
        description="Share of the training rows that each step splits into smaller pieces than the teacher reads, so that the "
        "student learns to read words that fall apart; for stages that learn logits only.",
    )
    max_unseen: Fraction = Field(0.03, description="Largest share of the pieces of held-out rows that are not kept.")
    max_changed: Fraction = Field(0.4, description="Largest share of held-out rows that are split into other pieces.")
    max_growth: float = Field(0.1, ge=0, description="Largest growth of held-out rows in tokens, as a fraction.")

    @property
    def reads_otherwise(self) -> bool:
        """Whether the student reads training rows in other pieces than the teacher."""
        return self.resplit > 0 or self.at_least > 1


def vocabulary_problems(
    section: VocabularySection, task: TaskName, stages: Sequence[Stage], has_rows: bool
) -> list[str]:
    """List what does not go together with a pruned vocabulary, a sentence each.

    Args:
        section: The section.
        task: Task of the recipe.
        stages: Entries of `distill`.
        has_rows: Whether the recipe has training rows and evaluation rows.
    """
    problems = []
    if not has_rows:
        problems.append(
            "student.vocabulary: pieces are chosen on training rows and judged on evaluation rows: add data.train and data.eval"
        )
    if task is TaskName.FILL_MASK:
        problems.append(
            "student.vocabulary: fill-mask guesses pieces of the vocabulary: with fewer pieces it would be another task, with scores "
            "that cannot be compared with the teacher's; leave vocabulary out"
        )
    for number, stage in enumerate(stages):
        if stage.on_augmented:
            problems.append(
                f"distill.{number}.augmented: copies of rows have words that no training row has, and whose pieces do not stay in "
                "student.vocabulary: set augmented: false"
            )
    return problems + (_resplit_problems(section, task, stages) if section.reads_otherwise else [])


def _resplit_problems(section: VocabularySection, task: TaskName, stages: Sequence[Stage]) -> list[str]:
    """What cannot be learnt where teacher and student read a text in different pieces."""
    given = {"at_least": section.at_least > 1, "resplit": section.resplit > 0}
    keys = " and ".join(f"{key}: {getattr(section, key):g}" for key, is_given in given.items() if is_given)
    reset = " and ".join(f"{key}: {value}" for key, value in (("at_least", 1), ("resplit", 0)) if given[key])
    why = f"student.vocabulary has {keys}, so that the student reads other tokens than the teacher"
    problems = []
    if task not in _WHOLE_TEXTS and task is not TaskName.FILL_MASK:
        allowed = ", ".join(_WHOLE_TEXTS)
        problems.append(
            f"student.vocabulary: {task} is learnt token by token, and {why}; allowed: {allowed}; set {reset}"
        )
    for number, stage in enumerate(stages):
        if not stage.general and not stage.by_text:
            problems.append(
                f"distill.{number}: method {stage.method} compares single tokens, and {why}: learn the logits only (for method task: "
                f"signals: {{logits: 1, hidden: 0, attention: 0}}), or set {reset} in student.vocabulary"
            )
    return problems
