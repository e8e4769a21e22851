"""A distillation method as one row: the section of a recipe, what its models need, and the function that trains.

Imports no torch, so that a package can register a method without loading it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, family_of
from pocketbert.core.families.weight_records import LearnedRanges
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling
from pocketbert.core.recipe.sections import Stage, register_stage
from pocketbert.core.tasks import Task
from pocketbert.core.types import Signal
from pocketbert.distill.students.layer_map import layer_map

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pocketbert.distill.students.fake_quantization import Prepare, Roundings
    from pocketbert.distill.training.data import TrainData
    from pocketbert.distill.training.loop import Objective, Outcome


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


# --- fitting ---
# Whether a teacher and a student fit each other: what several methods refuse alike, in the same words.


_ALL_TOKENS = "full_attention"
"""What transformers calls a layer without a window; a configuration that names no kinds has no others."""


def invalid_signals(family: Family, terms: Mapping[str, Signal], where: str) -> list[Problem]:
    """Terms that learn from a signal which the family does not give.

    Args:
        family: A row of the family table.
        terms: The signal that each weighted term learns from.
        where: Recipe key of the weights.
    """
    valid = ", ".join(family.signals)
    return [
        Problem(
            f"{where}.{name}",
            f"not valid for {family.title}: {family.invalid_signals.get(signal, 'the family does not offer it')}.",
            f"Set {name}: 0; valid signals: {valid}.",
        )
        for name, signal in terms.items()
        if signal not in family.signals
    ]


def other_vocabulary(pair: TeacherStudent[Any]) -> list[Problem]:
    """The problem with two models of different vocabularies, if they are.

    Args:
        pair: Teacher and student.
    """
    teacher, student = pair.teacher.config, pair.student.config
    if student.vocab_size == teacher.vocab_size:
        return []
    what = f"the student has {student.vocab_size} vocabulary entries, the teacher {teacher.vocab_size}: both must read the same ids."
    fix = "Build the student from this teacher, or choose a teacher with the student's vocabulary."
    return [Problem(pair.where, what, fix)]


def layers_of_a_kind(pair: TeacherStudent[Any], depths: tuple[int, int], attention: bool) -> list[int]:
    """Map layers; where attention is learnt, each to one that attends as it does.

    Args:
        pair: Teacher and student; the stage may list a map.
        depths: Layers of the student, and of the teacher.
        attention: Whether attention maps or scores of the mapped layers are compared.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: If a listed map does not fit; with `attention` also if it joins layers of two kinds, or if the teacher
            has no layer of a kind.
    """
    where, listed = f"{pair.where}.layers", pair.stage.layers
    chosen = layer_map(*depths, listed, where)
    if not attention:
        return chosen
    return [of_its_kind(pair, place, number, listed is not None, where) for place, number in enumerate(chosen, 1)]


def of_its_kind(pair: TeacherStudent[Any], place: int, number: int, listed: bool, where: str) -> int:
    """Return a teacher layer that attends as a student layer does: to all tokens, or within a window.

    Scores of tokens outside a window say nothing, so a layer with one has nothing to teach to a layer without, or the
    other way round. The kinds are what ``layer_types`` of both configurations lists.

    Args:
        pair: Teacher and student.
        place: The student's layer, from 1.
        number: The teacher's layer, from 1, that the usual choice or the recipe names.
        listed: Whether the recipe names it.
        where: Recipe key of the choice.

    Returns:
        `number`, or the nearest layer of the right kind.

    Raises:
        InputError: If a listed layer is of another kind, or the teacher has no layer of the kind.
    """
    theirs, ours = (getattr(m.config, "layer_types", None) for m in (pair.teacher, pair.student))
    if theirs is None and ours is None:
        return number
    theirs = theirs or [_ALL_TOKENS] * pair.teacher.config.num_hidden_layers
    kind = ours[place - 1] if ours else _ALL_TOKENS
    same = [n for n, their in enumerate(theirs, 1) if their == kind]
    if number in same:
        return number
    if listed or not same:
        what = f"layer {place} of the student is of the kind {kind}, layer {number} of the teacher of the kind {theirs[number - 1]}."
        fix = (
            f"Teacher layers of that kind: {', '.join(map(str, same))}."
            if same
            else "Set the weight of attention to 0."
        )
        raise InputError(Problem(where, what, fix))
    return min(same, key=lambda n: (abs(n - number), n))


def mapped_layers(pair: TeacherStudent[Any], problems: list[Problem]) -> list[int]:
    """The layer map of two models that are compared layer by layer, once all else about them has been looked at.

    Args:
        pair: Teacher and student; the stage may list a map.
        problems: What was found before.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: Listing these, another vocabulary, and a map that does not fit.
    """
    layers, found = list[int](), [*problems, *other_vocabulary(pair)]
    depths = (pair.student.config.num_hidden_layers, pair.teacher.config.num_hidden_layers)
    try:
        layers = layers_of_a_kind(pair, depths, pair.stage.weights.attention > 0)
    except InputError as error:
        found += error.problems
    if found:
        raise InputError(found)
    return layers
