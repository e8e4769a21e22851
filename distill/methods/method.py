"""A distillation method as one row: the section of a recipe, what its models need, and the function that trains.

Imports no torch, so that a package can register a method without loading it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pocketbert.core.errors import Problem
from pocketbert.core.families import Family, family_of
from pocketbert.core.models.learned_ranges import LearnedRanges
from pocketbert.core.predict.pooling import DEFAULT_POOLING, Pooling
from pocketbert.core.recipe.methods import Stage, register_stage
from pocketbert.core.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pocketbert.distill.students.prepared_weights import Prepare
    from pocketbert.distill.students.rounded import Roundings
    from pocketbert.distill.training.loop import Objective, Outcome
    from pocketbert.distill.training.train_set import TrainData

S = TypeVar("S")


@dataclass(frozen=True)
class TeacherStudent(Generic[S]):
    """A teacher and a student in one stage of a recipe.

    Attributes:
        teacher: Model to learn from.
        student: Model that is trained.
        family: Row of the family table of the teacher.
        stage: Settings of the stage.
        where: Recipe key, for errors.
    """

    teacher: Any
    student: Any
    family: Family
    stage: S
    where: str = "distill.0"

    @property
    def student_family(self) -> Family:
        """Row of the family table of the student."""
        kind = self.student.config.model_type
        return self.family if self.teacher.config.model_type == kind else family_of(kind)


@dataclass(frozen=True)
class CarriedPart:
    """A part that one method's stage hands to the stages after it.

    Attributes:
        tensors: Tensors by name.
        facts: JSON values by name.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)


Carried = Mapping[str, CarriedPart]
"""What goes from stage to stage with the student, by name; it is written to disk between stages."""


@dataclass(frozen=True)
class Rival:
    """A student that was trained for a scheme, against the one before.

    Attributes:
        former: The student before, rewritten for its files.
        student: The trained student.
        learned: Its ranges.
        calibration: Inputs [1, L] of rows to measure ranges on, by name.
        selection: Inputs of rows that nothing was trained on.
    """

    former: nn.Module
    student: Any
    learned: LearnedRanges
    calibration: Sequence[Mapping[str, Tensor]]
    selection: Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Verdict:
    """Which student goes on.

    Attributes:
        kept: Whether it is the trained one.
        note: The figures, in a sentence.
    """

    kept: bool
    note: str


@dataclass(frozen=True)
class ExportedForm:
    """How a student is rewritten for its files, and how their numbers are rounded; only method `qat` asks for it.

    Attributes:
        prepare: Rewrites a copy of the student as an exporter does.
        roundings: How the scheme rounds in a rewritten student.
        judge: Compares the trained student with the one before, and tells which one goes on.
    """

    prepare: Prepare
    roundings: Callable[[nn.Module], Roundings]
    judge: Callable[[Rival], Verdict]


@dataclass(frozen=True)
class StageJob(Generic[S]):
    """One stage to be trained.

    Attributes:
        pair: Teacher, frozen, and student, and the settings.
        rows: Makes the training rows; asked once the models are known to fit each other.
        seed: Seed of the run; random choices are keyed by the stage's recipe key as well.
        work: Folder of the checkpoints; what a method keeps on disk goes next to it.
        metrics: A .jsonl file for losses.
        carried: What earlier stages handed on.
        task: What the run's model does.
        pooling: How token states become a vector, for feature-extraction.
        untrained: Whether no stage has trained the student yet, and no folder was named to start it from.
        exported: Returns what the student's files will be like.
    """

    pair: TeacherStudent[S]
    rows: Callable[[], TrainData]
    seed: int
    work: Path
    task: Task
    metrics: Path | None = None
    carried: Carried = field(default_factory=dict)
    pooling: Pooling = DEFAULT_POOLING
    untrained: bool = False
    exported: Callable[[], ExportedForm] | None = None

    @property
    def cache(self) -> Path:
        """Folder for what the teacher said, next to the checkpoints."""
        return self.work.parent / f"{self.pair.where}-cache"

    def fit(self, objective: Objective) -> Outcome:
        """Train the student in place with the stage's settings.

        Args:
            objective: Computes the terms of the loss.
        """
        from pocketbert.distill.training.loop import train

        pair: TeacherStudent[Any] = self.pair
        return train(pair.student, objective, self.rows(), pair.stage, self.seed, pair.where, self.work, self.metrics)

    def with_stage(self, stage: Any) -> StageJob[Any]:
        """The same job with other settings."""
        return replace(self, pair=replace(self.pair, stage=stage))


@dataclass(frozen=True)
class StageResult:
    """What a stage leaves behind, apart from the student, which was trained in place.

    Attributes:
        outcome: Losses, and what they were computed with.
        carried: What it hands to later stages, in addition to what was there.
        notes: What a reader of the student's figures must know, a sentence each.
    """

    outcome: Outcome
    carried: Carried = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Heads(IntEnum):
    """Heads that teacher and student are loaded with in general stages; a larger number has all of a smaller one."""

    ENCODER = 0
    """None: the encoder."""
    WORDS = 1
    """The masked-language-model head."""
    WORDS_AND_PAIRS = 2
    """Both pre-training heads: hidden words, and whether a second segment follows the first."""
    TOKENS = 3
    """The head that tells of each token whether it was replaced; it goes with no other."""


@dataclass(frozen=True)
class Needs:
    """What a stage needs of its models. Stages on the task's own text always have the task's head on both.

    Attributes:
        heads: Heads of both models.
        words: Whether the teacher's guesses of hidden words are learnt, so that it must have that head.
        advice: What to do where the teacher lacks the head.
    """

    heads: Heads = Heads.ENCODER
    words: bool = False
    advice: Problem | None = None


def _nothing(stage: Any, where: str) -> Needs:
    return Needs()


@dataclass(frozen=True)
class Method:
    """A distillation method.

    Attributes:
        section: Its section of a recipe; tells its name, whether it is general, and its problems with a recipe.
        train: Trains one stage: builds what learns, asks or caches the teacher, and calls `StageJob.fit`.
        needs: What a stage (its section and recipe key) needs of its models.
    """

    section: type[Stage]
    train: Callable[[StageJob[Any]], StageResult]
    needs: Callable[[Any, str], Needs] = _nothing

    @property
    def name(self) -> str:
        """The name that recipes use."""
        return self.section.method_name()


_METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Register a distillation method: recipes accept its section, and runs train it.

    Args:
        method: Section and code.

    Raises:
        ValueError: If another method has the name.
    """
    known = _METHODS.get(method.name)
    if known is not None and known != method:
        raise ValueError(f"method '{method.name}' is registered already")
    register_stage(method.section)
    _METHODS[method.name] = method
    return method


def registered_methods() -> dict[str, Method]:
    """Methods by name, in the order of registration."""
    return dict(_METHODS)
