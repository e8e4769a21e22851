"""Method `replaced-tokens`: a student learns to detect the tokens that a generator replaced, as ELECTRA.

`train` loads the generator and trains a stage with the objective `ReplacedTokens`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Objective
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.stages import ReplacedTokensStage
from pocketbert.core.seeds import generator as random_generator
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import MaskingKind, Schedule
from pocketbert.distill.capture.outputs import LmHead, flat_indices
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.tokens import masked_lm, replaced_soft_targets, replaced_tokens
from pocketbert.distill.methods.method import Heads, MethodSource, Needs, StageJob, StageResult, TeacherStudent
from pocketbert.distill.teacher.signals import move_teacher
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.text.tokenizer import read_vocabulary
from pocketbert.distill.training.data import ROW_NUMBERS, STEP_NUMBERS

_GENERATOR_MODULE = "token_generator"
"""Name of the student's submodule that holds the generator during training; it is part of the training checkpoints."""
_HEAD = "ForPreTraining"


SOURCE = MethodSource(
    paper="ELECTRA, Clark et al. 2020, arXiv 2003.10555",
    published={
        "steps": "1,000,000 (small)",
        "batch": 128,
        "lr": 5e-4,
        "warmup": 0.01,
        "schedule": Schedule.LINEAR,
        "weight_decay": 0.01,
        "eps": 1e-6,
        "mask_share": 0.15,
        "masking": MaskingKind.DYNAMIC,
        "weights": "generator 1, replaced 50; there is no teacher",
    },
    differences=(
        ("embeddings", "of generator and student apart", "shared"),
        ("moments of AdamW", "divided by 1 − βᵗ", "not divided"),
        ("start", "a trained generator, and a student that may start from its teacher", "both from random weights"),
    ),
)


def train(job: StageJob[ReplacedTokensStage]) -> StageResult:
    """Train a stage of method `replaced-tokens` with its generator, which is removed from the student afterwards.

    Raises:
        InputError: If the models do not fit the method, or the generator has another vocabulary than the teacher.
    """
    pair, stage = job.pair, job.pair.stage
    _check_models(pair)
    rows = job.rows()
    assert isinstance(rows, GeneralSet)
    where = f"{pair.where}.generator.model"
    source = open_model_folder(stage.generator.model, stage.generator.revision, where)
    generator = load_model(source, TASKS[TaskName.FILL_MASK]).train()
    mask_id = rows.tokenizer.mask_id
    id_of_token = {rows.tokenizer.token(i): i for i in rows.tokenizer.ids}
    if mask_id is None or read_vocabulary(source.path) != id_of_token:
        what = f"'{source.title}' has another vocabulary than the teacher: its tokens would mean other words."
        raise InputError(Problem(where, what, "Name the generator that was trained with the teacher."))
    pair.student.add_module(_GENERATOR_MODULE, generator)
    try:
        outcome = job.fit(ReplacedTokens(pair, generator, mask_id, job.seed))
    finally:
        delattr(pair.student, _GENERATOR_MODULE)
    return StageResult(outcome)


def needs(stage: ReplacedTokensStage, where: str) -> Needs:
    """Return the heads that a stage needs: replaced-token detection on both models, trained on the teacher."""
    return Needs(Heads.TOKENS, words=True)


