"""Interface of a distillation method: its recipe section, the heads it needs, and the function that trains a stage.

A method is one `Method` row, added with `register_method`. A run builds a `StageJob` for each stage of a recipe and
calls `Method.train` with it, which returns a `StageResult`. The functions at the end check whether a teacher and a
student fit each other, for several methods in the same words.

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

    from pocketbert.distill.students.fake_quantization import Prepare, RoundingRules
    from pocketbert.distill.teacher.column import ColumnTeacher
    from pocketbert.distill.training.data import TrainData
    from pocketbert.distill.training.loop import Objective, Outcome
    from pocketbert.distill.training.monitor import Monitor


S = TypeVar("S")


# --- one stage to train -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TeacherStudent(Generic[S]):
    """A teacher and a student, with the settings of the recipe stage in which they are trained.

    Attributes:
        teacher: Model to learn from.
        student: Model that is trained.
        family: Names, layer paths and inputs of the teacher's model family.
        stage: Settings of the stage.
        where: Recipe key that error messages name.
    """

    teacher: Any
    student: Any
    family: Family
    stage: S
    where: str = "distill.0"

    @property
    def student_family(self) -> Family:
        """Names, layer paths and inputs of the student's family."""
        kind = self.student.config.model_type
        return self.family if self.teacher.config.model_type == kind else family_of(kind)


@dataclass(frozen=True)
class CarriedPart:
    """Tensors and values that a stage passes to later stages besides the student, such as a trained projection.

    Attributes:
        tensors: Tensors by name.
        facts: Other values, as JSON, by name.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)


CarriedParts = Mapping[str, CarriedPart]
"""All parts that are passed from stage to stage, by name; they are written to disk between stages."""


@dataclass(frozen=True)
class TrainedCandidate:
    """A student trained for a quantized file, and all that is needed to compare it with the student before the stage.

    Attributes:
        former: The student before the stage, rewritten for export.
        student: The trained student.
        learned: The trained student's activation ranges.
        calibration: For each row to measure ranges on, the model's inputs [1, L] by name.
        selection: For each held-out row, on which the students are compared, the model's inputs [1, L] by name.
    """

    former: nn.Module
    student: Any
    learned: LearnedRanges
    calibration: Sequence[Mapping[str, Tensor]]
    selection: Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class CandidateDecision:
    """Result of comparing a `TrainedCandidate` with the student before the stage: which one is kept, and the numbers.

    Attributes:
        kept: Whether the trained student is kept.
        note: Sentence with the numbers of the comparison.
    """

    kept: bool
    note: str


@dataclass(frozen=True)
class ExportFunctions:
    """Functions that export, quantize and compare a student, for method `qat`, which trains for one quantized file.

    Only a run imports `export` and `quantize`, so it passes their functions to the method.

    Attributes:
        prepare: Function that rewrites a copy of the student as the exporter does.
        rules_of: Function that returns how the scheme rounds the numbers of a rewritten student.
        judge: Function that compares the trained student with the one before, and decides which one is kept.
    """

    prepare: Prepare
    rules_of: Callable[[nn.Module], RoundingRules]
    judge: Callable[[TrainedCandidate], CandidateDecision]


@dataclass(frozen=True)
class StageJob(Generic[S]):
    """Everything that a method needs to train one stage of a recipe: models, settings, rows, folders, and the task.

    Attributes:
        pair: The frozen teacher, the student, and the settings of the stage.
        rows: Function that returns the training rows; called after the models were checked.
        seed: Seed of the run; random choices depend on the stage's recipe key as well.
        work: Folder of the checkpoints; what a method stores goes next to it.
        task: Task of the run's model.
        monitor: Writes the file of losses, and scores the student while it trains.
        carried: Parts that earlier stages passed on.
        pooling: How token states become a text vector, for feature extraction.
        reduced: How the teacher's token states become a vector of the student's own width, where no projection maps the student's
            vectors to the teacher's; None with one, and for teachers of the same width.
        untrained: Whether no stage has trained the student yet, and the recipe names no folder to start it from.
        exported: Function that returns the export functions for a pooling, for method `qat`; else None.
        answers: The teacher's answers to the rows, if a column of the data holds them and no teacher runs; with several heads those in
            the column of each head that has one.
    """

    pair: TeacherStudent[S]
    rows: Callable[[], TrainData]
    seed: int
    work: Path
    task: Task
    monitor: Monitor | None = None
    carried: CarriedParts = field(default_factory=dict)
    pooling: Pooling = DEFAULT_POOLING
    reduced: Pooling | None = None
    untrained: bool = False
    exported: Callable[[Pooling], ExportFunctions] | None = None
    answers: ColumnTeacher | None = None

    @property
    def cache(self) -> Path:
        """Folder for the teacher's stored outputs, next to the folder of the checkpoints."""
        return self.work.parent / f"{self.pair.where}-cache"

    def fit(self, objective: Objective, pads_fully: bool = False) -> Outcome:
        """Train the student in place on the stage's rows with the given loss and return the losses and the number type.

        Args:
            objective: Loss function that computes the named loss terms of a batch.
            pads_fully: Whether batches are padded to the longest input that the stage's rows may have, instead of to
                their own longest row.
        """
        from pocketbert.distill.training.data import FixedLengthSet
        from pocketbert.distill.training.loop import train

        pair: TeacherStudent[Any] = self.pair
        rows = FixedLengthSet(self.rows()) if pads_fully else self.rows()
        return train(pair.student, objective, rows, pair.stage, self.seed, pair.where, self.work, self.monitor)

    def with_stage(self, stage: Any) -> StageJob[Any]:
        """Return a copy of this job whose settings of the stage are `stage`."""
        return replace(self, pair=replace(self.pair, stage=stage))


