"""Method `replaced-tokens`: a student learns to tell which tokens of plain text a generator replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Objective
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.stages import ReplacedTokensStage
from pocketbert.core.seeds import generator as noise_of
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture.outputs import LmHead, places
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.tokens import masked_lm, replaced_soft_targets, replaced_tokens
from pocketbert.distill.methods.method import Heads, Needs, StageJob, StageResult, TeacherStudent
from pocketbert.distill.teacher.signals import move_to
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.text.tokenizer import vocabulary
from pocketbert.distill.training.data import ROWS, STEPS

_NAME = "token_generator"
_HEAD = "ForPreTraining"


class ReplacedTokens:
    """Objective: ``L_MLM + 50 L_Disc`` of ELECTRA (Clark et al. 2020, arXiv 2003.10555, section 2), and the teacher's judgement.

    The generator reads the text with the mask token at every hidden place, and a token is drawn from what it guesses there.
    The student reads the text with these tokens and says of each whether it is the original one; a drawn token that is the
    original one counts as original. No gradient goes from there to the generator. What is drawn is a function of (seed, stage,
    step, row number, number of the hidden token in its row): neither how the batch is split nor how it is padded changes it.

    Args:
        pair: Teacher and student, both with the head that judges tokens, and the stage.
        generator: Masked-language model; it becomes a part of the student, so that it is trained and in checkpoints.
        mask_id: The mask token.
        seed: Seed of the run.

    Attributes:
        weights: ``generator``, ``replaced``, ``logits``, as far as above 0.

    Raises:
        InputError: If a model has another head, or the teacher's family is not trained that way.
    """

    def __init__(self, pair: TeacherStudent[ReplacedTokensStage], generator: Any, mask_id: int, seed: int) -> None:
        _check(pair)
        self.teacher, self.family, self.stage = pair.teacher.eval(), pair.family, pair.stage
        self.where, self.mask_id, self.seed = pair.where, mask_id, seed
        self.weights = pair.stage.weights.weighted()
        self.generator, self._head = generator, LmHead(generator, f"{pair.where}.generator.model")
        generator.requires_grad_("generator" in self.weights)

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Hidden tokens and real tokens; see `pocketbert.distill.losses.common.Counting`."""
        real = batch["attention_mask"].sum()
        every = {"generator": (batch["labels"] != IGNORED).sum(), "replaced": real, "logits": real}
        return {name: every[name] for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """The weighted terms.

        Args:
            model: The student, or what wraps it.
            batch: The family's inputs and ``labels`` (original ids of hidden tokens, else -100), [B, S] each; ``rows`` and
                ``steps``, [B]. More is ignored.
        """
        labels, mask = batch["labels"], batch["attention_mask"]
        hidden = labels != IGNORED
        original = torch.where(hidden, labels, batch["input_ids"])
        inputs = {name: batch[name] for name in self.family.inputs}
        with torch.set_grad_enabled(torch.is_grad_enabled() and "generator" in self.weights):
            masked = original.masked_fill(hidden, self.mask_id)
            guessed = self._head.run(self.generator, {**inputs, "input_ids": masked}, places(hidden)).logits
        read = original.clone()
        read[hidden] = drawn(guessed.detach(), self._noise(batch, hidden))
        terms: dict[str, Term] = {}
        if "generator" in self.weights:
            terms["generator"] = masked_lm(guessed, labels[hidden])
        inputs["input_ids"] = read
        said = model(**inputs, return_dict=True)["logits"].float()
        if "replaced" in self.weights:
            terms["replaced"] = replaced_tokens(said, read != original, mask)
        if "logits" in self.weights:
            move_to(self.teacher, read.device)
            with torch.no_grad():
                taught = self.teacher(**inputs, return_dict=True)["logits"].float()
            terms["logits"] = replaced_soft_targets(said, taught, mask, self.stage.temperature)
        return terms

    def _noise(self, batch: dict[str, Tensor], hidden: Tensor) -> Tensor:
        """A uniform number in [0, 1) for each hidden token, row after row, [n]."""
        purpose = f"replaced/{self.where}"
        told = zip(batch[ROWS].tolist(), batch[STEPS].tolist(), hidden.sum(1).tolist(), strict=True)
        numbers = [noise_of(self.seed, purpose, step, row).random(count) for row, step, count in told]
        return torch.from_numpy(np.concatenate(numbers)).to(hidden.device, torch.float32)


def drawn(logits: Tensor, noise: Tensor) -> Tensor:
    """Draw a token from each row of logits: the first whose summed probability is above the noise.

    Args:
        logits: [n, V].
        noise: Uniform numbers in [0, 1), [n].

    Returns:
        Token ids, [n] int64.
    """
    sums = torch.softmax(logits.float(), -1).cumsum(-1)
    found = torch.searchsorted(sums, noise[:, None] * sums[:, -1:], right=True).squeeze(-1)
    return found.clamp(max=logits.shape[-1] - 1)


def _check(pair: TeacherStudent[ReplacedTokensStage]) -> None:
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


def needs(stage: ReplacedTokensStage, where: str) -> Needs:
    """Both models judge tokens, the teacher with what it was trained to say."""
    return Needs(Heads.TOKENS, words=True)


def train(job: StageJob[ReplacedTokensStage]) -> StageResult:
    """Train a stage; the generator is on the student only while it is trained, and is then let go."""
    pair, stage = job.pair, job.pair.stage
    _check(pair)
    rows = job.rows()
    assert isinstance(rows, GeneralSet)
    where = f"{pair.where}.generator.model"
    source = open_model_folder(stage.generator.model, stage.generator.revision, where)
    made = load_model(source, TASKS[TaskName.FILL_MASK]).train()
    mask_id = rows.tokenizer.mask_id
    words = {rows.tokenizer.token(i): i for i in rows.tokenizer.ids}
    if mask_id is None or vocabulary(source.path) != words:
        what = f"'{source.title}' has another vocabulary than the teacher: its tokens would mean other words."
        raise InputError(Problem(where, what, "Name the generator that was trained with the teacher."))
    pair.student.add_module(_NAME, made)
    try:
        outcome = job.fit(ReplacedTokens(pair, made, mask_id, job.seed))
    finally:
        delattr(pair.student, _NAME)
    return StageResult(outcome)
