"""The student sections of a recipe: size, initial weights, vocabulary, limits of `student: auto`, smaller students for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from pocketbert.core.families import STATIC_FAMILY, find_family
from pocketbert.core.recipe.budget import LARGEST_MB, LARGEST_MS, SMALLEST_MS, BudgetSection
from pocketbert.core.recipe.sections import Fraction, Section, Stage, StudentFamily
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import MobileBertSize

VOCABULARY_LIMITS = ("max_unseen", "max_changed", "max_growth")
"""Keys of `VocabularySection` that only judge a vocabulary."""
STATIC_DIMENSIONS = 256
"""Default numbers of a token's vector in a student without layers."""
OWN_STUDENT = "own"
"""Name of the recipe's own student among those that a budget considers."""
_TEXT_TASKS = (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.REGRESSION)
"""Tasks with one output for a text, however it is split into tokens."""


class VocabularySection(Section):
    """Which tokens of the vocabulary the student keeps: those of the training rows, and those that spell all words."""

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
        """Whether student and teacher may split training rows into different tokens."""
        return self.resplit > 0 or self.at_least > 1


def list_vocabulary_problems(
    section: VocabularySection, task: TaskName, stages: Sequence[Stage], has_rows: bool
) -> list[str]:
    """Return what contradicts a reduced vocabulary in a recipe: sentences, empty if nothing does.

    `has_rows` states whether the recipe has training and evaluation rows.
    """
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
    """Return sentences about a task or stages that compare single tokens, if the student splits texts into other tokens.

    It does if rare tokens are left out of its vocabulary (`at_least`) or words are split again at random (`resplit`);
    otherwise the list is empty.
    """
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
            f"student.vocabulary: {task} is not learnt text by text, and {why}; allowed: {allowed}; set {reset}"
        )
    for number, stage in enumerate(stages):
        if not stage.general and not stage.by_text:
            problems.append(
                f"distill.{number}: method {stage.method} compares single tokens, and {why}: learn the logits only "
                f"(for method task: signals: {{logits: 1, hidden: 0, attention: 0}}), or set {reset} in "
                "student.vocabulary"
            )
    return problems


class AutoStudent(Section):
    """What the student that a run chooses by itself must keep, and how large and slow its file may be."""

    keep: float = Field(
        0.97,
        gt=0,
        le=1,
        description="Share of the teacher's score on validation rows that the student keeps, with 90 % confidence.",
    )
    max_size_mb: float | None = Field(
        None,
        gt=0,
        lt=LARGEST_MB,
        description="Largest file in MB (1,000,000 bytes), in ONNX and the scheme of the default file.",
    )
    max_latency_ms: float | None = Field(
        None,
        ge=SMALLEST_MS,
        lt=LARGEST_MS,
        description="Largest median latency of that file on this machine in milliseconds: one thread, real texts.",
    )
    if_none_keeps: Literal["fail", "best"] = Field(
        "fail",
        description="If no student surely keeps enough: fail with exit code 3, or best to take the one inside the other limits that "
        "keeps most. `run --data` writes best; verify.min_kept is checked in any case.",
    )

    @property
    def text(self) -> str:
        """The limits in words, e.g. ``97 % of the teacher's score kept, at most 8 MB``."""
        limits = [f"{100 * self.keep:g} % of the teacher's score kept"]
        limits += [f"at most {self.max_size_mb:g} MB"] if self.max_size_mb is not None else []
        return ", ".join(limits + ([f"at most {self.max_latency_ms:g} ms"] if self.max_latency_ms is not None else []))


