"""The arms of the study: students, and the stages that each learns through.

Arms that are compared have equal steps x batch on the task. Steps below are meant to fill `BASE_MINUTES` on two
cores of x86-64 with AVX-512; another `--minutes` multiplies all of them by one factor, so that comparisons stay equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from pocketbert.core.recipe.column import TeacherSection
from pocketbert.core.recipe.data import AugmentSection, DataSection
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.sections import Optimisation, Stage
from pocketbert.core.recipe.stages import (
    MiniLmStage,
    MobileBertStage,
    SignalWeights,
    TaskStage,
    TinyBertGeneralStage,
    TinyBertIntermediateStage,
    TinyBertPredictionStage,
    TransferWeights,
)
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import MobileBertSize, Transfer
from study.sources import Sources

BASE_MINUTES = 6.0
TEACHER_STEPS = 900
BATCH = 32
COPIES = 4
_TINY_STEPS, _TINY_GENERAL = 1000, 150
_WIDE_STEPS, _WIDE_GENERAL = 800, 150
_MINI_STEPS, _MINI_GENERAL, _MINI_TRANSFER = 700, 600, 450
_PARTS = 50
"""Steps are whole multiples of it, and are scaled by fiftieths: sums of stages stay equal to each other."""
_LENGTH = 128

TINY = StudentSection(layers=4, hidden=312, heads=12, intermediate=1200, init="random")
"""TinyBERT4's shape (Jiao et al. 2020, arXiv 1909.10351, section 4.2)."""
WIDE = StudentSection(layers=4, init="random")
"""4x384: as wide as the teacher."""
FIRST_LAYERS = StudentSection(layers=3, init="teacher-layers")
MINI = StudentSection(size=MobileBertSize.MINI)
"""Six MobileBERT blocks, 128 wide between and 32 within."""
AUGMENT = AugmentSection(copies=COPIES, masked_lm=False)
"""all-MiniLM-L6-v2 has no masked-language-model head: all words come from neighbours in its embedding table."""


@dataclass(frozen=True)
class Arm:
    """One student and how it learns.

    Attributes:
        name: Short name, also of its run folder.
        shows: What it is there for.
        student: Its shape and start.
        stages: What it learns through, in order, with steps for `BASE_MINUTES`.
    """

    name: str
    shows: str
    student: StudentSection
    stages: tuple[Stage, ...]

    @property
    def augmented(self) -> bool:
        """Whether a stage learns on rows with other words."""
        return any(getattr(s, "augmented", False) for s in self.stages)

    @property
    def general(self) -> bool:
        """Whether a stage learns on plain text."""
        return any(s.general for s in self.stages)

    def task_rows(self, factor: float = 1.0) -> int:
        """Steps x batch on the task."""
        return sum(s.steps * s.batch for s in self.scaled(factor) if not s.general)

    def scaled(self, factor: float) -> list[Stage]:
        """Its stages with so many times the steps, in fiftieths."""
        parts = max(1, round(_PARTS * factor))
        return [
            s.model_copy(
                update={
                    key: value // _PARTS * parts
                    for key in ("steps", "transfer_steps")
                    if (value := getattr(s, key, None))
                }
            )
            for s in self.stages
        ]


def _prediction(steps: int, augmented: bool = False) -> TinyBertPredictionStage:
    return TinyBertPredictionStage(
        method="tinybert-prediction", steps=steps, batch=BATCH, lr=3e-4, dropout=0.0, augmented=augmented
    )


def _intermediate(steps: int, augmented: bool = False) -> TinyBertIntermediateStage:
    return TinyBertIntermediateStage(
        method="tinybert-intermediate", steps=steps, batch=BATCH, lr=3e-4, dropout=0.0, augmented=augmented
    )


def _both(augmented: bool = False) -> tuple[Stage, ...]:
    """Half of the budget for the intermediate stage."""
    half = _TINY_STEPS // 2
    return _intermediate(half, augmented), _prediction(half, augmented)


def _task(steps: int) -> TaskStage:
    return TaskStage(method="task", steps=steps, batch=BATCH, lr=3e-4, dropout=0.0)


_TINY_TEXT = TinyBertGeneralStage(method="tinybert-general", steps=_TINY_GENERAL, batch=BATCH, lr=3e-4, dropout=0.0)
_RELATIONS = MiniLmStage(method="minilm", steps=_WIDE_GENERAL, batch=BATCH, lr=6e-4, dropout=0.0)


