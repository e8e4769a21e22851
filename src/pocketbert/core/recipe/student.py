"""The student sections of a recipe: size, initial weights, vocabulary, and smaller students for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.sections import Fraction, Section, Stage, StudentFamily
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import MobileBertSize

VOCABULARY_LIMITS = ("max_unseen", "max_changed", "max_growth")
"""Keys of `VocabularySection` that only judge a vocabulary."""
OWN_STUDENT = "own"
"""Name of the recipe's own student among those that a budget considers."""
_TEXT_TASKS = (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.REGRESSION)
"""Tasks with one output for a text, however it is split into tokens."""


class VocabularySection(Section):
    """Which pieces of the vocabulary the student keeps: those of the training rows, and what all words are spelt with."""

    at_least: PositiveInt = Field(1, description="Keep the pieces that occur at least this often in the training rows.")
    top: int = Field(
        0,
        ge=0,
        description="Also keep the first pieces of the vocabulary, this many; published vocabularies begin with "
        "frequent ones.",
    )
    resplit: Fraction = Field(
        0.0,
        description="Share of the training rows that each step splits into smaller pieces than the teacher reads, so "
        "that the student learns to read words that fall apart; for stages that learn logits only.",
    )
    max_unseen: Fraction = Field(0.03, description="Largest share of the pieces of held-out rows that are not kept.")
    max_changed: Fraction = Field(0.4, description="Largest share of held-out rows that are split into other pieces.")
    max_growth: float = Field(0.1, ge=0, description="Largest growth of held-out rows in tokens, as a fraction.")

    @property
    def reads_otherwise(self) -> bool:
        """Whether student and teacher tokenize training rows differently."""
        return self.resplit > 0 or self.at_least > 1


def list_vocabulary_problems(
    section: VocabularySection, task: TaskName, stages: Sequence[Stage], has_rows: bool
) -> list[str]:
    """List recipe settings that contradict a pruned vocabulary, one sentence each."""
    problems = []
    if not has_rows:
        problems.append(
            "student.vocabulary: pieces are chosen on training rows and judged on evaluation rows: add data.train and "
            "data.eval"
        )
    if task is TaskName.FILL_MASK:
        problems.append(
            "student.vocabulary: fill-mask guesses pieces of the vocabulary: with fewer pieces it would be another "
            "task, with scores that cannot be compared with the teacher's; leave vocabulary out"
        )
    for number, stage in enumerate(stages):
        if stage.on_augmented:
            problems.append(
                f"distill.{number}.augmented: copies of rows have words that no training row has, and whose pieces do "
                "not stay in student.vocabulary: set augmented: false"
            )
    return problems + _token_problems(section, task, stages)


def _token_problems(section: VocabularySection, task: TaskName, stages: Sequence[Stage]) -> list[str]:
    """List what cannot be learnt because student and teacher tokenize texts differently; empty if they do not."""
    defaults = {key: default for key, default in (("at_least", 1), ("resplit", 0)) if getattr(section, key) > default}
    if not defaults:
        return []
    keys = " and ".join(f"{key}: {getattr(section, key):g}" for key in defaults)
    reset = " and ".join(f"{key}: {default}" for key, default in defaults.items())
    why = f"student.vocabulary has {keys}, so that the student reads other tokens than the teacher"
    problems = []
    if task not in _TEXT_TASKS and task is not TaskName.FILL_MASK:
        allowed = ", ".join(_TEXT_TASKS)
        problems.append(
            f"student.vocabulary: {task} is learnt token by token, and {why}; allowed: {allowed}; set {reset}"
        )
    for number, stage in enumerate(stages):
        if not stage.general and not stage.by_text:
            problems.append(
                f"distill.{number}: method {stage.method} compares single tokens, and {why}: learn the logits only "
                f"(for method task: signals: {{logits: 1, hidden: 0, attention: 0}}), or set {reset} in "
                "student.vocabulary"
            )
    return problems