@dataclass(frozen=True)
class StageResult:
    """Result of training a stage, besides the student, which is trained in place.

    Attributes:
        outcome: Recorded losses, number type, and number of threads.
        carried: Parts for later stages, in addition to those that the job had.
        notes: Sentences that are shown with the student's results.
        dropped: Names of earlier parts that no longer belong to the student.
    """

    outcome: Outcome
    carried: CarriedParts = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def add_carried(self, earlier: CarriedParts) -> CarriedParts:
        """Return the parts for later stages: those of earlier stages that were not dropped, and this stage's."""
        return {name: part for name, part in earlier.items() if name not in self.dropped} | dict(self.carried)


# --- the registry of methods ------------------------------------------------------------------------------------------


class Heads(IntEnum):
    """Heads of teacher and student in stages on plain text. Each but `TOKENS` includes the heads of smaller numbers."""

    ENCODER = 0
    """None: the encoder."""
    WORDS = 1
    """The masked-language-model head."""
    WORDS_AND_PAIRS = 2
    """Both pre-training heads: masked language model and next sentence."""
    TOKENS = 3
    """The head of replaced-token detection; it is combined with no other."""


@dataclass(frozen=True)
class Needs:
    """Heads that a stage needs on its models. Stages on the task's text always have the task's head on both models.

    Attributes:
        heads: Heads of both models.
        words: Whether the student learns the teacher's predictions of masked tokens, so that the teacher's masked-LM
            head must be a trained one.
        advice: Problem to report if the teacher lacks that head.
    """

    heads: Heads = Heads.ENCODER
    words: bool = False
    advice: Problem | None = None


def _needs_encoders(stage: Any, where: str) -> Needs:
    """Return that a stage needs models without a head, the default of `Method.needs`."""
    return Needs()


@dataclass(frozen=True)
class MethodSource:
    """The publication that a method follows, and how the method differs from it; `docs/lab/methods.md` shows it.

    Attributes:
        paper: Authors, year and number of the paper, and the released code.
        published: For recipe keys of a stage, the value in the paper or its released code. A value that is equal to the
            key's default is shown as the same, any other one as a difference.
        differences: What differs besides, one after the other: what it is, how it is here, and how it is there.
    """

    paper: str
    published: Mapping[str, Any] = field(default_factory=dict)
    differences: tuple[tuple[str, str, str], ...] = ()


CUT_PAIRS = ("pairs", "rows cut at a word, in the middle of a sentence", "segments of whole sentences of a document")
"""How text pairs differ from those of BERT's code, a row of `MethodSource.differences` of all methods that make pairs."""


@dataclass(frozen=True)
class Method:
    """A distillation method: its section of a recipe and the functions that train a stage of it.

    Attributes:
        section: Class of the method's section in a recipe. It holds the method's name, whether it trains on plain text,
            and the checks of a recipe.
        train: Function that trains one stage: builds the objective, runs or caches the teacher, and calls
            `StageJob.fit`.
        needs: Function that returns which heads a stage needs, given its section and recipe key.
        source: The publication that the method follows; None for one without.
    """

    section: type[Stage]
    train: Callable[[StageJob[Any]], StageResult]
    needs: Callable[[Any, str], Needs] = _needs_encoders
    source: MethodSource | None = None

    @property
    def name(self) -> str:
        """The method's name in recipes."""
        return self.section.method_name()


_METHODS: dict[str, Method] = {}


def register_method(method: Method) -> Method:
    """Register a distillation method, so that recipes accept its section and runs can train it.

    Args:
        method: The method's recipe section and functions.

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
    """Return the registered methods by their names in recipes, in the order of registration."""
    return dict(_METHODS)


# --- whether a teacher and a student fit each other -------------------------------------------------------------------

_FULL_ATTENTION = "full_attention"
"""transformers' name for a layer without a window; a configuration without ``layer_types`` has only these."""