class ReplacedTokens:
    """Objective: the student detects which tokens a generator replaced, as ELECTRA, and learns the teacher's outputs.

    ``L_MLM + 50 L_Disc`` is ELECTRA's loss (Clark et al. 2020, arXiv 2003.10555, section 2).

    The generator reads the text with the mask token at every masked position, and a token is drawn from its prediction
    there. The student reads the text with these tokens and detects which of them are replaced; a drawn token that is
    the original one counts as original. No gradient flows from the student to the generator. The draw is a function of
    (seed, stage, step, row number, number of the masked token in its row): neither how the batch is split nor how it is
    padded changes it.

    Args:
        pair: Teacher and student, each with the head of replaced-token detection, and the stage.
        generator: Masked-language model, a submodule of the student, so that checkpoints hold it; trained only if the
            term ``generator`` has a weight.
        mask_id: Id of the mask token.
        seed: Seed of the run.

    Attributes:
        weights: The weights of ``generator``, ``replaced`` and ``logits`` that are above 0.

    Raises:
        InputError: If teacher or student has another head, the teacher's family is not trained to detect replaced
            tokens, or the generator has no masked-language-model head.
    """

    def __init__(self, pair: TeacherStudent[ReplacedTokensStage], generator: Any, mask_id: int, seed: int) -> None:
        _check_models(pair)
        self.teacher, self.family, self.stage = pair.teacher.eval(), pair.family, pair.stage
        self.where, self.mask_id, self.seed = pair.where, mask_id, seed
        self.weights = pair.stage.weights.weighted()
        self.generator, self._generator_head = generator, LmHead(generator, f"{pair.where}.generator.model")
        generator.requires_grad_("generator" in self.weights)

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return, for each term, the number of tokens of a batch over which its mean is taken."""
        real = batch["attention_mask"].sum()
        counts = {"generator": (batch["labels"] != IGNORED_LABEL).sum(), "replaced": real, "logits": real}
        return {name: counts[name] for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Replace masked tokens by drawn ones, and return the loss terms that have a weight.

        The terms are ``generator``, ``replaced`` and ``logits``.

        Args:
            model: The student, or its DDP wrapper.
            batch: The family's inputs and ``labels`` (original ids of masked tokens, else -100), [B, S] each; ``rows``
                and ``steps``, [B]. Other entries are ignored.
        """
        labels, mask = batch["labels"], batch["attention_mask"]
        is_masked = labels != IGNORED_LABEL
        original = torch.where(is_masked, labels, batch["input_ids"])
        inputs = {name: batch[name] for name in self.family.inputs}
        with torch.set_grad_enabled(torch.is_grad_enabled() and "generator" in self.weights):
            masked = original.masked_fill(is_masked, self.mask_id)
            predicted = self._generator_head.run(
                self.generator, {**inputs, "input_ids": masked}, flat_indices(is_masked)
            ).logits
        corrupted = original.clone()
        corrupted[is_masked] = _draw_tokens(predicted.detach(), self._uniform_noise(batch, is_masked))
        terms: dict[str, Term] = {}
        if "generator" in self.weights:
            terms["generator"] = masked_lm(predicted, labels[is_masked])
        inputs["input_ids"] = corrupted
        logits = model(**inputs, return_dict=True)["logits"].float()
        if "replaced" in self.weights:
            terms["replaced"] = replaced_tokens(logits, corrupted != original, mask)
        if "logits" in self.weights:
            move_teacher(self.teacher, corrupted.device)
            with torch.no_grad():
                teacher_logits = self.teacher(**inputs, return_dict=True)["logits"].float()
            terms["logits"] = replaced_soft_targets(logits, teacher_logits, mask, self.stage.temperature)
        return terms

    def _uniform_noise(self, batch: dict[str, Tensor], is_masked: Tensor) -> Tensor:
        """Draw a random number in [0, 1) for each masked token of a batch, row after row, and return them as [n]."""
        purpose = f"replaced/{self.where}"
        masked_per_row = is_masked.sum(1).tolist()
        numbers = [
            random_generator(self.seed, purpose, step, row).random(count)
            for row, step, count in zip(
                batch[ROW_NUMBERS].tolist(), batch[STEP_NUMBERS].tolist(), masked_per_row, strict=True
            )
        ]
        return torch.from_numpy(np.concatenate(numbers)).to(is_masked.device, torch.float32)


def _draw_tokens(logits: Tensor, noise: Tensor) -> Tensor:
    """Draw a token id from the softmax of each row of logits [n, V], with one random number per row.

    The drawn id is the first one whose cumulative probability is above the number. `noise` holds the numbers, uniform
    in [0, 1), [n].
    """
    cumulative = torch.softmax(logits.float(), -1).cumsum(-1)
    ids = torch.searchsorted(cumulative, noise[:, None] * cumulative[:, -1:], right=True).squeeze(-1)
    return ids.clamp(max=logits.shape[-1] - 1)


def _check_models(pair: TeacherStudent[ReplacedTokensStage]) -> None:
    """Raise InputError if the teacher's family or the class of a model has no replaced-token detection."""
    problems = []
    if Objective.REPLACED_TOKEN not in pair.family.objectives:
        listed = ", ".join(pair.family.objectives)
        what = f"{pair.family.title} checkpoints do not judge tokens; objectives: {listed}."
        problems.append(Problem("teacher.model", what, "Use another method, or a teacher that judges tokens."))
    for model, key in ((pair.teacher, "teacher"), (pair.student, "student")):
        if not type(model).__name__.endswith(_HEAD):
            what = f"{type(model).__name__} has no head that judges tokens."
            problems.append(Problem(key, what, "Load the checkpoint with its pre-training head."))
    if problems:
        raise InputError(problems)
