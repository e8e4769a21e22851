"""Method `qat`: a student learns its own fp32 answers while its numbers are rounded as in a quantized file."""

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
from pocketbert.core.families.weight_records import LearnedRanges, ProductRanges, fingerprint
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling
from pocketbert.core.recipe.stages import QatStage
from pocketbert.core.tasks import Level, Task, TaskName
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.task import counted, soft_loss
from pocketbert.distill.methods.method import CarriedPart, ExportedForm, Rival, StageJob, StageResult
from pocketbert.distill.students.fake_quantization import (
    PreparedWeights,
    Ranges,
    RoundedModule,
    clip_activations,
    prepared_weights,
)
from pocketbert.distill.teacher.signals import move_to
from pocketbert.distill.training.data import TrainData
from pocketbert.distill.training.optimizer import AdamWCourse, decay_groups

CARRIED = "learned ranges"
"""Name of what the stage hands on."""
ATTACHED = "learned_ranges"
"""Name of the submodule that holds the ranges while a student is trained: checkpoints hold it."""
SQUARED = 0.1
"""Weight of the squared error of the outputs against the divergence of their distributions."""
CALIBRATION_ROWS = 300
"""Rows that ranges are measured on before the first step."""
SELECTION_ROWS = 600
"""Most rows that decide whether the result is kept; nothing is trained on them."""


@dataclass(frozen=True)
class ChosenRows:
    """Some rows of others; satisfies `pocketbert.distill.training.data.TrainData`.

    Attributes:
        rows: All rows.
        numbers: Those that are meant.
    """

    rows: TrainData
    numbers: Sequence[int]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        lengths = self.rows.lengths  # computed anew by each access
        return [lengths[n] for n in self.numbers]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """Tensors of some rows, see `TrainData.batch`."""
        return self.rows.batch([self.numbers[n] for n in rows], step)

    def feeds(self, inputs: Sequence[str]) -> list[dict[str, Tensor]]:
        """The inputs of each row by itself, without padding, [1, L] by name."""
        singles = (self.batch([n], 0) for n in range(len(self.numbers)))
        return [{name: single[name] for name in inputs} for single in singles]


@dataclass(frozen=True)
class Division:
    """Training rows, divided by the hash of what the model reads.

    Attributes:
        training: Rows to train on.
        calibration: Some of them, on which ranges are measured.
        selection: Rows that decide whether the result is kept.
    """

    training: ChosenRows
    calibration: ChosenRows
    selection: ChosenRows


