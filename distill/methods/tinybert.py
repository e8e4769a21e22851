"""TinyBERT's methods: `tinybert-general` and `tinybert-intermediate` for layers, `tinybert-prediction` for outputs.

`train_layers` trains a general or an intermediate stage with the objective `TinyBertDistillation`. `train_prediction`
trains the last stage, which is a stage of method `task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from pocketbert.core.families import Family
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import LayerStage, SignalWeights, TaskStage, TinyBertPredictionStage
from pocketbert.core.tasks import Task, TaskName
from pocketbert.core.types import Projection, Schedule, Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.losses.common import (
    Term,
    attention_score_mse,
    count_token_pairs,
    hidden_mse,
    reference_score_mse,
    reference_state_mse,
    sum_over_layers,
)
from pocketbert.distill.methods import task as task_method
from pocketbert.distill.methods.method import (
    CUT_PAIRS,
    MethodSource,
    StageJob,
    StageResult,
    TeacherStudent,
    check_and_map_layers,
    find_head_mismatch,
    find_invalid_signals,
)
from pocketbert.distill.students.projection import attached_projection, projected
from pocketbert.distill.teacher.signals import (
    OnlineTeacher,
    TeacherSignals,
    Wanted,
    checked_hidden_states,
    choose_signals,
)

_SIGNALS = {"attention": Signal.ATTENTION, "hidden": Signal.HIDDEN, "embeddings": Signal.HIDDEN}
"""Signal of the teacher's family that each term learns from; the embeddings are hidden state 0."""


_PAPER = "TinyBERT, Jiao et al. 2020, arXiv 1909.10351; huawei-noah/Pretrained-Language-Model"
_OPTIMISER: dict[str, Any] = {"weight_decay": 0.01, "eps": 1e-6, "clip": "1, of each tensor"}
_BIAS = (
    "moments of AdamW",
    "divided by 1 − βᵗ",
    "not divided: step t is (1 − β₁ᵗ)/√(1 − β₂ᵗ) times as large, 6.5 times at step 10, 1.3 times at step 1,000",
)
_LAYER_LOSS: dict[str, Any] = {
    "weights": {"attention": 1.0, "hidden": 1.0, "embeddings": 1.0},
    "projection": Projection.SHARED,
    "reference": "true: means count padding up to the longest input",
}
_TEACHER = ("teacher", "without dropout, with its unchanged head", "with dropout, and a ReLU behind the pooler")
_EQUAL = ("student of the teacher's width", "no projection", "a projection too")
GENERAL_SOURCE = MethodSource(
    paper=_PAPER,
    published={
        "steps": "3 epochs of 2.5 G words, about 300,000 steps",
        "batch": 256,
        "lr": 5e-5,
        "warmup": 0.1,
        "schedule": Schedule.LINEAR,
        **_OPTIMISER,
        **_LAYER_LOSS,
        "masking": "none, but one token of each row is hidden",
        "pairs": True,
    },
    differences=(
        _BIAS,
        _TEACHER,
        _EQUAL,
        CUT_PAIRS,
        ("several processes", "train one student", "each trains its own"),
    ),
)
INTERMEDIATE_SOURCE = MethodSource(
    paper=_PAPER,
    published={
        "epochs": "20; MNLI, QQP, QNLI 10; CoLA 50",
        "batch": 32,
        "lr": 5e-5,
        "schedule": Schedule.CONSTANT,
        **_OPTIMISER,
        **_LAYER_LOSS,
    },
    differences=(_BIAS, _TEACHER, _EQUAL),
)
PREDICTION_SOURCE = MethodSource(
    paper=_PAPER,
    published={
        "epochs": "3",
        "batch": 32,
        "lr": 3e-5,
        "warmup": 0.1,
        "schedule": Schedule.LINEAR,
        **_OPTIMISER,
        "temperature": 1.0,
    },
    differences=(
        ("loss", "divergence of a row, times T²", "cross-entropy, also averaged over the classes"),
        ("checkpoint", "best on validation rows", "best on the dev rows that are reported, every 50 or 100 steps"),
        _BIAS,
    ),
)


