"""The base classes of a recipe's sections, and the registry of distillation methods.

`Section` is the base of all; `Updates` and `Optimisation` hold training settings; `Stage` and `GeneralText` are the
bases of the sections of methods, which `register_stage` adds. An entry of `distill` has the type `AnyStage`, that is
of the section registered for its `method`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from pocketbert.core.data.source import PlainNumbers
from pocketbert.core.errors import suggest_allowed
from pocketbert.core.families import all_families
from pocketbert.core.plugins import load_plugins, record_registration
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format, MaskingKind, Precision, Runtime, Schedule, Scheme, SecondSegment

Fraction = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Section(PlainNumbers):
    """Base of all parts of a recipe: unknown keys are errors, and values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_student_family(name: str) -> str:
    """Raise ValueError for a family whose students cannot have teachers of another family; return the name."""
    possible = [f.name for f in all_families() if f.students_of]
    if name not in possible:
        raise ValueError(
            f"no teacher of another family can have students of '{name}'; {suggest_allowed(name, possible)}"
        )
    return name


StudentFamily = Annotated[str, AfterValidator(_check_student_family)]
"""Name of a family whose students can have teachers of another one."""


# --- training settings ------------------------------------------------------------


def _delete_default(schema: dict[str, Any]) -> None:
    """Delete the default of a field from the JSON Schema, because it only means that the value is missing."""
    del schema["default"]


class Updates(Section):
    """How a model's weights are updated in training, whatever the model learns."""

    steps: int = Field(0, gt=0, description="Optimiser steps; or give epochs.", json_schema_extra=_delete_default)
    epochs: float | None = Field(
        None,
        gt=0,
        le=10_000,
        description="Passes over the training rows, instead of steps; a part of a pass counts too.",
    )
    batch: PositiveInt = Field(64, description="Rows per step.")
    micro_batch: PositiveInt | None = Field(
        None,
        description="Rows per forward pass in each process; gradients are summed. Default all at once, or what fits into memory.",
    )
    precision: Precision = Field(
        Precision.AUTO,
        description="Number type of the matrix products, those of the teacher too: auto is bf16 where the hardware has it; qat computes in fp32.",
    )
    lr: Rate = Field(1e-4, description="Peak learning rate.")
    weight_decay: float = Field(0.01, ge=0, le=1, description="The optimiser's weight decay, not on biases and norms.")
    beta2: Rate = Field(0.999, description="The optimiser's decay of squared gradients.")
    eps: float = Field(1e-8, gt=0, description="The optimiser's epsilon.")
    clip: float = Field(1.0, gt=0, description="Largest global gradient norm.")
    dropout: float | None = Field(None, ge=0, lt=1, description="Dropout of the trained model; default its own.")
    freeze_embeddings: bool = Field(False, description="Keep the embedding tables as they are.")
    checkpoint: PositiveInt = Field(200, description="Steps between two checkpoints.")

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        """Raise ValueError unless exactly one of steps and epochs is given."""
        if bool(self.steps) == (self.epochs is not None):
            raise ValueError("give exactly one of 'steps' and 'epochs', e.g. steps: 1000, or epochs: 3")
        return self

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serialize the section with only that one of `steps` and `epochs` that is set, and `precision` if it is not auto."""
        unset = {"steps" if self.epochs is not None else "epochs"}
        unset |= {"precision"} if self.precision is Precision.AUTO else set()  # as before this key existed
        return {key: value for key, value in handler(self).items() if key not in unset}

    def for_rows(self, rows: int) -> Self:
        """Return a copy with `epochs` converted to `steps` for this number of training rows."""
        if self.epochs is None:
            return self
        return self.model_copy(update={"steps": ceil(self.epochs * rows / self.batch), "epochs": None})

    def passes(self, rows: int) -> str:
        """Describe the length of training, given in `steps`: ``180 steps of 32 rows: 0.64 passes over 9,003 rows``."""
        passes = self.steps * self.batch / max(rows, 1)
        shown = f"{passes:,.0f}" if passes >= 100 else f"{passes:.3g}"
        return f"{self.steps:,} steps of {self.batch:,} rows: {shown} passes over {rows:,} rows"


class Optimisation(Updates):
    """Steps and learning rates of fine-tuning and of most distillation stages: AdamW with one rate for all weights."""

    warmup: Fraction = Field(0.06, description="Share of the steps with rising learning rate.")
    schedule: Schedule = Field(
        Schedule.LINEAR, description="After the warm-up: linear, falling to 0 at the last step, or constant."
    )


# --- stages ------------------------------------------------------------

NO_TRANSFER = {
    TaskName.FILL_MASK: "its rows need no labels as it is, so that they are training rows (data.train) or plain text (data.corpus)",
    TaskName.MULTIPLE_CHOICE: "a text alone has no choices; questions with choices but no answer are none that a teacher is sure of",
}
"""Why texts without labels are not taken for a task."""


WrittenFile = tuple[Format, Scheme, Runtime | None]
"""Format and scheme of a quantized file, and the runtime that it is made for (None: any)."""


@dataclass(frozen=True)
class StagePlace:
    """The position of a distillation stage in a recipe, and the other sections that its checks need.

    Attributes:
        number: Index of the stage in `distill`.
        stages: All entries of `distill`.
        depth: Number of the student's layers, if the recipe names it; else None.
        files: The quantized files that are written; None if they are not chosen yet.
        task: The recipe's task.
    """

    number: int
    stages: Sequence[Stage]
    depth: int | None
    files: frozenset[WrittenFile] | None = None
    task: TaskName = TaskName.TEXT_CLASSIFICATION

    @property
    def where(self) -> str:
        """The recipe key of the stage, such as ``distill.0``."""
        return f"distill.{self.number}"


class Stage(Updates):
    """Base of all sections that an entry of `distill` can be; the Literal of a subclass's field `method` is its name.

    Attributes:
        general: Whether the stage learns from a pre-trained teacher on plain text; if not, it learns on the task's own
            text.
        teaches_words: Whether the stage trains the fill-mask head, which predicts masked tokens.
        teacher_passes: Whether the teacher runs to its last layer (``whole``), may end earlier (``cut``), or does not run (``none``).
    """

    general: ClassVar[bool] = False
    teaches_words: ClassVar[bool] = False
    teacher_passes: ClassVar[Literal["whole", "cut", "none"]] = "whole"

    if TYPE_CHECKING:
        method: str

    @classmethod
    def method_name(cls) -> str:
        """Return the method's name, as recipes write it."""
        return str(get_args(cls.model_fields["method"].annotation)[0])

    @property
    def on_augmented(self) -> bool:
        """Whether the stage trains on augmented rows."""
        return bool(getattr(self, "augmented", False))

    def is_taught(self, task: TaskName) -> bool:
        """Return whether the stage learns the teacher's outputs or layers on unlabelled rows, and so reads data.transfer."""
        return False

    def needs_labels(self, task: TaskName) -> bool:
        """Return whether the stage learns gold labels of the rows."""
        return False

    @property
    def predicts(self) -> bool:
        """Whether the stage trains the student's head, so that scores on validation rows can choose its checkpoint."""
        return False

    @property
    def by_text(self) -> bool:
        """Whether the stage compares teacher and student by outputs only, and by no states of single tokens."""
        return False

    @property
    def exported_format(self) -> Format | None:
        """The file format that the stage trains for, whose export settings change its result; None for any."""
        return None

    def problems(self, place: StagePlace) -> list[str]:
        """Return what is wrong with the stage or contradicts the rest of the recipe.

        Returns:
            Sentences, empty if nothing is wrong; if one key is wrong, the sentence begins with the key and a colon.
        """
        return []


