"""Method `qat`: train a student for one quantized file, with the student's own fp32 outputs as targets.

`train` does it in these steps:

1. divide the training rows into rows to train on and rows to select on,
2. rewrite the student as its exporter does, and measure the activation ranges,
3. train weights and ranges with rounded numbers (`QuantizedTraining`); see
   `pocketbert.distill.students.fake_quantization`,
4. name the learned ranges by the weights of the file (`LearnedRanges`), and keep the trained student only if its
   simulated file is better than that of the student before.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.families.weight_records import LearnedRanges, ProductRanges, product_fingerprint
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling
from pocketbert.core.recipe.stages import QatStage
from pocketbert.core.tasks import Level, Task, TaskName
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.task import count_labelled_tokens, soft_loss
from pocketbert.distill.methods.method import (
    CarriedPart,
    ExportFunctions,
    MethodSource,
    StageJob,
    StageResult,
    TrainedCandidate,
)
from pocketbert.distill.methods.task import add_carried_projection
from pocketbert.distill.students.fake_quantization import (
    PreparedWeights,
    Ranges,
    RoundedModule,
    clip_activations,
    trace_prepared_weights,
)
from pocketbert.distill.teacher.signals import move_teacher
from pocketbert.distill.training.data import TrainData, make_part
from pocketbert.distill.training.optimizer import AdamWCourse, split_decay_groups

LEARNED_RANGES_PART = "learned ranges"
"""Name of the part that the stage passes to later stages: a `LearnedRanges`."""

_RANGES_MODULE = "learned_ranges"
"""Name of the student's submodule that holds the ranges during training; it is part of the training checkpoints."""
_SQUARED_WEIGHT = 0.1
"""Weight of the squared error of the outputs; the divergence of their distributions has 1."""
_CALIBRATION_ROWS = 300
"""Rows that ranges are measured on before the first step."""
_MAX_SELECTION_ROWS = 600


SOURCE = MethodSource(
    paper="straight-through gradients: Bengio et al. 2013, arXiv 1308.3432; `activation: relu6`: google-research/mobilebert",
    differences=(
        ("ranges", "trained by their gradients", "moving averages, decay 0.999, beginning at ±6"),
        ("attention scores", "stay float", "clipped to −6 … 60"),
        ("when", "last stage of a finished student", "distilled with rounding from the beginning"),
    ),
)


def train(job: StageJob[QatStage]) -> StageResult:
    """Train a student for one quantized file, and keep the trained weights only if they make the quantized file better.

    The file is simulated in torch, and both students are compared on rows that nothing was trained on. If the stage
    sets ``activation``, the student's ReLU becomes ReLU6; this too is undone if the trained student is not kept.

    Raises:
        InputError: If the module from which the student's files are exported cannot be trained, if the student's
            activation cannot be replaced, or if there are too few rows.
        ValueError: If the job has no `StageJob.exported`.
    """
    if job.exported is None:
        raise ValueError("method qat trains for a file: give StageJob(exported=...)")
    pair, student, pooling = job.pair, job.pair.student, add_carried_projection(job.pooling, job.carried)
    form = job.exported(pooling)
    family = pair.student_family
    student.eval()
    former, undo_clipping = None, None
    if pair.stage.activation is not None:
        former = form.prepare(student, True)
        undo_clipping = clip_activations(student, f"{pair.where}.activation")
    prepared = trace_prepared_weights(student, form.prepare)
    if prepared is None:
        what = f"the graph of {family.title} is rewritten for {pair.stage.format} in a way that training cannot follow."
        raise InputError(Problem(pair.where, what, "Leave the stage out: post-training quantization needs none."))
    former = former or prepared.module
    training_rows, calibration_rows, selection_rows = _divide_rows(job.rows(), pair.where)
    rounded = RoundedModule(prepared.module, form.rules_of(prepared.module))
    ranges = rounded.measure_ranges([*inputs.values()] for inputs in calibration_rows.single_inputs(family.inputs))
    before = {name: value.clone() for name, value in student.state_dict().items()}
    student.add_module(_RANGES_MODULE, ranges)
    try:
        objective = QuantizedTraining(prepared, former, rounded, family, job.task, pair.stage, pooling)
        outcome = replace(job, rows=lambda: training_rows).fit(objective)
    finally:
        delattr(student, _RANGES_MODULE)
    outcome = replace(outcome, dtype="float32")  # the objective switches autocast off
    learned = _name_ranges(student.cpu(), prepared, rounded, ranges.cpu(), form, pair.stage)
    calibration, selection = (rows.single_inputs(family.inputs) for rows in (calibration_rows, selection_rows))
    verdict = form.judge(TrainedCandidate(former.cpu(), student, learned, calibration, selection))
    if not verdict.kept:
        student.load_state_dict(before)
        if undo_clipping is not None:
            undo_clipping()
        return StageResult(outcome, {}, (verdict.note,))
    return StageResult(
        outcome, {LEARNED_RANGES_PART: CarriedPart({}, learned.model_dump(mode="json"))}, (verdict.note,)
    )