def find_invalid_signals(family: Family, terms: Mapping[str, Signal], where: str) -> list[Problem]:
    """Return a problem for each loss term that learns from a signal which the model family does not have.

    Args:
        family: The model family.
        terms: The signal (logits, hidden states, ...) that each weighted loss term learns from, by the term's name.
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


def find_vocabulary_mismatch(pair: TeacherStudent[Any]) -> list[Problem]:
    """Return one problem if teacher and student have vocabularies of different sizes, else an empty list."""
    teacher, student = pair.teacher.config, pair.student.config
    if student.vocab_size == teacher.vocab_size:
        return []
    what = (
        f"the student has {student.vocab_size} vocabulary entries, the teacher {teacher.vocab_size}: "
        "both must read the same ids."
    )
    fix = "Build the student from this teacher, or choose a teacher with the student's vocabulary."
    return [Problem(pair.where, what, fix)]


def find_width_mismatch(pair: TeacherStudent[Any], key: str) -> list[Problem]:
    """Return one problem if teacher and student differ in hidden size, else an empty list.

    The problem names `key`, the recipe key of the loss weight that needs equal widths.
    """
    teacher, student = pair.teacher.config.hidden_size, pair.student.config.hidden_size
    if student == teacher:
        return []
    fix = f"Set {key.rpartition('.')[2]}: 0, or give the student the teacher's width."
    return [Problem(key, f"the student is {student} wide, the teacher {teacher}.", fix)]


def find_head_mismatch(pair: TeacherStudent[Any], key: str, reason: str = "", fix: str = "") -> list[Problem]:
    """Return one problem if teacher and student differ in their number of attention heads, else an empty list.

    Args:
        pair: Teacher and student.
        key: Recipe key of the loss weight that needs equal numbers of heads.
        reason: Text that is added to the message.
        fix: Advice in the message; by default to set the weight to 0, or give the student as many heads.
    """
    teacher, student = pair.teacher.config.num_attention_heads, pair.student.config.num_attention_heads
    if student == teacher:
        return []
    what = f"the student has {student} heads, the teacher {teacher}{reason}."
    return [Problem(key, what, fix or "Set attention: 0, or give the student as many heads.")]


def check_and_map_layers(pair: TeacherStudent[Any], problems: list[Problem]) -> list[int]:
    """Return the teacher layer of each student layer; raise one InputError that lists all problems of the two models.

    Args:
        pair: Teacher and student; the stage has weights and may list a map.
        problems: Problems that the caller has found already.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: If `problems` is not empty, if the vocabularies differ in size, or if the layer map does not fit.
    """
    layers, all_problems = list[int](), [*problems, *find_vocabulary_mismatch(pair)]
    try:
        layers = map_layers(pair, pair.stage.weights.attention > 0)
    except InputError as error:
        all_problems += error.problems
    if all_problems:
        raise InputError(all_problems)
    return layers


def map_layers(pair: TeacherStudent[Any], attention: bool) -> list[int]:
    """Return the teacher layer that each student layer learns from.

    Args:
        pair: Teacher and student; the stage may list a map.
        attention: Whether attention maps or scores of the mapped layers are compared. If so, each student layer learns
            from a teacher layer with the same kind of attention.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: If a listed map does not fit; with `attention` also if a listed map pairs layers with different
            kinds of attention, or if the teacher has no layer of a kind that the student has.
    """
    where, listed = f"{pair.where}.layers", pair.stage.layers
    depths = pair.student.config.num_hidden_layers, pair.teacher.config.num_hidden_layers
    chosen = layer_map(*depths, listed, where)
    if not attention:
        return chosen
    return [
        nearest_layer_of_kind(pair, student_layer, number, listed is not None, where)
        for student_layer, number in enumerate(chosen, 1)
    ]


def nearest_layer_of_kind(
    pair: TeacherStudent[Any], student_layer: int, teacher_layer: int, listed: bool, where: str
) -> int:
    """Return the teacher layer nearest to `teacher_layer` that has the same kind of attention as a student layer.

    Attention is full or windowed (``layer_types`` of both configurations). Scores of tokens outside a window mean
    nothing, so a layer with a window cannot teach one without, nor the other way round.

    Args:
        pair: Teacher and student.
        student_layer: Number of the student layer, from 1.
        teacher_layer: Number of the teacher layer, from 1, that the layer map gives.
        listed: Whether the recipe names the teacher layer; then it is returned or refused.
        where: Recipe key of the choice.

    Raises:
        InputError: If a layer that the recipe names has another kind of attention, or the teacher has no layer of the
            student layer's kind.
    """
    teacher_kinds, student_kinds = (getattr(m.config, "layer_types", None) for m in (pair.teacher, pair.student))
    if teacher_kinds is None and student_kinds is None:
        return teacher_layer
    teacher_kinds = teacher_kinds or [_FULL_ATTENTION] * pair.teacher.config.num_hidden_layers
    kind = student_kinds[student_layer - 1] if student_kinds else _FULL_ATTENTION
    same = [number for number, teacher_kind in enumerate(teacher_kinds, 1) if teacher_kind == kind]
    if teacher_layer in same:
        return teacher_layer
    if listed or not same:
        teacher_kind = teacher_kinds[teacher_layer - 1]
        what = (
            f"layer {student_layer} of the student is of the kind {kind}, "
            f"layer {teacher_layer} of the teacher of the kind {teacher_kind}."
        )
        fix = f"Teacher layers of that kind: {', '.join(map(str, same))}."
        raise InputError(Problem(where, what, fix if same else "Set the weight of attention to 0."))
    return min(same, key=lambda number: (abs(number - teacher_layer), number))