def train_layers(job: StageJob[LayerStage]) -> StageResult:
    """Train a student on the outputs of the teacher's layers (TinyBERT's general and intermediate distillation).

    If the models' widths differ, a projection to the teacher's width is trained with the student, and passed on to
    later stages. It is a submodule of the student only during training. If the stage sets ``reference``, batches are
    padded to the longest input, as in the released code.
    """
    pair = job.pair
    task_method.attach_carried_projection(job, pair.stage.projection)
    try:
        objective = TinyBertDistillation(pair.teacher, pair.student, pair.family, pair.stage, pair.where)
        outcome = job.fit(objective, pads_fully=pair.stage.reference)
    finally:
        carried = task_method.detach_carried_projection(pair.student)
    return StageResult(outcome, carried)


def train_prediction(job: StageJob[TinyBertPredictionStage]) -> StageResult:
    """Train a stage of method `tinybert-prediction`, on the teacher's outputs alone, as a stage of method `task`.

    For regression the student learns from the gold scores alone. Each of several heads learns as if it were the only
    one.
    """
    signal_of = {head.name: "labels" if _learns_gold(head.task) else "logits" for head in job.task.heads}
    weights = {f"{signal_of[head.name]}.{head.name}": head.weight for head in job.task.heads}
    return task_method.train(job.with_stage(_to_task_stage(job.pair.stage, job.task)), weights or None)


def _learns_gold(task: Task) -> bool:
    """Return whether the student of a `tinybert-prediction` stage learns from the gold labels, not from the teacher."""
    return task.name is TaskName.REGRESSION


def _to_task_stage(stage: TinyBertPredictionStage, task: Task) -> TaskStage:
    """Return the settings of a `tinybert-prediction` stage as settings of method `task`.

    ``L_pred = CE(z_T / t, z_S / t)`` (Jiao et al. 2020, arXiv 1909.10351, eq. 10) learns only from the teacher's
    outputs; for regression, as in the released code, the student learns only from the gold scores. The cross-entropy's
    gradient is that of the KL divergence. Unlike in the released code, the mean is not over classes as well, and there
    is a factor T^2: constant factors, which do not change Adam's steps as long as gradients are not clipped.
    """
    gold = {_learns_gold(head.task) for head in task.heads} or {_learns_gold(task)}
    optimisation = {name: getattr(stage, name) for name in Optimisation.model_fields}
    signals = SignalWeights(logits=float(False in gold), hidden=0.0, attention=0.0, labels=float(True in gold))
    return TaskStage(
        method="task", temperature=stage.temperature, signals=signals, augmented=stage.augmented, **optimisation
    )


