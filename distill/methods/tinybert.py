"""Methods `tinybert-general`, `tinybert-intermediate` and `tinybert-prediction`: a student learns a teacher's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from pocketbert.core.errors import Problem
from pocketbert.core.families import Family
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import LayerStage, SignalWeights, TaskStage, TinyBertPredictionStage
from pocketbert.core.tasks import Task, TaskName
from pocketbert.core.types import Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.losses.common import (
    Term,
    attention_score_mse,
    hidden_mse,
    real_pairs,
    reference_score_mse,
    reference_state_mse,
    sum_over_layers,
)
from pocketbert.distill.methods import task as task_method
from pocketbert.distill.methods.method import (
    Carried,
    CarriedPart,
    StageJob,
    StageResult,
    TeacherStudent,
    invalid_signals,
    mapped_layers,
)
from pocketbert.distill.students.projection import (
    LayerProjection,
    attach_projection,
    detach_projection,
    projected,
    projection_of,
    restored_projection,
)
from pocketbert.distill.teacher.signals import OnlineTeacher, TeacherSignals, Wanted, all_states, signals_for

_SIGNALS = {"attention": Signal.ATTENTION, "hidden": Signal.HIDDEN, "embeddings": Signal.HIDDEN}
"""Term to what it needs of the teacher's family; the embeddings are hidden state 0."""


