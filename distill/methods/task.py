"""Method `task`: a student learns a fine-tuned teacher's logits, hidden states and attention, and gold labels.

`train` trains a stage with the objective `TaskDistillation`. `Finetune` is the objective that trains a teacher on gold
labels.

A student of another width than its teacher learns hidden states and text vectors through a projection, which later
stages go on training (`attach_carried_projection`). The finished student has it only for text vectors, as a layer
behind its pooling (`add_carried_projection`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.host.hardware import default_threads
from pocketbert.core.host.progress import print_note
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling
from pocketbert.core.recipe.stages import TaskStage
from pocketbert.core.tasks import SENTENCE_EMBEDDING, Task, TaskName
from pocketbert.core.types import Projection, Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.losses.common import Term, attention_kl, hidden_mse, mean_over_layers
from pocketbert.distill.losses.task import (
    contrastive_loss,
    count_labelled_tokens,
    gold_terms,
    head_weights,
    make_vectors,
    margin_loss,
    order_loss,
    soft_terms,
)
from pocketbert.distill.methods.method import (
    CarriedPart,
    CarriedParts,
    MethodSource,
    StageJob,
    StageResult,
    TeacherStudent,
    find_head_mismatch,
    find_invalid_signals,
    find_width_mismatch,
    map_layers,
)
from pocketbert.distill.students.projection import (
    add_projection,
    attach_projection,
    attached_projection,
    detach_projection,
    find_vector_projection,
    projected,
    restore_projection,
)
from pocketbert.distill.teacher.cache import cached_teacher
from pocketbert.distill.teacher.signals import (
    OnlineTeacher,
    TeacherSignals,
    TwoTokenizerSet,
    Wanted,
    checked_hidden_states,
    choose_signals,
    select_teacher_inputs,
)
from pocketbert.distill.training.data import TrainData

SOURCE = MethodSource(
    paper="this project's: outputs as in Hinton et al. 2015, arXiv 1503.02531; states as in TinyBERT, attention as in MiniLM",
    published={"temperature": "chosen for each task"},
    differences=(("states", "means over tokens and layers", "TinyBERT: sums over layers"),),
)


def train(job: StageJob[TaskStage], weights: dict[str, float] | None = None) -> StageResult:
    """Train a stage of method `task` on the job's rows, and return the losses.

    If the job has the teacher's answers (`StageJob.answers`), the student learns from them and no teacher runs, except for heads
    without a column. If the stage sets ``cache_teacher``, the teacher's outputs are computed and stored first.

    Args:
        job: The stage's job.
        weights: Weight of each term by its name, where several heads do not all learn from the same signals; None for
            the weights of the stage's signals.
    """
    pair, stage = job.pair, job.pair.stage
    runs_model = job.answers is None or any(head.learns_from == "model" for head in job.task.heads)
    if not runs_model:  # its sizes and its family do not matter
        pair = replace(pair, teacher=pair.student, family=pair.student_family)
    embeds = job.task.name is TaskName.FEATURE_EXTRACTION
    # vectors that are learnt at the student's own width have no projection, that of an earlier stage neither
    is_own_width = embeds and (job.answers is not None or job.reduced is not None)
    dropped = (_PROJECTION,) if is_own_width else ()
    job = replace(job, carried={name: part for name, part in job.carried.items() if name not in dropped})
    needs_width = stage.signals.logits or _PROJECTION in job.carried or any(n.weights for n in job.pooling.layers)
    if stage.signals.hidden or (embeds and needs_width and not is_own_width):
        attach_carried_projection(replace(job, pair=pair), None)
    try:
        objective = TaskDistillation(
            *(pair.teacher, pair.student, pair.family, job.task, stage, pair.where),
            pooling=job.pooling,
            signals=job.reduced if runs_model else job.answers,
        )
        objective.weights = objective.weights if weights is None else weights
        if stage.cache_teacher:
            wanted, where = objective.signals.wanted, f"{pair.where}.cache_teacher"
            half, rows = stage.cache_teacher == "fp16", job.rows()
            taught = rows.teacher if isinstance(rows, TwoTokenizerSet) else rows
            objective.signals = cached_teacher(
                pair.teacher, pair.family, taught, wanted, job.cache, half=half, where=where
            )
        if runs_model and job.answers is not None:
            objective.signals = job.answers.with_model(objective.signals)
        has_projection = embeds and not is_own_width and attached_projection(pair.student) is not None
        if has_projection and _PROJECTION not in job.carried:
            _fit_projection(pair, job.rows(), job.pooling)
        outcome = job.fit(objective)
    finally:
        carried = detach_carried_projection(pair.student)
    return StageResult(outcome, {} if is_own_width else carried, dropped=dropped)


# --- the projection of a student of another width ---

_PROJECTION = "projection"
"""Name of the part that a stage passes on."""
_FITTED_ROWS, _FITTED_BATCH = 1008, 48
"""Most rows that a projection is fitted on, and rows per forward pass: multiples of pairs and triplets."""
_RCOND = 0.03
"""Smallest singular value that the fit uses, as a part of the largest."""


def attach_carried_projection(job: StageJob[Any], kind: Projection | None) -> None:
    """Attach the projection that an earlier stage trained, or a new one, to a student not as wide as its teacher.

    A student of the teacher's width gets none.

    Args:
        job: The stage's job.
        kind: Whether there is one map for all states or one for each; None for that of the earlier stage, else one.

    Raises:
        InputError: If the earlier stage's projection is of another kind or size.
    """
    part, pair = job.carried.get(_PROJECTION), job.pair
    earlier = restore_projection(part.facts, part.tensors) if part else None
    kind = kind or (earlier.kind if earlier else Projection.SHARED)
    attach_projection(pair.student, pair.teacher.config.hidden_size, kind, job.seed, pair.where, carried=earlier)


def detach_carried_projection(student: Any) -> CarriedParts:
    """Remove the projection from a student, and return it for later stages; empty if there is none."""
    projection = detach_projection(student)
    if projection is None:
        return {}
    tensors = {name: value.detach().cpu() for name, value in projection.state_dict().items()}
    return {_PROJECTION: CarriedPart(tensors, projection.facts)}


def keep_projection(carried: CarriedParts, teacher: Any, student: Any) -> CarriedParts:
    """Return the projection that an earlier run trained with a student if it fits this student and this teacher.

    The result is empty if there is none or it does not fit. If there is one, a printed line says whether it goes on.
    """
    part = carried.get(_PROJECTION)
    if part is None:
        return {}
    facts, config, width = part.facts, student.config, teacher.config.hidden_size
    why_not = ""
    if (facts["width"], facts["layers"]) != (config.hidden_size, config.num_hidden_layers):
        why_not = f"this student has {config.num_hidden_layers} layers {config.hidden_size} wide"
    elif facts["teacher_width"] != width:
        why_not = f"this teacher is {width} wide"
    said = f"is left out, {why_not}" if why_not else "goes on"
    print_note(f"  student.model: its projection from {facts['width']} to {facts['teacher_width']} numbers {said}")
    return {} if why_not else {_PROJECTION: part}


def add_carried_projection(pooling: Pooling, carried: CarriedParts) -> Pooling:
    """Return a student's pooling: the teacher's with the trained projection, if there is any, before its layers."""
    part = carried.get(_PROJECTION)
    return add_projection(pooling, None if part is None else restore_projection(part.facts, part.tensors))


@torch.no_grad()
def _fit_projection(pair: TeacherStudent[Any], rows: TrainData, pooling: Pooling) -> None:
    """Initialise a student's projection by least squares from its pooled states to the teacher's, over up to 1,008 rows.

    It is computed with the training loop's number of threads, so that a resumed run starts from the same weights.
    """
    torch.set_num_threads(default_threads())
    student, pooling = pair.student.eval(), replace(pooling, layers=())
    teacher, device = OnlineTeacher(pair.teacher, pair.family, Wanted()), next(student.parameters()).device
    own, taught = list[Tensor](), list[Tensor]()
    count = min(_FITTED_ROWS, len(rows.lengths))
    for start in range(0, count, _FITTED_BATCH):
        batch = rows.batch([*range(start, min(start + _FITTED_BATCH, count))], 0)
        batch = {name: value.to(device) for name, value in batch.items()}
        output = student(**{name: batch[name] for name in pair.student_family.inputs})
        teacher_states = teacher(batch).outputs["last_hidden_state"].to(device)
        pairs = (own, output.last_hidden_state, batch), (taught, teacher_states, select_teacher_inputs(batch))
        for pooled, states, inputs in pairs:
            vectors = make_vectors(states, inputs["attention_mask"], pooling)
            pooled.append(vectors.view(-1, states.shape[-1]).cpu().double())
    x, y = torch.cat(own), torch.cat(taught)
    # without the directions in which the student's texts hardly differ: their factors would be huge
    weight = torch.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=_RCOND, driver="gelsd").solution.T
    linear = find_vector_projection(student)
    assert linear is not None
    linear.weight.copy_(weight)
    linear.bias.copy_(y.mean(0) - weight @ x.mean(0))


# --- the objective ---


class TaskDistillation:
    """Objective: the weighted sum of losses on the task's text: logits, hidden states, attention, labels, rankings.

    The last teacher layer that the student learns from need not be the teacher's last. No attention scores are computed
    in layers that no term needs.

    Args:
        teacher: Frozen model with a head. Its attention is replaced by one that records, if attention is learned.
        student: The model that will be trained; its attention is replaced by one that records.
        family: Names, layer paths and inputs of the teacher's model family.
        task: Task of the model; decides the loss of the outputs.
        stage: Settings: temperature, weights of the terms, and layer map.
        where: Recipe key that error messages name.
        pooling: How token states become a text vector, for feature extraction.
        signals: Source of the teacher's signals; default the teacher itself, run on every batch. A pooling is for the teacher itself:
            how its token states become a vector of the student's width (`StageJob.reduced`).

    Raises:
        InputError: If a weighted term is not possible with the model family, the task or the models' sizes, or the
            listed layers do not fit.
    """

    def __init__(
        self,
        teacher: Any,
        student: Any,
        family: Family,
        task: Task,
        stage: TaskStage,
        where: str = "distill.0",
        *,
        pooling: Pooling = DEFAULT_POOLING,
        signals: TeacherSignals | Pooling | None = None,
    ) -> None:
        self.task, self.stage, self.pooling = task, stage, pooling
        self._reduced = signals if isinstance(signals, Pooling) else None
        pair = TeacherStudent(teacher, student, family, stage, where)
        self.family = pair.student_family
        self.depth = student.config.num_hidden_layers
        _check_signals(pair, task, has_vectors_of_width=self._reduced is not None)
        self.layers = [] if stage.by_text and not stage.layers else map_layers(pair, stage.signals.attention > 0)
        self._learned = frozenset(stage.signals.weighted())
        self.weights = head_weights(task, stage.signals.weighted())
        wanted = self.wanted(stage, self.layers)
        self.signals = choose_signals(teacher, family, wanted, None if isinstance(signals, Pooling) else signals)
        # Student and teacher both run through the capture, so that no implementation differs between them.
        self._student = record_attention(student, self.family, range(self.depth) if wanted.attention else ())

    @staticmethod
    def wanted(stage: TaskStage, layers: Sequence[int]) -> Wanted:
        """Return which outputs, hidden states and attention scores of the teacher the weighted terms need.

        Args:
            stage: Weights of the terms: a signal is wanted if the term that learns from it has a weight.
            layers: Teacher layer (from 1) of each student layer.
        """
        signals = stage.signals
        return Wanted(
            outputs=signals.logits > 0,
            hidden=tuple(layers) if signals.hidden > 0 else (),
            attention=tuple(n - 1 for n in layers) if signals.attention > 0 else (),
        )

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of items of a batch for each term whose mean is not over all rows; see `Counting`.

        The items are tokens, or for ``labels`` the rows with a label.
        """
        tokens = batch["attention_mask"].sum()
        counts = {**count_labelled_tokens(self.task, batch), "hidden": tokens, "attention": tokens}
        return {name: counts[name] for name in self.weights if name in counts}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Run student and teacher on a batch, and return the terms that have a weight.

        They are those of `SignalWeights` whose weight is above 0. With several heads, ``labels`` and ``logits`` have a
        term for each head, such as ``logits.intent``.
        """
        learns_hidden = Signal.HIDDEN.value in self._learned
        taught = self.signals(batch)
        with self._student:
            output = model(**{name: batch[name] for name in self.family.inputs}, output_hidden_states=learns_hidden)
        terms, mask = dict[str, Term](), batch["attention_mask"]
        tokens, outputs = mask.sum(), dict(taught.outputs)
        projection = find_vector_projection(model) if self._reduced is None else None
        if Signal.LOGITS.value in self._learned:
            if self._reduced is not None:
                teacher_mask = select_teacher_inputs(batch)["attention_mask"]
                outputs[SENTENCE_EMBEDDING] = make_vectors(outputs["last_hidden_state"], teacher_mask, self._reduced)
            soft = self.stage.temperature, self.pooling, projection
            terms |= soft_terms(self.task, output, outputs, batch, *soft)
        if learns_hidden:
            states = checked_hidden_states(output, self.depth)
            pairs = [(projected(model, m, states[m]), taught.hidden[n]) for m, n in enumerate(self.layers, 1)]
            errors = [hidden_mse(own, teacher_state, mask) for own, teacher_state in pairs]
            terms["hidden"] = Term.of(mean_over_layers(errors), tokens)
        if Signal.ATTENTION.value in self._learned:
            scores = self._student.scores
            divergences = [attention_kl(scores[m], taught.scores[n - 1], mask) for m, n in enumerate(self.layers)]
            terms["attention"] = Term.of(mean_over_layers(divergences), tokens)
        if "labels" in self._learned:
            if self.task.name is TaskName.FEATURE_EXTRACTION:
                terms["labels"] = order_loss(output, batch, self.pooling, projection)
            else:
                terms |= gold_terms(self.task, output, batch)
        if "margins" in self._learned:
            terms["margins"] = margin_loss(output, batch, self.pooling, projection)
        if "negatives" in self._learned:
            terms["negatives"] = contrastive_loss(output, batch, self.pooling, projection)
        return {name: term for name, term in terms.items() if name in self.weights}


def _check_signals(pair: TeacherStudent[TaskStage], task: Task, has_vectors_of_width: bool) -> None:
    """Check that family, task and sizes allow all loss terms that have a weight; raise InputError with all problems.

    `has_vectors_of_width` says whether the teacher's vectors get the student's width, whatever the widths of the models.
    """
    signals, key = pair.stage.signals, f"{pair.where}.signals"
    widths = pair.student.config.hidden_size, pair.teacher.config.hidden_size
    problems = find_invalid_signals(pair.family, {s.value: s for s in signals.active()}, key)
    is_projected = attached_projection(pair.student) is not None
    is_wrong = widths[0] != widths[1] and not is_projected and not has_vectors_of_width
    if task.name is TaskName.FEATURE_EXTRACTION and signals.logits and is_wrong:
        what = f"the student's vectors have {widths[0]} numbers, the teacher's {widths[1]}."
        fix = (
            "Give the student the teacher's width; or set logits: 0 and learn from pairs: the order of scores with labels: 1, "
            "margins with margins: 1, or which texts belong together with negatives: 1."
        )
        problems.append(Problem(f"{key}.logits", what, fix))
    if signals.hidden and not is_projected:
        problems += find_width_mismatch(pair, f"{key}.hidden")
    if signals.attention:
        problems += find_head_mismatch(pair, f"{key}.attention")
    if problems:
        raise InputError(problems)


@dataclass
class Finetune:
    """Objective: the task's loss against gold labels, to train a teacher.

    Attributes:
        family: Family of the model; decides which inputs it is given.
        task: Task of the model, such as classification; decides the loss.
        weights: Weight of the one term, ``labels``, by default 1. With several heads it is multiplied by the weight of each, and
            becomes that of the head's own term, such as ``labels.intent``.
    """

    family: Family
    task: Task
    weights: dict[str, float] = field(default_factory=lambda: {"labels": 1.0})

    def __post_init__(self) -> None:
        self.weights = head_weights(self.task, self.weights)

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled tokens in a batch if the loss is a mean over tokens, else an empty mapping.

        If the loss is a mean over rows and some rows have no label, it is the number of labelled rows. With several
        heads, the numbers are those of each head's term.
        """
        return count_labelled_tokens(self.task, batch)

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Run the model on a batch, and return its loss against the gold labels as `gold_terms`."""
        output = model(**{name: batch[name] for name in self.family.inputs})
        return gold_terms(self.task, output, batch)