class TinyBertDistillation:
    """Objective: the layer-wise losses of TinyBERT (Jiao et al. 2020, arXiv 1909.10351, eqs. 6 to 9 and 11).

    The loss is ``L_embd + sum_m L_hidn(m) + sum_m L_attn(m)``, in general and in intermediate distillation. Student
    layer m learns from teacher layer ``g(m) = m * N / M``, rounded, or from the one that the stage lists: from its
    attention scores before the softmax and its output. If widths differ, the student's states pass through its
    projection: see `attach_projection`. By default means are over real tokens and pairs of them. With
    ``stage.reference`` they are over padding too, so that the loss is that of the released code if batches are padded
    as there, to one length. Unlike there, the teacher runs without dropout.

    Args:
        teacher: Frozen model, with or without a head; its attention is replaced by one that records.
        student: The model that will be trained, with its projection attached; its attention is replaced too.
        family: Names, layer paths and inputs of the teacher's model family.
        stage: Settings: weights of the terms, layer map, and how means are taken.
        where: Recipe key that error messages name.
        student_family: Model family of the student; default by its model type.
        signals: Source of the teacher's signals; default the teacher itself, run on every batch.

    Raises:
        InputError: Listing everything in which the two models do not fit each other, the family or the stage.
        ValueError: If the student needs a projection and has none, if `signals` lacks a signal that is learned, or if
            ``stage.reference`` is set and `signals` is not the running teacher.
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
        self.layers = _check_layers(pair)
        self.stage, self.family = stage, student_family or pair.student_family
        self.depth = student.config.num_hidden_layers
        self.weights = stage.weights.weighted()
        wanted = self.wanted(stage, self.layers)
        projection, teacher_width = attached_projection(student), teacher.config.hidden_size
        width = student.config.hidden_size
        if wanted.hidden and (projection.teacher_width if projection else width) != teacher_width:
            # the caller's mistake, not the user's: `train_layers` attaches one
            raise ValueError(
                f"the student is {width} wide, the teacher {teacher_width}: "
                f"call attach_projection(student, {teacher_width}, ...) first"
            )
        self.signals = choose_signals(teacher, family, wanted, signals)
        if stage.reference and not isinstance(self.signals, OnlineTeacher):
            raise ValueError("reference: true averages over padding, where only the teacher itself has values")
        # Student and teacher both run through the capture, so that no implementation differs between them.
        self._student = record_attention(student, self.family, range(self.depth) if wanted.attention else ())

    @staticmethod
    def wanted(stage: LayerStage, layers: Sequence[int]) -> Wanted:
        """Return which hidden states and attention scores of the mapped teacher layers the weighted terms need.

        Args:
            stage: Weights of the terms: a signal is wanted if a term that learns from it has a weight.
            layers: Teacher layer (from 1) of each student layer.
        """
        weights = stage.weights
        hidden = (*((0,) if weights.embeddings > 0 else ()), *(layers if weights.hidden > 0 else ()))
        attention = tuple(n - 1 for n in layers) if weights.attention > 0 else ()
        return Wanted(outputs=False, hidden=hidden, attention=attention)

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Count the items of a batch over which each loss term is a mean, and return the counts by the term's name.

        They are pairs of real tokens for ``attention``, real tokens for ``hidden`` and ``embeddings``; if the stage
        sets ``reference``, they are rows for all terms.
        """
        mask = batch["attention_mask"]
        if self.stage.reference:
            # all rows of a step are equally wide, however they are divided
            return {name: mask.new_tensor(len(mask)) for name in self.weights}
        tokens = mask.sum()
        counts = {"attention": count_token_pairs(mask), "hidden": tokens, "embeddings": tokens}
        return {name: counts[name] for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Run both models on a batch, and return those loss terms that have a weight.

        The terms are ``attention`` and ``hidden``, which are sums over the student's layers, and ``embeddings``.

        Args:
            model: The student.
            batch: The families' inputs, [B, S] each; other entries are ignored.
        """
        taught, mask = self.signals(batch), batch["attention_mask"]
        inputs = {name: batch[name] for name in self.family.inputs}
        learns_states = "hidden" in self.weights or "embeddings" in self.weights
        with self._student as recorder:
            output = model(**inputs, output_hidden_states=learns_states)
        means: dict[str, Tensor] = {}
        if "attention" in self.weights:
            errors = [
                self._score_error(recorder.scores[m], taught.scores[n - 1], mask) for m, n in enumerate(self.layers)
            ]
            means["attention"] = sum_over_layers(errors)
            recorder.scores.clear()  # or they would stay in memory until the next step's teacher has run
        if learns_states:
            states = checked_hidden_states(output, self.depth)
        if "hidden" in self.weights:
            errors = [
                self._state_error(projected(model, m, states[m]), taught.hidden[n], mask)
                for m, n in enumerate(self.layers, 1)
            ]
            means["hidden"] = sum_over_layers(errors)
        if "embeddings" in self.weights:
            means["embeddings"] = self._state_error(projected(model, 0, states[0]), taught.hidden[0], mask)
        counts = self.counts(batch)
        return {name: Term.of(mean, counts[name]) for name, mean in means.items()}

    def _score_error(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        """Return the mean squared error of two layers' attention scores.

        If the stage sets ``reference``, it is computed as in the released code, with padding in the mean.
        """
        if self.stage.reference:
            return reference_score_mse(student, teacher)
        return attention_score_mse(student, teacher, mask)

    def _state_error(self, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        """Return the mean squared error of two hidden states.

        If the stage sets ``reference``, it is computed as in the released code, with padding in the mean.
        """
        return reference_state_mse(student, teacher) if self.stage.reference else hidden_mse(student, teacher, mask)


def _check_layers(pair: TeacherStudent[LayerStage]) -> list[int]:
    """Check that the layers of two models can be compared, and return the teacher layer (from 1) of each student layer.

    Raises one InputError that lists all problems, each with what to set instead.
    """
    weights, key = pair.stage.weights, f"{pair.where}.weights"
    problems = find_invalid_signals(pair.family, {name: _SIGNALS[name] for name in weights.weighted()}, key)
    if weights.attention:
        heads = pair.teacher.config.num_attention_heads
        fix = (
            f"Set attention: 0, or student.heads: {heads}, or use method: minilm, "
            "whose relations take any number of heads."
        )
        problems += find_head_mismatch(pair, f"{key}.attention", ": scores are compared head by head", fix)
    return check_and_map_layers(pair, problems)
