"""Method `pretrain`: a masked-language model learns from plain text alone, without a teacher's signals.

`train` trains a stage with the objective `Pretraining`, BERT's loss. It makes an IB-BERT, MobileBERT's teacher, from
random weights, and goes on with any encoder on texts of a field.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.recipe.stages import PretrainStage
from pocketbert.core.types import MaskingKind, Schedule
from pocketbert.distill.capture.outputs import LmHead, flat_indices
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.tokens import masked_lm, next_sentence
from pocketbert.distill.methods.method import CUT_PAIRS, Heads, MethodSource, Needs, StageJob, StageResult
from pocketbert.distill.text.pairs import NEXT_SENTENCE_LABEL
from pocketbert.distill.training.optimizer import AdamWCourse, Course, Lamb, split_decay_groups

SOURCE = MethodSource(
    paper="BERT, Devlin et al. 2019, arXiv 1810.04805; in large batches You et al. 2020, arXiv 1904.00962",
    published={
        "steps": "1,000,000; IB-BERT 500,000",
        "batch": 256,
        "lr": 1e-4,
        "warmup": 0.01,
        "schedule": Schedule.LINEAR,
        "weight_decay": 0.01,
        "eps": 1e-6,
        "optimizer": "adamw; IB-BERT lamb, batch 4,096",
        "masking": MaskingKind.DYNAMIC,
        "mask_share": 0.15,
        "pairs": True,
    },
    differences=(
        ("masks", "drawn anew at every step", "drawn once, ten times over"),
        CUT_PAIRS,
        ("moments of AdamW", "divided by 1 − βᵗ", "not divided"),
        ("lengths", "one for all steps", "BERT: 128 tokens for nine tenths of the steps, then 512"),
    ),
)


def train(job: StageJob[PretrainStage]) -> StageResult:
    """Train the student's encoder and its pre-training heads on plain text; the teacher does not run."""
    pair = job.pair
    objective = Pretraining(pair.student, pair.student_family, pair.stage.pairs, pair.where)
    if pair.stage.optimizer == "lamb":
        objective.course = _LambCourse(pair.stage)
    return StageResult(job.fit(objective))


def needs(stage: PretrainStage, where: str) -> Needs:
    """Return which pre-training heads the student needs. The teacher does not run: only its vocabulary is used."""
    return Needs(Heads.WORDS_AND_PAIRS if stage.pairs else Heads.WORDS)


class _LambCourse(AdamWCourse):
    """LAMB with the learning rates of `AdamWCourse`."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create a LAMB optimizer over a model's trainable weights."""
        own, trained = self._settings, [p for p in model.parameters() if p.requires_grad]
        return Lamb(split_decay_groups(trained, own.weight_decay), own.lr, (0.9, own.beta2), own.eps)


class Pretraining:
    """Objective: BERT's pre-training loss ``L_MLM + L_NSP`` (Devlin et al. 2019, arXiv 1810.04805), also for IB-BERT.

    Only masked tokens reach the vocabulary projection.

    Args:
        model: The model to train, not yet wrapped. It has the masked-LM head and, with `next_sentence`, the
            next-sentence head.
        family: Names and inputs of the model's family.
        next_sentence: Whether next-sentence prediction is trained too; batches then come from
            `pocketbert.distill.text.pairs.GeneralSet` with pairs.
        where: Name of the model, for errors.

    Attributes:
        weights: ``mlm``, and ``next_sentence`` if it is trained; 1 each.

    Raises:
        InputError: If the model lacks a head that is trained.
    """

    course: Course
    """Optimizer and learning rates, if they are not those of AdamW."""

    def __init__(self, model: Any, family: Family, next_sentence: bool = True, where: str = "model") -> None:
        self.family, self._head = family, LmHead(model, where)
        if next_sentence and not self._head.has_next_sentence:
            fix = f"Load it as {family.classes}ForPreTraining, or set pairs: false (next_sentence=False)."
            raise InputError(Problem(where, f"{type(model).__name__} has no next-sentence head.", fix))
        self.weights = {"mlm": 1.0, **({"next_sentence": 1.0} if next_sentence else {})}

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return, for each term, its items in a batch: masked tokens, or text pairs; see `losses.common.Counting`."""
        labels = {"mlm": "labels", "next_sentence": NEXT_SENTENCE_LABEL}
        return {name: (batch[labels[name]] != IGNORED_LABEL).sum() for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Run the model on a batch, and return the terms ``mlm`` and, if it is trained, ``next_sentence``.

        Args:
            model: The model, or its DDP wrapper.
            batch: The family's inputs (with masked tokens) and ``labels`` (original ids of the masked tokens, else
                -100), [B, S] each; with next-sentence prediction also ``next_sentence_label``, [B]. Other entries are
                ignored.
        """
        inputs = {name: batch[name] for name in self.family.inputs}
        masked = flat_indices(batch["labels"] != IGNORED_LABEL)
        output = self._head.run(model, inputs, masked)
        terms = {"mlm": masked_lm(output.logits, batch["labels"].flatten()[masked])}
        if output.next_sentence is not None and "next_sentence" in self.weights:
            terms["next_sentence"] = next_sentence(output.next_sentence, batch[NEXT_SENTENCE_LABEL])
        return terms
