"""Method `distilbert`: a student learns a pre-trained teacher's predictions and last hidden states on masked text.

`train` trains a stage with the objective `DistilBertDistillation`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, Objective
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.recipe.stages import DistilBertStage
from pocketbert.core.types import MaskingKind, Schedule
from pocketbert.distill.capture.outputs import LmHead, flat_indices
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.tokens import cosine_distance, masked_lm, sparse_token_soft_targets, token_soft_targets
from pocketbert.distill.methods.method import (
    Heads,
    MethodSource,
    Needs,
    StageJob,
    StageResult,
    TeacherStudent,
    find_vocabulary_mismatch,
    find_width_mismatch,
)
from pocketbert.distill.students.build import freeze_positions
from pocketbert.distill.teacher.signals import move_teacher
from pocketbert.distill.teacher.sparse import SparseTeacher, sparse_teacher
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.training.data import BatchOrder

SOURCE = MethodSource(
    paper="DistilBERT, Sanh et al. 2019, arXiv 1910.01108; huggingface/transformers-research-projects, distillation",
    published={
        "epochs": "3 of Wikipedia and books",
        "batch": "about 2,000 (5 × 50 on each of 8 GPUs)",
        "lr": 5e-4,
        "warmup": 0.05,
        "schedule": Schedule.LINEAR,
        "weight_decay": 0.0,
        "beta2": 0.98,
        "eps": 1e-6,
        "clip": 5.0,
        "temperature": 2.0,
        "weights": {"logits": 5.0, "mlm": 2.0, "cosine": 1.0},
        "masked_only": False,
        "masking": MaskingKind.FREQUENCY,
        "mask_share": 0.15,
        "smoothing": 0.7,
        "freeze_positions": True,
    },
    differences=(
        (
            "long texts",
            "cut before special tokens are added",
            "cut behind it, so that the first piece is a token shorter",
        ),
        ("batches", "of similar lengths, in windows of 64 batches", "of similar lengths, in bins of 4 tokens"),
        ("terms", "means over the whole batch", "means over each process and portion, averaged"),
        ("cosine", "`|a/|a| − b/|b||² / 2`: exactly 0 for equal states", "`1 − cos`"),
        ("students", "of class DistilBERT from a BERT teacher only", "from RoBERTa and GPT-2 too"),
    ),
)


def train(job: StageJob[DistilBertStage]) -> StageResult:
    """Train a stage of method `distilbert` on the job's rows, and return the losses.

    If the stage has ``freeze_positions``, the student's position table is frozen. If it has ``cache``, the teacher's
    predictions are computed and stored first, and training reads those.
    """
    pair, stage = job.pair, job.pair.stage
    if stage.freeze_positions:
        freeze_positions(pair.student)
    objective = DistilBertDistillation(pair.teacher, pair.student, pair.family, stage, pair.where)
    if stage.cache is not None:
        rows = job.rows()
        assert isinstance(rows, GeneralSet)
        order = BatchOrder(rows.lengths, stage.batch, job.seed, pair.where)
        objective.replay(sparse_teacher(pair.teacher, rows, order, stage, job.cache, where=f"{pair.where}.cache"))
    return StageResult(job.fit(objective))


def needs(stage: DistilBertStage, where: str) -> Needs:
    """Return the heads that a stage needs: the masked-LM head on both models, a trained one on the teacher."""
    return Needs(Heads.WORDS, words=True)


class DistilBertDistillation:
    """Objective: DistilBERT's triple loss of teacher predictions, masked words and hidden states.

    It is that of Sanh et al. 2019, arXiv 1910.01108, section 3. Teacher and student read the same masked text, and no
    segment ids, as in the released code: a teacher that has a segment table falls back to segment 0. They may be of
    different classes. Only the tokens that a loss term needs reach the vocabulary projections.

    Args:
        teacher: Masked-language model that was pre-trained; put into eval mode.
        student: Masked-language model that will be trained, not yet wrapped.
        family: Names, layer paths and inputs of the teacher's model family.
        stage: Settings: weights of the terms, temperature, and which tokens are learned.
        where: Recipe key that error messages name.

    Raises:
        InputError: Listing everything in which the two models do not fit each other or the stage; or if one of them has
            no masked-language-model head.
    """

    def __init__(
        self, teacher: Any, student: Any, family: Family, stage: DistilBertStage, where: str = "distill.0"
    ) -> None:
        _check_models(TeacherStudent(teacher, student, family, stage, where))
        self.teacher: Any | None = teacher.eval()
        self.stage, self.where = stage, where
        self.weights = stage.weights.weighted()
        self._teacher_head: LmHead | None = LmHead(teacher, "teacher")
        self._student_head = LmHead(student, "student")
        self._cached: SparseTeacher | None = None

    def replay(self, cached: SparseTeacher) -> None:
        """Use stored predictions instead of the teacher. The teacher model is released.

        Args:
            cached: The teacher's stored predictions of the masked tokens, for every step.

        Raises:
            InputError: If the stage also learns from other outputs of the teacher, or at another temperature than the
                stored predictions have.
        """
        problems, where = list[Problem](), self.where
        if not self.stage.masked_only:
            what = "a cache holds the teacher's guesses at hidden tokens only."
            problems.append(Problem(f"{where}.masked_only", what, "Set masked_only: true."))
        if "cosine" in self.weights:
            problems.append(Problem(f"{where}.weights.cosine", "a cache holds no hidden states.", "Set cosine: 0."))
        if cached.temperature != self.stage.temperature:
            what = f"{self.stage.temperature}, the cache was made with {cached.temperature}."
            problems.append(Problem(f"{where}.temperature", what, "Make the cache anew."))
        if problems:
            raise InputError(problems)
        self._cached, self.teacher, self._teacher_head = cached, None, None

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return, for each loss term, the number of tokens of a batch over which its mean is taken."""
        real, masked = batch["attention_mask"].sum(), (batch["labels"] != IGNORED_LABEL).sum()
        counts = {"logits": masked if self.stage.masked_only else real, "mlm": masked, "cosine": real}
        return {name: counts[name] for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Run both models on a batch, and return those loss terms that have a weight.

        The terms are ``logits``, ``mlm`` and ``cosine``.

        Args:
            model: The student, or its DDP wrapper.
            batch: ``input_ids``, ``attention_mask`` and ``labels``, [B, S] each; after `replay` also ``rows`` and
                ``steps``, [B]. Other entries are ignored.
        """
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        mask, labels, device = batch["attention_mask"], batch["labels"], batch["input_ids"].device
        if self.teacher is not None:
            move_teacher(self.teacher, device)
        learns_logits, no_tokens = "logits" in self.weights, torch.empty(0, dtype=torch.long, device=device)
        selected = flat_indices(mask if learns_logits and not self.stage.masked_only else labels != IGNORED_LABEL)
        output = self._student_head.run(
            model, inputs, selected if learns_logits or "mlm" in self.weights else no_tokens
        )
        if self.teacher is not None and self._teacher_head is not None and (learns_logits or "cosine" in self.weights):
            with torch.no_grad():
                taught = self._teacher_head.run(self.teacher, inputs, selected if learns_logits else no_tokens)
        terms: dict[str, Term] = {}
        if learns_logits and self._cached is not None:
            terms["logits"] = sparse_token_soft_targets(output.logits, self._cached(batch))
        elif learns_logits:
            terms["logits"] = token_soft_targets(output.logits, taught.logits, self.stage.temperature)
        if "mlm" in self.weights:
            terms["mlm"] = masked_lm(output.logits, labels.flatten()[selected])
        if "cosine" in self.weights:
            terms["cosine"] = cosine_distance(output.hidden, taught.hidden, mask)
        return terms


def _check_models(pair: TeacherStudent[DistilBertStage]) -> None:
    """Check that DistilBERT's loss can compare teacher and student; raise one InputError with all problems.

    The vocabularies must have the same size. If the loss compares logits, the model family must be one that is trained to guess
    masked tokens; if it compares hidden states (cosine), both must have the same width.
    """
    problems, key, family = list[Problem](), f"{pair.where}.weights", pair.family
    if pair.stage.weights.logits and Objective.MASKED_LM not in family.objectives:
        listed = ", ".join(family.objectives)
        what = f"{family.title} checkpoints are not trained to guess masked tokens; objectives: {listed}."
        problems.append(Problem(f"{key}.logits", what, "Set logits: 0."))
    problems += find_vocabulary_mismatch(pair)
    if pair.stage.weights.cosine:
        problems += find_width_mismatch(pair, f"{key}.cosine")
    if problems:
        raise InputError(problems)