class StudentSection(Section):
    """The small model; a size that is not given is that of the teacher."""

    newer_keys = ("projection",)

    auto: AutoStudent | None = Field(
        None,
        description="Instead of sizes: train several students, and take the smallest that keeps enough of the teacher. "
        "`student: auto` for {auto: {}}.",
    )
    layers: int | None = Field(
        None,
        ge=0,
        description="Encoder layers; needed without model or size. 0: a static student, a table of token vectors that "
        "the teacher makes, their mean (for tags: windows over neighbours), and a small head.",
    )
    dimensions: PositiveInt | None = Field(
        None, description=f"With layers: 0, the numbers of a token vector; default {STATIC_DIMENSIONS}."
    )
    model: str | None = Field(
        None,
        min_length=1,
        description="Folder or Hub name of a student to go on with, e.g. the general student of another run (runs/x/distill/0), "
        "with its projection; it has its own sizes, and may have its own vocabulary where stages learn outputs of whole texts.",
    )
    revision: str | None = Field(None, description="Hub revision of model.")
    size: MobileBertSize | None = Field(
        None,
        description="A MobileBERT with as many layers as the teacher, and the heads and the width between blocks of "
        "one with bottlenecks: mobilebert, tiny or mini. Or an IB-BERT with random weights and the teacher's vocabulary, "
        "which the method pretrain trains, and nothing exports: ib-bert or ib-bert-mini.",
    )
    init: Literal["teacher-layers", "embeddings", "pruned", "random"] = Field(
        "teacher-layers",
        description="Where its weights start: in teacher layers; in the teacher's embeddings, reduced to their principal "
        "components where hidden is smaller, with random layers (default with hidden or heads); in layers of the teacher, "
        "or of model, that keep only their most important feed-forward neurons (intermediate of them); or at random.",
    )
    teacher_layers: list[PositiveInt] | None = Field(
        None, description="Teacher layers (from 1) to start from; default round(m*N/M)."
    )
    hidden: PositiveInt | None = Field(None, description="Width, with init: embeddings or random.")
    heads: PositiveInt | None = Field(
        None,
        description="Attention heads, with init: embeddings or random. Default the teacher's, which must divide hidden.",
    )
    intermediate: PositiveInt | None = Field(
        None, description="Feed-forward width, with init: embeddings, random or pruned."
    )
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
    projection: Literal["keep", "drop"] | None = Field(
        None,
        description="For feature-extraction with a student of another width: keep (default) the layer that maps its vectors to the teacher's "
        "width; or drop it, so that vectors have the student's own width and learn the teacher's, reduced to it.",
    )
    vocabulary: VocabularySection | None = Field(
        None, description="Keep only some pieces of the vocabulary; {} for those of the training rows. Default all."
    )

    @property
    def drops_projection(self) -> bool:
        """Whether text vectors have the student's own width, and not that of the teacher."""
        return self.projection == "drop"

    @property
    def reads_otherwise(self) -> bool:
        """Whether student and teacher may split training rows into different tokens."""
        return self.vocabulary is not None and self.vocabulary.reads_otherwise

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: object) -> object:
        """Turn the word ``auto`` into a section with default limits, and set the default of `init` for other widths.

        It is ``embeddings`` if `layers` and one of `hidden` and `heads` are given.
        """
        if isinstance(values, dict) and values.get("layers") and (values.get("hidden") or values.get("heads")):
            return {"init": "embeddings", **values}
        return {"auto": {}} if values == "auto" else values

    @model_validator(mode="after")
    def _check_sizes(self) -> StudentSection:
        """Raise ValueError for student sizes, or sources of its first weights, that contradict each other."""
        if self.auto is not None:
            fields = type(self).model_fields.items()
            others = [
                key
                for key, field in fields
                if getattr(self, key) != field.default and key not in ("auto", "vocabulary")
            ]
            if others:
                raise ValueError(
                    f"{', '.join(others)}: auto chooses the student's size (so do --keep and its like); leave auto or the other keys out, "
                    "or give --student auto, which replaces this section"
                )
            return self
        problems = self._static_problems()
        if self.init == "pruned" and self.layers != 0:
            problems += self._pruning_problems()
        if problems:
            raise ValueError("; ".join(problems))
        sizes = ["layers", "teacher_layers", "hidden", "heads", "intermediate", "family"]
        if self.init == "pruned" and self.model is not None:
            sizes = ["family"]
        if self.model is None and self.size is None and self.layers is None:
            raise ValueError("give layers: N, auto: {}, model: FOLDER to go on with a student, or size: mobilebert")
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
                "a student of another width or head count cannot start from teacher layers; set init: embeddings or random"
            )
        if self.teacher_layers is not None and self.layers is not None and len(self.teacher_layers) != self.layers:
            raise ValueError(f"teacher_layers lists {len(self.teacher_layers)} layers, the student has {self.layers}")
        if self.teacher_layers is not None and self.init in ("random", "embeddings"):
            raise ValueError(f"teacher_layers has no meaning with init: {self.init}")
        if self.fold_segments and (self.family is None or self.init == "random"):
            raise ValueError("fold_segments is for a student of another family that starts from the teacher's weights")
        return self

    def _static_problems(self) -> list[str]:
        """Return what is wrong with settings beside ``layers: 0``, or with `dimensions` without it: one sentence or none.

        A student with ``layers: 0`` is static: a table of token vectors and a head.
        """
        if self.layers != 0:
            only = "dimensions is for a student without layers: set layers: 0, or leave it out"
            return [only] if self.dimensions is not None else []
        others = ("hidden", "heads", "intermediate", "teacher_layers", "family", "model", "size")
        given = [key for key in others if getattr(self, key) is not None]
        given += [f"init: {self.init}"] if self.init != "teacher-layers" else []
        what = "a student without layers has a table of the teacher's token vectors (dimensions) and a head only"
        return [f"{', '.join(given)}: {what}; leave out what else is given"] if given else []

    def _pruning_problems(self) -> list[str]:
        """Return what contradicts ``init: pruned``: sentences for a missing `intermediate`, or for `hidden`, `heads`, `size`."""
        problems = []
        if self.intermediate is None:
            problems.append("init: pruned needs intermediate: N, the feed-forward neurons that stay in each layer")
        if self.hidden is not None:
            problems.append("hidden: pruning keeps the width of the layers; leave it out, or set init: embeddings")
        if self.heads is not None:
            problems.append(
                "heads: attention heads cannot be pruned, because transformers computes the size of a head as the "
                "width divided by the number of heads: fewer heads would be larger ones; leave it out"
            )
        if self.size is not None:
            problems.append(f"size: a student of size {self.size} is built, not pruned; leave size or init out")
        return problems


