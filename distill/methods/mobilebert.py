"""Method `mobilebert`: bottleneck transfer, block by block, then pre-training distillation, on plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.heads.head import IGNORED
from pocketbert.core.host.progress import say
from pocketbert.core.recipe.stages import MobileBertStage
from pocketbert.core.types import Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.outputs import LayerOutputs, LmHead, TokenOutput, places
from pocketbert.distill.capture.recorder import AttentionRecorder
from pocketbert.distill.losses.common import Term, attention_kl
from pocketbert.distill.losses.tokens import masked_lm, next_sentence
from pocketbert.distill.losses.transfer import counted_tokens, feature_transfer, pretraining_distillation
from pocketbert.distill.methods.method import (
    Carried,
    CarriedPart,
    Heads,
    Needs,
    StageJob,
    StageResult,
    TeacherStudent,
    invalid_signals,
    mapped_layers,
)
from pocketbert.distill.methods.transfer import BATCH, STRATEGIES, Phase, TransferCourse, TransferPhases
from pocketbert.distill.students.mobilebert import has_bottlenecks
from pocketbert.distill.teacher.signals import move_to
from pocketbert.distill.teacher.state_adapter import StateAdapter, fit_adapter, reduce_embeddings
from pocketbert.distill.text.pairs import NEXT_SENTENCE
from pocketbert.distill.training.data import STEPS

_Blocks = dict[int, tuple[Tensor, Tensor | None]]
"""Output and, where attention is learnt, scores of some blocks, by the student's layer from 0."""