class StudentSection(Section):
    """The small model; whatever is not given is the teacher's own."""

    layers: PositiveInt | None = Field(None, description="Encoder layers; needed without model or size.")
    model: str | None = Field(
        None,
        min_length=1,
        description="Folder or Hub name of a student to go on with, e.g. one that learnt general text; it has its own "
        "sizes.",
    )
    revision: str | None = Field(None, description="Hub revision of model.")
    size: MobileBertSize | None = Field(
        None,
        description="A MobileBERT with as many layers as the teacher, and the heads and the width between blocks of "
        "one with bottlenecks: mobilebert, tiny or mini.",
    )
    init: Literal["teacher-layers", "pruned", "random"] = Field(
        "teacher-layers",
        description="Where its weights start: in teacher layers; in layers of the teacher, or of model, that keep only "
        "their most important feed-forward neurons (intermediate of them); or at random.",
    )
    teacher_layers: list[PositiveInt] | None = Field(
        None, description="Teacher layers (from 1) to start from; default round(m*N/M)."
    )
    hidden: PositiveInt | None = Field(None, description="Width; needs init: random.")
    heads: PositiveInt | None = Field(None, description="Attention heads; needs init: random.")
    intermediate: PositiveInt | None = Field(None, description="Feed-forward width; needs init: random or pruned.")
    family: StudentFamily | None = Field(
        None,
        description="Family of the student where it is not the teacher's, such as distilbert, which has no segment ids "
        "and no pooler; the table of families says which teachers it can have.",
    )
    fold_segments: bool = Field(
        False,
        description="With family: add the vector of segment 0 to the position table, so that embeddings equal the "
        "teacher's.",
    )
    vocabulary: VocabularySection | None = Field(
        None, description="Keep only some pieces of the vocabulary; {} for those of the training rows. Default all."
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> StudentSection:
        """Raise ValueError for sizes of the student and origins of its weights that contradict each other."""
        problems = self._pruning_problems() if self.init == "pruned" else []
        if problems:
            raise ValueError("; ".join(problems))
        sizes = ["layers", "teacher_layers", "hidden", "heads", "intermediate", "family"]
        if self.init == "pruned" and self.model is not None:
            sizes = ["family"]
        if self.model is None and self.size is None and self.layers is None:
            raise ValueError("give layers: N, or model: FOLDER to go on with a student, or size: mobilebert")
        given = [k for k in sizes if getattr(self, k) is not None]
        if self.model is not None and self.size is not None:
            given.append("size")
        if self.model is not None and given:
            raise ValueError(f"{', '.join(given)}: the student in model has its own; leave them out")
        if self.size is not None and given:
            raise ValueError(f"{', '.join(given)}: a student of size {self.size} has the teacher's; leave them out")
        if self.model is None and self.revision is not None:
            raise ValueError("revision is that of model, which is not given")
        if self.init == "teacher-layers" and (self.hidden or self.heads or self.intermediate):
            raise ValueError(
                "a student of another width or head count cannot start from teacher layers; set init: random"
            )
        if self.teacher_layers is not None and self.layers is not None and len(self.teacher_layers) != self.layers:
            raise ValueError(f"teacher_layers lists {len(self.teacher_layers)} layers, the student has {self.layers}")
        if self.teacher_layers is not None and self.init == "random":
            raise ValueError("teacher_layers has no meaning with init: random")
        if self.fold_segments and (self.family is None or self.init == "random"):
            raise ValueError("fold_segments is for a student of another family that starts from teacher layers")
        return self

    def _pruning_problems(self) -> list[str]:
        """List settings that contradict ``init: pruned``."""
        problems = []
        if self.intermediate is None:
            problems.append("init: pruned needs intermediate: N, the feed-forward neurons that stay in each layer")
        if self.hidden is not None:
            problems.append("hidden: pruning keeps the width of the layers; leave it out, or set init: random")
        if self.heads is not None:
            problems.append(
                "heads: attention heads cannot be pruned, because transformers computes the size of a head as the "
                "width divided by the number of heads: fewer heads would be larger ones; leave it out"
            )
        if self.size is not None:
            problems.append(f"size: a student of size {self.size} is built, not pruned; leave size or init out")
        return problems


# --- smaller students of a budget ------------------------------------------------------------


class SmallerStudent(Section):
    """A student that is pruned from the recipe's own."""

    intermediate: PositiveInt | None = Field(
        None, description="Feed-forward neurons that stay in each layer, the most important ones."
    )
    vocabulary: VocabularySection | None = Field(
        None, description="Pieces of the vocabulary that stay; {} for those of the training rows."
    )

    @model_validator(mode="after")
    def _check_smaller(self) -> SmallerStudent:
        """Raise ValueError for a student that is not smaller than the recipe's own in any way."""
        if self.intermediate is None and self.vocabulary is None:
            raise ValueError("nothing is smaller: give intermediate: N, vocabulary: {}, or both")
        return self

    @property
    def name(self) -> str:
        """Name of the student in tables and folders, e.g. ``intermediate-768-vocabulary-2``."""
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
        description="Smaller students to consider as well: each is pruned from the recipe's own student, learns the "
        "teacher's logits for student_steps, and one student is chosen for the whole folder.",
    )
    student_steps: PositiveInt = Field(150, description="Steps that each smaller student learns.")

    @model_validator(mode="after")
    def _check_students(self) -> RecipeBudget:
        """Raise ValueError for a student that is listed twice, or steps without students."""
        names = [s.name for s in self.students]
        twice = dict.fromkeys(name for i, name in enumerate(names) if name in names[:i])
        if twice:
            raise ValueError(f"students lists {', '.join(twice)} twice")
        if "student_steps" in self.model_fields_set and not self.students:
            raise ValueError("student_steps has no meaning without students: list them, or leave it out")
        return self


def list_smaller_student_problems(
    students: Sequence[SmallerStudent], task: TaskName, own: StudentSection | None
) -> list[str]:
    """List recipe settings that contradict smaller students, each with the fix."""
    key = "quantize.budget.students"
    if not students:
        return []
    if own is None:
        return [f"{key}: there is no student to prune: add a student and a distill stage, or leave students out"]
    problems = []
    if own.vocabulary is not None:
        problems.append(
            f"{key}: the recipe's own student has a pruned vocabulary, which cannot be pruned again: leave "
            f"student.vocabulary out, and list {{vocabulary: {{}}}} in students"
        )
    for number, student in enumerate(students):
        if student.vocabulary is not None:
            of_vocabulary = list_vocabulary_problems(student.vocabulary, task, (), has_rows=True)
            problems += [p.replace("student.vocabulary", f"{key}.{number}.vocabulary") for p in of_vocabulary]
        if own.intermediate is not None and student.intermediate is not None:
            of_width = width_problem(student.intermediate, own.intermediate)
            problems += [f"{key}.{number}.intermediate: {of_width}"] if of_width else []
    return problems


def width_problem(wanted: int, width: int) -> str:
    """Return why a smaller student would not be narrower than the recipe's own; empty if it is.

    Args:
        wanted: Feed-forward neurons that are to stay in each layer.
        width: Feed-forward neurons in each layer of the recipe's own student.
    """
    if wanted < width:
        return ""
    return (
        f"{wanted} neurons are to stay, and each layer of the recipe's own student has {width}: choose a number below "
        f"{width}, for example {width // 2}"
    )
