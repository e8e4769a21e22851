"""Method `distilbert`: a student learns a pre-trained teacher's guesses and last hidden states on plain text."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, Objective
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.recipe.stages import DistilBertStage, TripleWeights
from pocketbert.distill.capture.outputs import LmHead, places
from pocketbert.distill.losses.common import Term
from pocketbert.distill.losses.tokens import cosine_distance, masked_lm, sparse_token_soft_targets, token_soft_targets
from pocketbert.distill.methods.method import Heads, Needs, StageJob, StageResult, TeacherStudent, other_vocabulary
from pocketbert.distill.students.build import freeze_positions
from pocketbert.distill.teacher.signals import move_to
from pocketbert.distill.teacher.sparse import SparseTeacher, sparse_teacher
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.training.data import BatchOrder


class TripleStage(Protocol):
    """What the objective reads of its stage."""

    @property
    def weights(self) -> TripleWeights:
        """Weight of each term."""
        ...

    @property
    def temperature(self) -> float:
        """T of the soft targets; 2 in the original."""
        ...

    @property
    def masked_only(self) -> bool:
        """Whether soft targets are learnt at hidden tokens only; the original learns them at all real tokens."""
        ...


class DistilBertDistillation:
    """Objective: the triple loss of DistilBERT (Sanh et al. 2019, arXiv 1910.01108, section 3).

    Teacher and student read the same masked text, and no segment ids, as in the released code: a teacher that has
    a segment table falls back to segment 0. They may be of different classes. Only the tokens that a term is
    over reach the vocabulary projections.

    Args:
        teacher: Masked-language model that was pre-trained; put into eval mode.
        student: Masked-language model that will be trained, not yet wrapped.
        family: The teacher's row of the family table.
        stage: Weights, temperature, and which tokens.
        where: Recipe key, for errors.

    Raises:
        InputError: Listing everything in which the two models do not fit each other or the stage.
    """

    def __init__(
        self, teacher: Any, student: Any, family: Family, stage: TripleStage, where: str = "distill.0"
    ) -> None:
        check_triple(TeacherStudent(teacher, student, family, stage, where))
        self.teacher: Any | None = teacher.eval()
        self.stage, self.where = stage, where
        self.weights = stage.weights.weighted()
        self._teacher: LmHead | None = LmHead(teacher, "teacher")
        self._student = LmHead(student, "student")
        self._cached: SparseTeacher | None = None

    def replay(self, cached: SparseTeacher) -> None:
        """Learn from what the teacher said beforehand; the teacher itself is let go, and neither runs nor moves.

        Args:
            cached: Its guesses at the hidden tokens of every step.

        Raises:
            InputError: If the stage learns something else than these guesses.
        """
        problems = []
        if not self.stage.masked_only:
            problems.append(
                Problem(
                    f"{self.where}.masked_only",
                    "a cache holds the teacher's guesses at hidden tokens only.",
                    "Set masked_only: true.",
                )
            )
        if "cosine" in self.weights:
            problems.append(
                Problem(f"{self.where}.weights.cosine", "a cache holds no hidden states.", "Set cosine: 0.")
            )
        if cached.temperature != self.stage.temperature:
            problems.append(
                Problem(
                    f"{self.where}.temperature",
                    f"{self.stage.temperature}, the cache was made with {cached.temperature}.",
                    "Make the cache anew.",
                )
            )
        if problems:
            raise InputError(problems)
        self._cached, self.teacher, self._teacher = cached, None, None

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The number of tokens in the mean of each term, computed from the batch only."""
        real, hidden = batch["attention_mask"].sum(), (batch["labels"] != IGNORED).sum()
        every = {"logits": hidden if self.stage.masked_only else real, "mlm": hidden, "cosine": real}
        return {name: every[name] for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Terms ``logits``, ``mlm``, ``cosine``, as far as weighted.

        Args:
            model: The student, or what wraps it.
            batch: ``input_ids``, ``attention_mask`` and ``labels``, [B, S] each; after `replay` also ``rows`` and
                ``steps``, [B]. More is ignored.
        """
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        mask, labels, device = batch["attention_mask"], batch["labels"], batch["input_ids"].device
        if self.teacher is not None:
            move_to(self.teacher, device)
        soft, none = "logits" in self.weights, torch.empty(0, dtype=torch.long, device=device)
        selected = places(mask if soft and not self.stage.masked_only else labels != IGNORED)
        needed = selected if soft or "mlm" in self.weights else none
        made = self._student.run(model, inputs, needed)
        terms: dict[str, Term] = {}
        if self.teacher is not None and self._teacher is not None and (soft or "cosine" in self.weights):
            with torch.no_grad():
                taught = self._teacher.run(self.teacher, inputs, selected if soft else none)
        if soft and self._cached is not None:
            terms["logits"] = sparse_token_soft_targets(made.logits, self._cached(batch))
        elif soft:
            terms["logits"] = token_soft_targets(made.logits, taught.logits, self.stage.temperature)
        if "mlm" in self.weights:
            terms["mlm"] = masked_lm(made.logits, labels.flatten()[selected])
        if "cosine" in self.weights:
            terms["cosine"] = cosine_distance(made.hidden, taught.hidden, mask)
        return terms


def check_triple(pair: TeacherStudent[TripleStage]) -> None:
    """Refuse models that the triple loss cannot compare, with the alternatives.

    Args:
        pair: Teacher, student, and the wanted terms.

    Raises:
        InputError: Listing everything that does not fit.
    """
    problems, where, weights = [], pair.where, pair.stage.weights
    teacher, student, family = pair.teacher.config, pair.student.config, pair.family
    if weights.logits and Objective.MASKED_LM not in family.objectives:
        problems.append(
            Problem(
                f"{where}.weights.logits",
                f"{family.title} checkpoints are not trained to guess masked tokens; objectives: "
                f"{', '.join(family.objectives)}.",
                "Set logits: 0.",
            )
        )
    problems += other_vocabulary(pair)
    if weights.cosine and student.hidden_size != teacher.hidden_size:
        problems.append(
            Problem(
                f"{where}.weights.cosine",
                f"the student is {student.hidden_size} wide, the teacher {teacher.hidden_size}.",
                "Set cosine: 0, or give the student the teacher's width.",
            )
        )
    if problems:
        raise InputError(problems)


def needs(stage: DistilBertStage, where: str) -> Needs:
    """Both models guess hidden words."""
    return Needs(Heads.WORDS, words=True)


def train(job: StageJob[DistilBertStage]) -> StageResult:
    """Train a stage; with a cache, the teacher is asked about all of its steps beforehand."""
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