def _transfer(strategy: Transfer) -> MobileBertStage:
    """The teacher has neither heads for guesses nor as many attention heads as the student: its states alone are learnt."""
    return MobileBertStage(
        method="mobilebert",
        strategy=strategy,
        steps=_MINI_GENERAL,
        batch=BATCH,
        truth=1,
        transfer_steps=None if strategy is Transfer.AUXILIARY else _MINI_TRANSFER,
        weights=TransferWeights(attention=0),
    )


def _mini_task() -> TaskStage:
    """Outputs alone: other heads than the teacher's, and states that are not to be compared as they are."""
    signals = SignalWeights(logits=1, hidden=0, attention=0)
    return TaskStage(method="task", steps=_MINI_STEPS, batch=BATCH, lr=1e-3, dropout=0.0, signals=signals)


ARMS = (
    Arm("t4-prediction", "TinyBERT4 on the teacher's outputs alone", TINY, (_prediction(_TINY_STEPS),)),
    Arm("t4-intermediate", "half of the steps on the teacher's layers", TINY, _both()),
    Arm("t4-prediction-augmented", "outputs alone, on rows with other words", TINY, (_prediction(_TINY_STEPS, True),)),
    Arm("t4-intermediate-augmented", "layers and outputs, on rows with other words", TINY, _both(True)),
    Arm("t4-general", "TinyBERT's general stage before both", TINY, (_TINY_TEXT, *_both())),
    Arm("task-3x384", "method task from the teacher's own layers", FIRST_LAYERS, (_task(_WIDE_STEPS),)),
    Arm("m4-none", "method task from random weights", WIDE, (_task(_WIDE_STEPS),)),
    Arm("m4-minilm", "MiniLM's general stage before method task", WIDE, (_RELATIONS, _task(_WIDE_STEPS))),
    Arm("mobile-none", "MobileBERT-mini by method task from random weights", MINI, (_mini_task(),)),
    Arm(
        "mobile-auxiliary",
        "auxiliary transfer (AKT) before method task",
        MINI,
        (_transfer(Transfer.AUXILIARY), _mini_task()),
    ),
    Arm("mobile-joint", "joint transfer (JKT) before method task", MINI, (_transfer(Transfer.JOINT), _mini_task())),
    Arm(
        "mobile-progressive",
        "progressive transfer (PKT) before method task",
        MINI,
        (_transfer(Transfer.PROGRESSIVE), _mini_task()),
    ),
)


def teacher_recipe(data: Sources, seed: int, steps: int) -> Recipe:
    """The teacher that all arms of a seed share.

    Args:
        data: The study's data.
        seed: Seed of the arms too.
        steps: Steps of its fine-tuning, batch 64.
    """
    return Recipe(
        schema=1,
        name="study-teacher",
        description="The study's teacher.",
        task=TaskName.TEXT_CLASSIFICATION,
        seed=seed,
        data=_data(data),
        teacher=_teacher(steps),
    )


def arm_recipe(arm: Arm, data: Sources, seed: int, factor: float, teacher_steps: int) -> Recipe:
    """An arm as a recipe that a user could run alone.

    Args:
        arm: The arm.
        data: The study's data.
        seed: Seed of teacher and student.
        factor: Multiplies its steps.
        teacher_steps: Steps of the teacher's fine-tuning, batch 64.
    """
    section = _data(data).model_copy(
        update={"augment": AUGMENT if arm.augmented else None, "corpus": data.corpus if arm.general else None}
    )
    return Recipe(
        schema=1,
        name=f"study-{arm.name}",
        description=f"{arm.shows[0].upper()}{arm.shows[1:]}.",
        task=TaskName.TEXT_CLASSIFICATION,
        seed=seed,
        data=section,
        teacher=_teacher(teacher_steps),
        student=arm.student,
        distill=arm.scaled(factor),
    )


def _data(data: Sources) -> DataSection:
    return DataSection(train=data.train, eval=data.dev, labels=["negative", "positive"], max_length=_LENGTH)


def _teacher(steps: int) -> TeacherSection:
    return TeacherSection(model="minilm-l6", finetune=Optimisation(steps=steps, batch=64, lr=1e-4, dropout=0.0))