_S = TypeVar("_S", bound=type[Stage])

_SECTIONS: dict[str, type[Stage]] = {}
_LISTENERS: list[Callable[[], object]] = []


def register_stage(section: _S) -> _S:
    """Register a distillation method by the section with its settings; usable as a decorator.

    Args:
        section: The section, whose field `method` holds the name.

    Raises:
        ValueError: If another section has the name.
    """
    name = section.method_name()
    if _SECTIONS.get(name, section) is not section:
        raise ValueError(f"method '{name}' is registered already, as {_SECTIONS[name].__qualname__}")
    if name not in _SECTIONS:
        if not section.__module__.startswith("pocketbert."):  # the package's own, imported because a plug-in needs it
            record_registration("method", name)
        _SECTIONS[name] = section
        for listener in _LISTENERS:
            listener()
    return section


def on_registration(listener: Callable[[], object]) -> None:
    """Add a function that is called after each later registration of a method, to rebuild models that depend on it."""
    _LISTENERS.append(listener)


def stage_sections() -> dict[str, type[Stage]]:
    """Return the registered sections (settings classes) by method name, in the order of registration."""
    load_plugins()
    return dict(_SECTIONS)


def method_names(wanted: Callable[[type[Stage]], bool] = lambda _: True) -> list[str]:
    """List the names of registered methods, optionally only those whose section `wanted` accepts."""
    load_plugins()
    return [name for name, section in _SECTIONS.items() if wanted(section)]


class _RegisteredStage:
    """Pydantic annotation that validates an entry of `distill` as the section of its `method`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        sections: Any = Union[tuple(_SECTIONS.values())]  # noqa: UP007  # what is registered, not what is written
        return handler.generate_schema(Annotated[sections, Field(discriminator="method")])


AnyStage = Annotated[Stage, _RegisteredStage()]
"""An entry of `distill`, of any registered method."""


class GeneralText(Stage):
    """How a general stage masks and pairs the plain text that it reads."""

    general: ClassVar[bool] = True

    masking: MaskingKind = Field(MaskingKind.NONE, description="How tokens to hide are chosen.")
    mask_share: Rate = Field(0.15, description="Share of the tokens to hide.")
    smoothing: float = Field(
        0.7,
        ge=0,
        description="With masking: frequency, rare tokens are hidden more often: weight count^-smoothing; 0 hides all "
        "alike.",
    )
    vectors: Path | None = Field(
        None,
        description="With masking: similar, a text file of word vectors (GloVe, word2vec, fastText) by which words are "
        "similar; default the teacher's own embeddings.",
    )
    pairs: bool = Field(
        False,
        description="Cut rows into two segments, of which every other second one is from elsewhere, as for "
        "next-sentence prediction.",
    )
    second: SecondSegment = Field(
        SecondSegment.ELSEWHERE,
        description="With pairs, what every other second segment is: a piece of another row (elsewhere, next-sentence "
        "prediction), or the text before the first one (swapped, sentence-order prediction).",
    )