def list_projection_problems(
    student: StudentSection, task: TaskName, lengths: Sequence[int] | None, has_column: bool
) -> list[str]:
    """Return sentences, with the fix, about a `student.projection` that has no meaning or no effect; empty if nothing is wrong.

    Args:
        student: The section `student`.
        task: The recipe's task.
        lengths: Lengths in `answer.dimensions`, to which vectors may be cut.
        has_column: Whether a column of answers is the teacher.
    """
    if student.projection is None:
        return []
    where = f"student.projection: {student.projection}"
    if task is not TaskName.FEATURE_EXTRACTION:
        return [f"{where} is for {TaskName.FEATURE_EXTRACTION}, and {task} has no vectors of texts: leave it out"]
    if has_column and not student.drops_projection:
        return [
            f"{where} has nothing to keep: vectors of a column are learned at the student's width; set drop, or leave it out"
        ]
    width = student.hidden or student.dimensions
    if student.drops_projection and student.layers == 0 and width is None:
        return [f"{where} needs the width of a student without layers: set student.dimensions, such as 256"]
    if student.drops_projection and width and lengths and lengths[-1] > width:
        return [
            f"answer.dimensions: {lengths[-1]} is more than the {width} numbers of the student ({where}): give numbers up to {width}"
        ]
    return []


def list_static_problems(student: StudentSection, task: TaskName, stages: Sequence[Stage]) -> list[str]:
    """Return sentences, with the fix, about a task or stages that a student without layers cannot have; empty for others."""
    if student.layers != 0:
        return []
    problems, refused = [], find_family(STATIC_FAMILY).invalid_tasks
    if task in refused:
        allowed = ", ".join(name for name in TaskName if name not in refused)
        problems.append(
            f"student.layers: 0 is for {allowed}, not for {task} ({refused[task]}): give the student layers"
        )
    return problems + [
        f"distill.{number}: a student without layers learns outputs only: set method: task with "
        "signals: {logits: 1, hidden: 0, attention: 0}"
        for number, stage in enumerate(stages)
        if stage.method_name() != "task" or not stage.by_text
    ]


def list_shard_problems(student: StudentSection | None, stages: Sequence[Stage], *, has_model: bool) -> list[str]:
    """Return why the weights of a teacher cannot be divided among processes (`teacher.shard`): sentences with the fix, or none.

    Args:
        student: The section `student`; None without one.
        stages: The stages of `distill`.
        has_model: Whether a model is the teacher, not a column of answers.
    """
    key = "teacher.shard"
    if student is None or not has_model:
        what = "there is no student" if student is None else "its answers are in a column"
        return [f"{key}: divides a teacher that runs while a student learns from it, and {what}: leave it out"]
    problems = []
    if student.auto is not None:
        problems.append(f"{key}: student: auto tries students in one process: give the student layers")
    if student.layers == 0:
        problems.append(
            f"{key}: a student without layers is computed by the whole teacher: leave it out, or give the student layers"
        )
    if stages and all(stage.teacher_passes == "none" for stage in stages):
        problems.append(
            f"{key}: divides a teacher that runs while a student learns from it, and in distill none does: leave it out"
        )
    return problems + [
        f"{key}: method {stage.method} of distill.{number} ends the teacher's passes early, and reads its weights: leave it out, or "
        "set method: minilm or tinybert-general"
        for number, stage in enumerate(stages)
        if stage.teacher_passes == "cut"
    ]