class TinyBertDistillation:
    """Objective: the layer-wise losses of TinyBERT (Jiao et al. 2020, arXiv 1909.10351, eqs. 6 to 9 and 11).

    ``L_embd + sum_m L_hidn(m) + sum_m L_attn(m)``, of general and of intermediate distillation alike. Student layer m
    learns from teacher layer ``g(m) = m * N / M``, rounded, or from the listed one: its attention scores before the softmax
    and its output. Where widths differ, the student's states pass through its projection: see `attach_projection`.

    By default a mean is over real tokens and pairs of them. With ``stage.reference`` it is over everything, as in the
    released code, and padding changes the loss. Unlike there, the teacher drops nothing out.

    Args:
        teacher: Frozen model, with or without a head; its attention implementation is switched.
        student: The model that will be trained, its projection attached; likewise.
        family: Row of the family table of the teacher.
        stage: Weights, layer map, and how means are taken.
        where: Recipe key, for errors.
        student_family: Row of the student; default the one of the table.
        signals: Where the teacher's signals come from; default the teacher beside the student.

    Raises:
        InputError: Listing everything in which the two models do not fit each other, the family or the stage.
        ValueError: If the student lacks a projection, or the signals given are not those needed.
    """

    def __init__(
        self,
        teacher: Any,
        student: Any,
        family: Family,
        stage: LayerStage,
        where: str = "distill.0",
        *,
        student_family: Family | None = None,
        signals: TeacherSignals | None = None,
    ) -> None:
        pair = TeacherStudent(teacher, student, family, stage, where)
        self.layers = check_layers(pair)
        self.stage, self.family = stage, student_family or pair.student_family
        self.depth = student.config.num_hidden_layers
        self.weights = stage.weights.weighted()
        wanted = self.wanted(stage, self.layers)
        if wanted.hidden:
            _check_projection(student, teacher.config.hidden_size)
        self.signals = signals_for(teacher, family, wanted, signals)
        if stage.reference and not isinstance(self.signals, OnlineTeacher):
            raise ValueError("reference: true averages over padding, where only the teacher itself has values")
        # Student and teacher both run through the capture, so that no implementation differs between them.
        self._student = record_attention(student, self.family, range(self.depth) if wanted.attention else ())

    @staticmethod
    def wanted(stage: LayerStage, layers: Sequence[int]) -> Wanted:
        """What a stage asks of its teacher: nothing outside the mapped layers.

        Args:
            stage: Weights of the terms.
            layers: Teacher layer (from 1) of each student layer.
        """
        weights = stage.weights
        hidden = (*((0,) if weights.embeddings > 0 else ()), *(layers if weights.hidden > 0 else ()))
        attention = tuple(n - 1 for n in layers) if weights.attention > 0 else ()
        return Wanted(outputs=False, hidden=hidden, attention=attention)

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Pairs of real tokens that ``attention`` is a mean over, real tokens for the others; for `reference`, rows."""
        mask = batch["attention_mask"]
        if self.stage.reference:
            # all rows of a step are equally wide, however they are divided
            return {name: mask.new_tensor(len(mask)) for name in self.weights}
        tokens = mask.sum()
        every = {"attention": real_pairs(mask), "hidden": tokens, "embeddings": tokens}
        return {name: every[name] for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Terms ``attention``, ``hidden``, ``embeddings``, as far as weighted; the first two are sums over layers.

        Args:
            model: The student.
            batch: The families' inputs, [B, S] each; more is ignored.
        """
        taught, mask = self.signals(batch), batch["attention_mask"]
        inputs = {name: batch[name] for name in self.family.inputs}
        states = "hidden" in self.weights or "embeddings" in self.weights
        with self._student as recorder:
            made = model(**inputs, output_hidden_states=states)
        means: dict[str, Tensor] = {}
        if "attention" in self.weights:
            means["attention"] = sum_over_layers(
                [self._scores(recorder.scores[m], taught.scores[n - 1], mask) for m, n in enumerate(self.layers)]
            )
            recorder.scores.clear()  # or they would stay until the next step's teacher has run
        if states:
            ours = all_states(made, self.depth)
        if "hidden" in self.weights:
            means["hidden"] = sum_over_layers(
                [
                    self._states(projected(model, m, ours[m]), taught.hidden[n], mask)
                    for m, n in enumerate(self.layers, 1)
                ]
            )
        if "embeddings" in self.weights:
            means["embeddings"] = self._states(projected(model, 0, ours[0]), taught.hidden[0], mask)
        counts = self.counts(batch)
        return {name: Term.of(mean, counts[name]) for name, mean in means.items()}

    def _scores(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        if self.stage.reference:
            return reference_score_mse(student, teacher)
        return attention_score_mse(student, teacher, mask)

    def _states(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        return reference_state_mse(student, teacher) if self.stage.reference else hidden_mse(student, teacher, mask)


def check_layers(pair: TeacherStudent[LayerStage]) -> list[int]:
    """Refuse models that the layer-wise losses cannot compare, with the alternatives.

    Args:
        pair: Teacher, student, weights and layer map.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: Listing everything that does not fit.
    """
    stage, where, family = pair.stage, pair.where, pair.family
    teacher, student = pair.teacher.config, pair.student.config
    terms = {name: _SIGNALS[name] for name in stage.weights.weighted()}
    problems = invalid_signals(family, terms, f"{where}.weights")
    heads = teacher.num_attention_heads
    if stage.weights.attention and student.num_attention_heads != heads:
        problems.append(
            Problem(
                f"{where}.weights.attention",
                f"the student has {student.num_attention_heads} heads, the teacher {heads}: scores are compared "
                "head by head.",
                f"Set attention: 0, or student.heads: {heads}, or use method: minilm, whose relations take any "
                "number of heads.",
            )
        )
    return mapped_layers(pair, problems)


def prediction_stage(stage: TinyBertPredictionStage, task: Task) -> TaskStage:
    """TinyBERT's prediction stage as a stage of method `task`.

    ``L_pred = CE(z_T / t, z_S / t)`` (Jiao et al. 2020, arXiv 1909.10351, eq. 10): the teacher's outputs alone, and for
    regression, as in the released code, the gold scores alone. The cross-entropy's gradient is that of the KL divergence.
    Unlike the released code's, its mean is not over classes as well, and there is a factor T^2: constants, to which Adam's
    steps are blind as long as gradients are not clipped.

    Args:
        stage: Temperature and optimisation.
        task: What the outputs are.
    """
    gold = task.name is TaskName.REGRESSION
    same = {name: getattr(stage, name) for name in Optimisation.model_fields}
    signals = SignalWeights(logits=float(not gold), hidden=0.0, attention=0.0, labels=float(gold))
    return TaskStage(method="task", temperature=stage.temperature, signals=signals, augmented=stage.augmented, **same)


def _check_projection(student: Any, teacher_width: int) -> None:
    """A student of another width without its projection is the caller's mistake, not the user's."""
    found, width = projection_of(student), student.config.hidden_size
    if (found.teacher_width if found else width) != teacher_width:
        raise ValueError(
            f"the student is {width} wide, the teacher {teacher_width}: call attach_projection(student, {teacher_width}, ...) first"
        )


def train_layers(job: StageJob[LayerStage]) -> StageResult:
    """Train a general or an intermediate stage; the projection is on the student only while it is trained."""
    pair, carried = job.pair, _projection_from(job.carried)
    width = pair.teacher.config.hidden_size
    attach_projection(pair.student, width, pair.stage.projection, job.seed, pair.where, carried=carried)
    try:
        objective = TinyBertDistillation(pair.teacher, pair.student, pair.family, pair.stage, pair.where)
        outcome = job.fit(objective)
    finally:
        trained = detach_projection(pair.student)
    return StageResult(outcome, _carrying(trained))


def train_prediction(job: StageJob[TinyBertPredictionStage]) -> StageResult:
    """Train a prediction stage: a stage of method `task` that learns only the outputs."""
    return task_method.train(job.with_stage(prediction_stage(job.pair.stage, job.task)))


_PROJECTION = "projection"


def _projection_from(carried: Carried) -> LayerProjection | None:
    """The projection that an earlier stage trained."""
    part = carried.get(_PROJECTION)
    return restored_projection(part.facts, part.tensors) if part else None


def _carrying(projection: LayerProjection | None) -> Carried:
    if projection is None:
        return {}
    tensors = {name: value.detach().cpu() for name, value in projection.state_dict().items()}
    return {_PROJECTION: CarriedPart(tensors, projection.facts)}