@dataclass(frozen=True)
class _RowSubset:
    """A selection of the training rows; implements `pocketbert.distill.training.data.TrainData`.

    Attributes:
        rows: All training rows.
        numbers: Row numbers of the subset.
    """

    rows: TrainData
    numbers: Sequence[int]

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        lengths = self.rows.lengths  # computed anew by each access
        return [lengths[n] for n in self.numbers]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Return the tensors of a batch by name, for row numbers counted within this subset; see `TrainData.batch`."""
        return self.part(rows, step, slice(None))

    def part(self, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
        """Return the rows `own` of the batch of `rows`; see `pocketbert.distill.training.data.make_part`."""
        return make_part(self.rows, [self.numbers[n] for n in rows], step, own)

    def single_inputs(self, names: Sequence[str]) -> list[dict[str, Tensor]]:
        """Return a mapping of the named model inputs for each row by itself, without padding, tensors [1, L]."""
        singles = (self.batch([n], 0) for n in range(len(self.numbers)))
        return [{name: single[name] for name in names} for single in singles]


def _divide_rows(rows: TrainData, where: str) -> tuple[_RowSubset, _RowSubset, _RowSubset]:
    """Divide training rows into rows to train on, rows to measure ranges on, and rows to compare students on.

    Rows are ordered by a hash of their token ids, and about a quarter, or about 600 if that is fewer, is held out for
    the comparison. Rows with the same ids stay together, so that no text is on both sides. The rows for activation
    ranges are the first 300 of those to train on, in this order.

    Returns:
        The rows to train on, those to measure ranges on, and those to compare students on.

    Raises:
        InputError: If there are too few different rows.
    """
    digests = [
        hashlib.sha256(rows.batch([n], 0)["input_ids"].numpy().tobytes()).digest() for n in range(len(rows.lengths))
    ]
    order = sorted(range(len(digests)), key=lambda n: (digests[n], n))
    size = min(_MAX_SELECTION_ROWS, len(order) // 4)
    while 0 < size < len(order) and digests[order[size]] == digests[order[size - 1]]:
        size += 1
    if not 0 < size < len(order):
        what = f"{len(order)} training rows cannot be divided into rows that train and rows that select."
        raise InputError(Problem(where, what, "Give at least 4 different rows, better some hundred."))
    selection, training = order[:size], order[size:]
    return (
        _RowSubset(rows, sorted(training)),
        _RowSubset(rows, training[:_CALIBRATION_ROWS]),
        _RowSubset(rows, selection),
    )


class QuantizedTraining:
    """Objective: make the outputs of the quantized student equal those of the fp32 student before the stage.

    The terms are the KL divergence and the squared error between the two.

    Args:
        prepared: The rewritten student, and how its weights are computed from the student's.
        former: The rewritten student before the stage, which gives the fp32 outputs.
        rounded: The rewritten student with rounded numbers.
        family: Names and inputs of the student's family.
        task: Task of the model; decides the divergence, and over which tokens it is taken.
        stage: Settings of the stage, among them the learning rates.
        pooling: How token states become a text vector, for feature extraction.

    Attributes:
        weights: Weight of each term.
        course: AdamW with a separate learning rate for ranges.
    """

    def __init__(
        self,
        prepared: PreparedWeights,
        former: nn.Module,
        rounded: RoundedModule,
        family: Family,
        task: Task,
        stage: QatStage,
        pooling: Pooling = DEFAULT_POOLING,
    ) -> None:
        self.weights = {"logits": 1.0, "squared": _SQUARED_WEIGHT}
        self.course = _QatOptimizer(stage)
        self._prepared, self._rounded, self._family = prepared, rounded, family
        self._task, self._pooling = task, pooling
        self._teacher = copy.deepcopy(former).eval().requires_grad_(False)

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of labelled tokens for both terms; empty if their means are over rows."""
        counts = count_labelled_tokens(self._task, batch)
        return dict.fromkeys(self.weights, counts["logits"]) if counts else {}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Run the fp32 student and the rounded one on a batch, and return the terms ``logits`` and ``squared``.

        Args:
            model: The student, with the activation ranges attached as a submodule.
            batch: The student's inputs, [B, S] each; ``labels`` if they mark the tokens that count.
        """
        feed = [batch[name] for name in self._family.inputs]
        device = feed[0].device
        for module in (self._teacher, self._rounded.module):
            move_teacher(module, device)
        # rounding is exact in fp32 only: bf16 has fewer steps than the ranges
        with torch.autocast(device.type, enabled=False):
            with torch.no_grad():
                expected = self._by_name(self._teacher(*feed))
            weights, ranges = self._prepared.compute(model), getattr(model, _RANGES_MODULE)
            outputs = self._by_name(self._rounded(weights, ranges, feed))
            soft = soft_loss(self._task, SimpleNamespace(**outputs), expected, batch, 1.0, self._pooling)
            squared = self._squared_error(outputs, expected, batch)
        return {"logits": soft, "squared": Term(squared, soft.count)}

    def _by_name(self, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the outputs of an exported module by the names of the task's outputs."""
        return dict(zip(self._task.outputs, outputs, strict=True))

    def _squared_error(
        self, outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the mean squared error between the outputs of the quantized and of the fp32 student.

        The mean is over real tokens for question answering and token states, over labelled tokens for token
        classification, and else over rows.
        """
        errors = []
        for name in self._task.outputs:
            actual, target = outputs[name], expected[name]
            if self._task.name is TaskName.QUESTION_ANSWERING or name == "last_hidden_state":
                chosen = batch["attention_mask"] > 0
            elif self._task.level is Level.TOKEN:
                chosen = batch["labels"] != IGNORED_LABEL
            else:
                errors.append(F.mse_loss(actual, target))
                continue
            errors.append(F.mse_loss(actual[chosen], target[chosen]) if bool(chosen.any()) else actual.sum() * 0.0)
        return torch.stack(errors).mean()


class _QatOptimizer(AdamWCourse):
    """AdamW with a separate learning rate for the activation ranges, whose logarithms are trained.

    Args:
        settings: Number of steps and learning rates.
    """

    def __init__(self, settings: QatStage) -> None:
        super().__init__(settings)
        self._stage = settings

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create AdamW with one parameter group each for matrices, vectors and activation ranges."""
        stage, ranges = self._stage, [*getattr(model, _RANGES_MODULE).parameters()]
        range_ids = {id(p) for p in ranges}
        weights = [p for p in model.parameters() if p.requires_grad and id(p) not in range_ids]
        groups = [{**group, "part": 1.0} for group in split_decay_groups(weights, stage.weight_decay)]
        groups.append({"params": ranges, "weight_decay": 0.0, "part": stage.range_lr / stage.lr})
        return torch.optim.AdamW(groups, lr=stage.lr, betas=(0.9, stage.beta2), eps=stage.eps, fused=True)

    def prepare(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set the learning rate of every parameter group for a step, and return that of the weights."""
        rate = super().prepare(optimizer, step)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["part"]
        return rate


def _name_ranges(
    student: Any,
    prepared: PreparedWeights,
    rounded: RoundedModule,
    ranges: Ranges,
    form: ExportFunctions,
    stage: QatStage,
) -> LearnedRanges:
    """Return the trained activation ranges, keyed by fingerprints of the weights in the exported file.

    The exporter divides outlier channels by factors, and training can change these factors. Where it has changed them,
    the linear layer gets no trained range, and its range is measured instead. The ranges must have been detached from
    the student before.
    """
    exported_weights = dict(form.prepare(student, True).named_parameters())
    low, high = (end.detach().tolist() for end in ranges.ends())
    range_by_site = {site: (low[number], high[number]) for site, number in rounded.sites.items()}
    products = {}
    with torch.no_grad():
        for name, weight in prepared.compute(student).items():
            sites = rounded.trained_sites(name.removesuffix(".weight"))
            learned = {site.is_input: range_by_site[site] for site in sites if site in range_by_site}
            if learned and torch.allclose(weight, exported_weights[name], rtol=1e-4, atol=1e-6):
                key = product_fingerprint(exported_weights[name].detach().cpu().numpy())
                products[key] = ProductRanges(inputs=learned.get(True), outputs=learned.get(False))
    return LearnedRanges(scheme=stage.scheme, format=stage.format, runtime=stage.runtime, products=products)