def list_auto_problems(
    student: StudentSection, task: TaskName, stages: Sequence[Stage], *, has_model: bool
) -> list[str]:
    """Return why a run cannot choose its student by itself (`student: auto`): sentences with the fix; empty if it can.

    The list is empty for other students too.

    Args:
        student: The section `student`.
        task: The recipe's task.
        stages: The entries of `distill`.
        has_model: Whether a model teaches, not a column of answers.
    """
    if student.auto is None:
        return []
    fix, problems = "or give student: {layers: 3}", []
    if task is TaskName.FILL_MASK:
        problems.append(
            f"student.auto: students of {task} are not scored on validation rows: give student: {{layers: 3}}"
        )
    if not has_model:
        problems.append(
            "student.auto: compares students with a teacher model, and a column teaches: give student: {layers: 3}"
        )
    if [stage.method_name() for stage in stages] != ["task"]:
        problems.append(
            f"distill: student: auto trains each student in one stage of method task: leave others out, {fix}"
        )
    problems += [
        f"distill.{number}.layers: is a map for one number of layers, and student: auto tries several: leave it out, {fix}"
        for number, stage in enumerate(stages)
        if getattr(stage, "layers", None) is not None
    ]
    return problems


# --- smaller students of a budget ------------------------------------------------------------


class SmallerStudent(Section):
    """A smaller student that is made by pruning the recipe's own student."""

    intermediate: PositiveInt | None = Field(
        None, description="Feed-forward neurons that stay in each layer, the most important ones."
    )
    vocabulary: VocabularySection | None = Field(
        None, description="Pieces of the vocabulary that stay; {} for those of the training rows."
    )

    @model_validator(mode="after")
    def _check_smaller(self) -> SmallerStudent:
        """Raise ValueError if neither neurons nor pieces are given, so that nothing would be smaller."""
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
    """Limits within which a run chooses its files, and the students that it chooses among."""

    students: list[SmallerStudent] = Field(
        default_factory=list,
        description="Smaller students to consider as well: each is pruned from the recipe's own student, learns the "
        "teacher's logits for student_steps, and one student is chosen for the whole folder.",
    )
    student_steps: PositiveInt = Field(150, description="Steps that each smaller student learns.")

    @model_validator(mode="after")
    def _check_students(self) -> RecipeBudget:
        """Raise ValueError if a student is listed twice, or if `student_steps` is set without students."""
        names = [s.name for s in self.students]
        twice = dict.fromkeys(name for i, name in enumerate(names) if name in names[:i])
        if twice:
            raise ValueError(f"students lists {', '.join(twice)} twice")
        # by value, since in a recipe that is read again every key is set
        if not self.students and self.student_steps != type(self).model_fields["student_steps"].default:
            raise ValueError("student_steps has no meaning without students: list them, or leave it out")
        return self


def list_smaller_student_problems(
    students: Sequence[SmallerStudent], task: TaskName, own: StudentSection | None
) -> list[str]:
    """Return what contradicts the smaller students of a budget: sentences, empty if nothing does or there are none."""
    key = "quantize.budget.students"
    if not students:
        return []
    if own is None:
        return [f"{key}: there is no student to prune: add a student and a distill stage, or leave students out"]
    problems = []
    if own.auto is not None:
        problems.append(
            f"{key}: are pruned from a student that is named, and student.auto chooses one: leave one of both out"
        )
    if own.vocabulary is not None:
        problems.append(
            f"{key}: the recipe's own student has a pruned vocabulary, which cannot be pruned again: leave "
            f"student.vocabulary out, and list {{vocabulary: {{}}}} in students"
        )
    for number, student in enumerate(students):
        if student.vocabulary is not None:
            of_vocabulary = list_vocabulary_problems(student.vocabulary, task, (), has_rows=True)
            problems += [p.replace("student.vocabulary", f"{key}.{number}.vocabulary") for p in of_vocabulary]
        if own.layers == 0 and student.intermediate is not None:
            problems.append(
                f"{key}.{number}.intermediate: the recipe's own student has no layers, and no neurons in them"
            )
        if own.intermediate is not None and student.intermediate is not None:
            of_width = width_problem(student.intermediate, own.intermediate)
            problems += [f"{key}.{number}.intermediate: {of_width}"] if of_width else []
    return problems


def width_problem(wanted: int, width: int) -> str:
    """Return why a smaller student would not be narrower than the recipe's own; empty if it is.

    Args:
        wanted: Number of feed-forward neurons that each layer of the smaller student keeps.
        width: Number of feed-forward neurons in each layer of the recipe's own student.
    """
    if wanted < width:
        return ""
    return (
        f"{wanted} neurons are to stay, and each layer of the recipe's own student has {width}: choose a number below "
        f"{width}, for example {width // 2}"
    )