class MobileBertDistillation:
    """Objective: MobileBERT's losses (Sun et al. 2020, arXiv 2004.02984, eqs. 2 to 4), each in its phase.

    Of a layer that the phase has open: ``100 FMT + 5000 mean term + 5 variance term + AT`` as the released code weighs
    them, divided by the student's depth; where the phase has it, ``L_PD``. Student layer m learns from teacher layer
    ``g(m)``. Where no guesses are learnt, neither model runs past the last open layer.

    AT is the divergence of the paper; the released code's cross-entropy has the same gradient. Unlike there, the
    statistics of a layer are compared with those of the layer that it learns from: see `feature_transfer`.

    Args:
        teacher: Frozen model with its pre-training heads; its attention implementation is switched.
        student: The model that will be trained, of the teacher's width; likewise.
        family: Row of the family table of the teacher.
        stage: Strategy, weights and layer map.
        where: Recipe key, for errors.
        student_family: Row of the student; default the one of the table.
        adapter: From the teacher's states to the student's width, where the teacher is no IB-BERT. What is outside the
            student's encoder then learns as its first layer does.

    Attributes:
        weights: 1 for ``layer_1`` to ``layer_M``, which are weighted sums already; ``guesses`` and ``next_sentence``.
        phases: Which of these are on at a step.
        course: LAMB, with the learning rate of each layer that the phases say.

    Raises:
        InputError: Listing everything in which the two models do not fit each other or the stage.
    """

    def __init__(
        self,
        teacher: Any,
        student: Any,
        family: Family,
        stage: MobileBertStage,
        where: str = "distill.0",
        *,
        student_family: Family | None = None,
        adapter: StateAdapter | None = None,
    ) -> None:
        width = adapter.width if adapter else teacher.config.hidden_size
        pair = TeacherStudent(teacher, student, family, stage, where)
        self.layers = check_blocks(pair, width)
        phases = phases_of(stage, len(self.layers), where)
        self.phases = phases.with_embeddings() if adapter else phases
        self.stage, self.family, self.teacher, self._adapter = stage, family, teacher, adapter
        self._student_family = student_family or pair.student_family
        self.course = TransferCourse(self.phases, self._student_family.layer_path, stage)
        later = {"guesses": stage.weights.guesses, "next_sentence": stage.weights.next_sentence}
        self._layer_names = [f"layer_{m}" for m in range(1, len(self.layers) + 1)]
        self.weights = dict.fromkeys(self._layer_names, 1.0) | {k: w for k, w in later.items() if w}
        self._own_head = LmHead(student, "student")
        self._teacher_head = LmHead(teacher, "teacher") if stage.truth < 1 and stage.weights.guesses else None
        if stage.weights.next_sentence and not self._own_head.judges_pairs:
            raise InputError(
                Problem(
                    f"{where}.weights.next_sentence",
                    f"{type(student).__name__} has no next-sentence head.",
                    "Set next_sentence: 0 and pairs: false.",
                )
            )
        for model, row in ((teacher, family), (student, self._student_family)):
            record_attention(model, row, ())  # switches its attention to the one that is captured

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tokens that a layer's term is a mean over, hidden tokens, and pairs."""
        tokens = counted_tokens(batch["attention_mask"], self.stage.reference).sum()
        every = dict.fromkeys(self._layer_names, tokens)
        every["guesses"] = (batch["labels"] != IGNORED).sum()
        if "next_sentence" in self.weights:
            every["next_sentence"] = (batch[NEXT_SENTENCE] != IGNORED).sum()
        return {name: every[name] for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """The terms that are on at the batch's step.

        Args:
            model: The student.
            batch: The families' inputs (with hidden tokens) and ``labels`` (original ids of these, else -100), [B, S]
                each; ``steps``, [B], the step; of pairs also ``next_sentence_label``, [B]. More is ignored.
        """
        phase = self.phases.phase_of(int(batch[STEPS][0]))
        hidden = places(batch["labels"] != IGNORED)
        taught, theirs = self._teach(batch, phase, hidden)
        head = self._own_head if phase.pretraining else None
        made, ours = self._run(model, self._student_family, batch, range(len(self.layers)), phase, head, hidden)
        counted = counted_tokens(batch["attention_mask"], self.stage.reference)
        terms = {
            self._layer_names[m]: Term.of(self._block(ours[m], theirs[m], counted), counted.sum()) for m in phase.layers
        }
        if made is not None and "guesses" in self.weights:
            # without a teacher that guesses, all of the target is the truth
            guessed = made.logits if taught is None else taught.logits
            ids = batch["labels"].flatten()[hidden]
            terms["guesses"] = pretraining_distillation(made.logits, guessed, ids, self.stage.truth)
        if made is not None and made.next_sentence is not None and "next_sentence" in self.weights:
            terms["next_sentence"] = next_sentence(made.next_sentence, batch[NEXT_SENTENCE])
        return terms

    def _teach(self, batch: dict[str, Tensor], phase: Phase, hidden: Tensor) -> tuple[TokenOutput | None, _Blocks]:
        """The teacher's guesses and blocks, as far as the phase learns from them."""
        head = self._teacher_head if phase.pretraining else None
        if head is None and not phase.layers:
            return None, {}
        move_to(self.teacher, batch["input_ids"].device)
        places_of_layers = [n - 1 for n in self.layers]
        with torch.no_grad():
            return self._run(self.teacher, self.family, batch, places_of_layers, phase, head, hidden)

    def _run(
        self,
        model: Any,
        family: Family,
        batch: dict[str, Tensor],
        numbers: Sequence[int],
        phase: Phase,
        head: LmHead | None,
        hidden: Tensor,
    ) -> tuple[TokenOutput | None, _Blocks]:
        """One model, as far as needed: the phase's blocks (``numbers`` says which of the model's layers), and the guesses."""
        inputs = {name: batch[name] for name in family.inputs}
        wanted, stop = [numbers[m] for m in phase.layers], head is None
        depth = model.config.num_hidden_layers if not stop else max(wanted) + 1
        attended = wanted if self.stage.weights.attention else []
        recorder = AttentionRecorder(attended, depth)
        outputs, made = LayerOutputs(model, family.layer_path, wanted, stop=stop), None
        with recorder, outputs:
            made = model(**inputs) if head is None else head.run(model, inputs, hidden)
        blocks = {m: (outputs.states[numbers[m]], recorder.scores.get(numbers[m])) for m in phase.layers}
        return (made if head is not None else None), blocks

    def _block(
        self, ours: tuple[Tensor, Tensor | None], theirs: tuple[Tensor, Tensor | None], counted: Tensor
    ) -> Tensor:
        """Transfer loss of one block, a share of the mean over all."""
        weights = self.stage.weights
        taught = theirs[0] if self._adapter is None else self._adapter(theirs[0])
        features = feature_transfer(ours[0], taught, counted)
        loss = weights.maps * features.maps + weights.means * features.means + weights.variances * features.variances
        if ours[1] is not None and theirs[1] is not None:
            loss = loss + weights.attention * attention_kl(ours[1], theirs[1], counted)
        return loss / len(self.layers)


def phases_of(stage: MobileBertStage, depth: int, where: str = "distill.0") -> TransferPhases:
    """The phases of a stage: as published where it has as many steps, else in fewer.

    Args:
        stage: Strategy and steps.
        depth: Layers of the student.
        where: Recipe key, for errors.

    Raises:
        InputError: If a phase would have no step.
    """
    published = STRATEGIES[stage.strategy](depth)
    return published.reduced(stage.steps, stage.transfer_steps, where)


def check_blocks(pair: TeacherStudent[MobileBertStage], width: int) -> list[int]:
    """Refuse models whose blocks cannot be compared, with the alternatives.

    Args:
        pair: Teacher, student, weights and layer map.
        width: Of the teacher's states as they are compared.

    Returns:
        Teacher layer (from 1) of each student layer.

    Raises:
        InputError: Listing everything that does not fit.
    """
    stage, where, family = pair.stage, pair.where, pair.family
    teacher, student = pair.teacher.config, pair.student.config
    heads = (student.num_attention_heads, teacher.num_attention_heads)
    # the states themselves may be of any size: they are normalised, and their statistics weighed apart
    signals = {"attention": Signal.ATTENTION} if stage.weights.attention else {}
    problems = invalid_signals(family, signals, f"{where}.weights")
    if signals and heads[0] != heads[1]:
        problems.append(
            Problem(
                f"{where}.weights.attention",
                f"the student has {heads[0]} heads, the teacher {heads[1]}: maps are compared head by head.",
                "Set attention: 0, or give the student as many.",
            )
        )
    if student.hidden_size != width:
        problems.append(
            Problem(
                where,
                f"the student's blocks are {student.hidden_size} wide outside, the teacher's {width}.",
                "Set student.size, which takes the teacher's width, or use method: tinybert-general, "
                "which learns a projection.",
            )
        )
    return mapped_layers(pair, problems)


def needs(stage: MobileBertStage, where: str) -> Needs:
    """The pre-training heads; the teacher's own only where its guesses are learnt."""
    asked = bool(stage.truth < 1 and stage.weights.guesses)
    advice = Problem(
        f"{where}.truth",
        f"{stage.truth}: the teacher's guesses are learnt, so it needs the head that makes them.",
        "Set truth: 1 to learn only its layers and the original tokens.",
    )
    heads = Heads.WORDS_AND_PAIRS if stage.weights.next_sentence else Heads.WORDS
    return Needs(heads, asked, advice if asked else None)


def train(job: StageJob[MobileBertStage]) -> StageResult:
    """Train a stage of bottleneck transfer.

    From a teacher without bottlenecks through an adapter, which the next stage goes on with; a student that no stage has
    trained yet then gets its embeddings from the teacher's.
    """
    pair, notes = job.pair, list[str]()
    adapter = _adapter_from(job.carried)
    student, teacher = pair.student.config, pair.teacher.config
    if adapter is None and has_bottlenecks(student) and not has_bottlenecks(teacher):
        adapter = fit_adapter(pair.teacher, pair.family, job.rows(), student.hidden_size)
        if job.untrained:
            reduce_embeddings(pair.teacher, pair.student, adapter)
        notes.append(
            f"{pair.family.title} has no bottlenecks: {adapter.width} principal components of its states, {adapter.kept:.1%} of "
            "their variance, replace them"
        )
        say(f"  {notes[-1]}")
    objective = MobileBertDistillation(pair.teacher, pair.student, pair.family, pair.stage, pair.where, adapter=adapter)
    batch = "" if pair.stage.batch == BATCH else f", batch {pair.stage.batch:,} instead of {BATCH:,}"
    notes.append(f"MobileBERT transfer: {objective.phases.name}{batch}")
    say(f"  {notes[-1]}")
    return StageResult(job.fit(objective), _carrying(adapter), tuple(notes))


_ADAPTER = "adapter"


def _adapter_from(carried: Carried) -> StateAdapter | None:
    """The adapter that an earlier stage fitted."""
    part = carried.get(_ADAPTER)
    return StateAdapter(part.tensors["centre"], part.tensors["basis"], part.facts["kept"]) if part else None


def _carrying(adapter: StateAdapter | None) -> Carried:
    if adapter is None:
        return {}
    tensors = {"centre": adapter.centre.cpu(), "basis": adapter.basis.cpu()}
    return {_ADAPTER: CarriedPart(tensors, {"kept": adapter.kept})}


# --- pretraining ---
# Pre-training of a teacher on plain text: masked LM and next sentence, as for BERT and IB-BERT.


class Pretraining:
    """Objective: ``L_MLM + L_NSP`` of BERT (Devlin et al. 2019, arXiv 1810.04805, section 3.1), which IB-BERT is trained with.

    Only hidden tokens reach the vocabulary projection.

    Args:
        model: What will be trained, not yet wrapped: with both heads, or the masked-LM head alone.
        family: Its row of the family table.
        next_sentence: Whether pairs are judged too; batches then come from `pocketbert.distill.text.pairs.GeneralSet`
            with pairs.
        where: For errors.

    Attributes:
        weights: ``mlm``, and ``next_sentence`` where wanted; 1 each.

    Raises:
        InputError: If the model lacks a head that is wanted.
    """

    def __init__(self, model: Any, family: Family, next_sentence: bool = True, where: str = "model") -> None:
        self.family, self._head = family, LmHead(model, where)
        if next_sentence and not self._head.judges_pairs:
            raise InputError(
                Problem(
                    where,
                    f"{type(model).__name__} has no next-sentence head.",
                    f"Load it as {family.classes}ForPreTraining, or leave next_sentence out.",
                )
            )
        self.weights = {"mlm": 1.0, **({"next_sentence": 1.0} if next_sentence else {})}

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Hidden tokens and pairs; see `pocketbert.distill.losses.common.Counting`."""
        labels = {"mlm": "labels", "next_sentence": NEXT_SENTENCE}
        return {name: (batch[labels[name]] != IGNORED).sum() for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Terms ``mlm`` and, where wanted, ``next_sentence``.

        Args:
            model: The model, or what wraps it.
            batch: The family's inputs (with hidden tokens) and ``labels`` (original ids of these, else -100), [B, S]
                each; for pairs ``next_sentence_label`` too, [B]. More is ignored.
        """
        inputs = {name: batch[name] for name in self.family.inputs}
        hidden = places(batch["labels"] != IGNORED)
        made = self._head.run(model, inputs, hidden)
        terms = {"mlm": masked_lm(made.logits, batch["labels"].flatten()[hidden])}
        if made.next_sentence is not None and "next_sentence" in self.weights:
            terms["next_sentence"] = next_sentence(made.next_sentence, batch[NEXT_SENTENCE])
        return terms