def divided(rows: TrainData, where: str) -> Division:
    """Divide rows: at most a quarter selects, the others train.

    Rows that read alike stay together, so that no text is on both sides.

    Args:
        rows: The training rows.
        where: Recipe key of the stage, for errors.

    Raises:
        InputError: If there are too few.
    """
    digests = [
        hashlib.sha256(rows.batch([n], 0)["input_ids"].numpy().tobytes()).digest() for n in range(len(rows.lengths))
    ]
    order = sorted(range(len(digests)), key=lambda n: (digests[n], n))
    size = min(SELECTION_ROWS, len(order) // 4)
    while 0 < size < len(order) and digests[order[size]] == digests[order[size - 1]]:
        size += 1
    if not 0 < size < len(order):
        what = f"{len(order)} training rows cannot be divided into rows that train and rows that select."
        raise InputError(Problem(where, what, "Give at least 4 different rows, better some hundred."))
    selection, training = order[:size], order[size:]
    parts = (sorted(training), training[:CALIBRATION_ROWS], selection)
    return Division(*(ChosenRows(rows, part) for part in parts))


class QatCourse(AdamWCourse):
    """AdamW with another learning rate for ranges, whose logarithms are trained.

    Args:
        settings: Steps and rates.
    """

    def __init__(self, settings: QatStage) -> None:
        super().__init__(settings)
        self._stage = settings

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW over matrices, vectors and ranges."""
        stage, ranges = self._stage, [*getattr(model, ATTACHED).parameters()]
        own = {id(p) for p in ranges}
        trained = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
        groups = [{**g, "part": 1.0} for g in decay_groups(trained, stage.weight_decay)]
        groups.append({"params": ranges, "weight_decay": 0.0, "part": stage.range_lr / stage.lr})
        return torch.optim.AdamW(groups, lr=stage.lr, betas=(0.9, stage.beta2), eps=stage.eps, fused=True)

    def prepare(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Give every group its learning rate, and return that of the weights."""
        rate = super().prepare(optimizer, step)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["part"]
        return rate


class QuantizedTraining:
    """Objective: KL divergence and squared error between the fp32 answers before and the rounded ones now.

    Args:
        weights: The prepared module, and how it follows the student.
        former: The module before the stage, which answers in fp32.
        rounded: The same module, computing with rounded numbers.
        family: The student's row of the family table.
        task: What the outputs are.
        stage: Rates.
        pooling: How token states become a vector, for feature-extraction.

    Attributes:
        weights: Weight of each term.
        course: AdamW with another rate for ranges.
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
        self.weights = {"logits": 1.0, "squared": SQUARED}
        self.course = QatCourse(stage)
        self._prepared, self._rounded, self._family = prepared, rounded, family
        self._task, self._pooling = task, pooling
        self._teacher = copy.deepcopy(former).eval().requires_grad_(False)

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `pocketbert.distill.losses.common.Counting`."""
        found = counted(self._task, batch)
        return dict.fromkeys(self.weights, found["logits"]) if found else {}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Terms ``logits`` and ``squared``.

        Args:
            model: The student, with its ranges attached.
            batch: The student's inputs, [B, S] each; ``labels`` where these tell which tokens count.
        """
        feed = [batch[name] for name in self._family.inputs]
        device = feed[0].device
        for module in (self._teacher, self._rounded.module):
            move_to(module, device)
        # rounding is exact in fp32 only: bf16 has fewer steps than the ranges
        with torch.autocast(device.type, enabled=False):
            with torch.no_grad():
                taught = self._named(self._teacher(*feed))
            made = self._named(self._rounded(self._prepared.of(model), getattr(model, ATTACHED), feed))
            soft = soft_loss(self._task, SimpleNamespace(**made), taught, batch, 1.0, self._pooling)
            squared = self._squared(made, taught, batch)
        return {"logits": soft, "squared": Term(squared, soft.count)}

    def _named(self, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._task.outputs, outputs, strict=True))

    def _squared(self, made: Mapping[str, Tensor], taught: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Mean squared error of the outputs, of tokens where they count."""
        parts = []
        for name in self._task.outputs:
            ours, theirs = made[name], taught[name]
            if self._task.name is TaskName.QUESTION_ANSWERING or name == "last_hidden_state":
                chosen = batch["attention_mask"] > 0
            elif self._task.level is Level.TOKEN:
                chosen = batch["labels"] != IGNORED
            else:
                parts.append(F.mse_loss(ours, theirs))
                continue
            parts.append(F.mse_loss(ours[chosen], theirs[chosen]) if bool(chosen.any()) else ours.sum() * 0.0)
        return torch.stack(parts).mean()


def train(job: StageJob[QatStage]) -> StageResult:
    """Train a stage; what it learned of ranges is handed on as `CARRIED`.

    Raises:
        InputError: If the module that the student's files are exported from cannot be trained, or there are too few rows.
        ValueError: If the caller does not say what the files are like.
    """
    if job.exported is None:
        raise ValueError("method qat trains for a file: give StageJob(exported=...)")
    pair, student, form = job.pair, job.pair.student, job.exported()
    family = pair.student_family
    student.eval()
    former, undo = None, None
    if pair.stage.activation is not None:
        former = form.prepare(student, True)
        undo = clip_activations(student, f"{pair.where}.activation")
    prepared = prepared_weights(student, form.prepare)
    if prepared is None:
        what = f"the graph of {family.title} is rewritten for {pair.stage.format} in a way that training cannot follow."
        raise InputError(Problem(pair.where, what, "Leave the stage out: post-training quantization needs none."))
    former = former or prepared.module
    parts = divided(job.rows(), pair.where)
    rounded = RoundedModule(prepared.module, form.roundings(prepared.module))
    ranges = rounded.measure([*feed.values()] for feed in parts.calibration.feeds(family.inputs))
    before = {name: value.clone() for name, value in student.state_dict().items()}
    student.add_module(ATTACHED, ranges)
    try:
        objective = QuantizedTraining(prepared, former, rounded, family, job.task, pair.stage, job.pooling)
        outcome = replace(job, rows=lambda: parts.training).fit(objective)
    finally:
        delattr(student, ATTACHED)
    exact = replace(outcome, dtype="float32")  # whatever other stages train in
    learned = learned_ranges(student.cpu(), prepared, rounded, ranges.cpu(), form, pair.stage)
    calibration, selection = (p.feeds(family.inputs) for p in (parts.calibration, parts.selection))
    verdict = form.judge(Rival(former.cpu(), student, learned, calibration, selection))
    if not verdict.kept:
        student.load_state_dict(before)
        if undo is not None:
            undo()
        return StageResult(exact, {}, (verdict.note,))
    return StageResult(exact, {CARRIED: CarriedPart({}, learned.model_dump(mode="json"))}, (verdict.note,))


def learned_ranges(
    student: Any,
    prepared: PreparedWeights,
    rounded: RoundedModule,
    ranges: Ranges,
    form: ExportedForm,
    stage: QatStage,
) -> LearnedRanges:
    """Name ranges by the weights that the student's files will hold.

    A product whose weights are rewritten otherwise than before, because other channels are outliers now, gets none: its
    range is measured as without training.

    Args:
        student: The trained student, without ranges attached.
        prepared: How the module followed it.
        rounded: The sites.
        ranges: The trained ranges.
        form: How the student is rewritten.
        stage: Scheme, format and runtime.
    """
    final = dict(form.prepare(student, True).named_parameters())
    low, high = (end.detach().tolist() for end in ranges.ends())
    ends = {site: (low[number], high[number]) for site, number in rounded.sites.items()}
    products = {}
    with torch.no_grad():
        for name, weight in prepared.of(student).items():
            product = name.removesuffix(".weight")
            own = {site.reads: ends[site] for site in rounded.learned(product) if site in ends}
            if own and torch.allclose(weight, final[name], rtol=1e-4, atol=1e-6):
                key = fingerprint(final[name].detach().cpu().numpy())
                products[key] = ProductRanges(inputs=own.get(True), outputs=own.get(False))
    return LearnedRanges(scheme=stage.scheme, format=stage.format, runtime=stage.runtime, products=products)
