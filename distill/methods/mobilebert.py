"""Method `mobilebert`: knowledge transfer block by block, then pre-training distillation, on plain text.

`train` trains a stage with the objective `MobileBertDistillation`, in the phases of
`pocketbert.distill.methods.transfer`. A teacher for it, an IB-BERT, is trained by the method `pretrain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.host.progress import print_note
from pocketbert.core.recipe.stages import MobileBertStage
from pocketbert.core.types import Signal, Transfer
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.outputs import LayerOutputs, LmHead, TokenOutput, flat_indices
from pocketbert.distill.capture.recorder import AttentionRecorder
from pocketbert.distill.losses.common import Term, attention_kl
from pocketbert.distill.losses.tokens import next_sentence
from pocketbert.distill.losses.transfer import counted_mask, feature_transfer, pretraining_distillation
from pocketbert.distill.methods.method import (
    CUT_PAIRS,
    CarriedPart,
    Heads,
    MethodSource,
    Needs,
    StageJob,
    StageResult,
    TeacherStudent,
    check_and_map_layers,
    find_head_mismatch,
    find_invalid_signals,
)
from pocketbert.distill.methods.transfer import PUBLISHED_BATCH, STRATEGIES, Phase, TransferCourse
from pocketbert.distill.students.mobilebert import has_bottlenecks
from pocketbert.distill.teacher.signals import move_teacher
from pocketbert.distill.teacher.state_adapter import StateAdapter, fit_adapter, reduce_embeddings
from pocketbert.distill.text.pairs import NEXT_SENTENCE_LABEL
from pocketbert.distill.training.data import STEP_NUMBERS

_BlockSignals = tuple[Tensor, Tensor | None]
"""Output of a block, [B, S, d], and its attention scores, [B, H, S, S], if attention is learned."""

_ADAPTER = "adapter"
"""Name of the part that a stage passes on: the adapter of a teacher without bottlenecks."""


SOURCE = MethodSource(
    paper="MobileBERT, Sun et al. 2020, arXiv 2004.02984; google-research/mobilebert",
    published={
        "steps": "740,000",
        "strategy": Transfer.PROGRESSIVE,
        "batch": "2,048; 4,096 in the paper",
        "lr": 1.5e-3,
        "weight_decay": 0.01,
        "eps": 1e-6,
        "clip": 1.0,
        "dropout": "0, of attention 0.1",
        "truth": 0.5,
        "reference": "true: means count padding up to 512",
        "weights": {
            "maps": 100.0,
            "means": 5000.0,
            "variances": 5.0,
            "attention": 1.0,
            "guesses": 1.0,
            "next_sentence": 1.0,
        },
        "masking": "dynamic, but drawn once",
        "mask_share": "0.15, at most 20 of a row's 512 tokens",
        "pairs": True,
    },
    differences=(
        (
            "statistics of a layer",
            "compared with the teacher's of that layer",
            "with those of all layers: a wrong variable",
        ),
        ("attention transfer", "divergence, as in the paper", "cross-entropy: larger by the teacher's entropy"),
        ("weights of rate 0", "have no gradient", "have one, and it counts in the norm to clip"),
        ("padded keys", "masked as in transformers", "−6 is added to their scores"),
        CUT_PAIRS,
        ("rates of `joint` and `auxiliary`", "this project's", "not published"),
        ("teacher without bottlenecks", "principal components of its states", "not possible"),
        (
            "fine-tuning",
            "a stage `task`, on a fine-tuned teacher's outputs",
            "on gold labels, 2 to 10 epochs, lr 1e-5 to 1e-4",
        ),
    ),
)


def train(job: StageJob[MobileBertStage]) -> StageResult:
    """Train a stage of MobileBERT's knowledge transfer, and return the losses and the adapter, if there is one.

    If the student has bottlenecks and the teacher has none, an adapter maps the teacher's states to the student's
    width. Unless an earlier stage has passed one on, it is fitted here, and a student that no stage has trained yet
    gets its embeddings from the teacher's.
    """
    pair, notes = job.pair, list[str]()
    part = job.carried.get(_ADAPTER)
    adapter = StateAdapter(part.tensors["centre"], part.tensors["basis"], part.facts["kept"]) if part else None
    student, teacher = pair.student.config, pair.teacher.config
    if adapter is None and has_bottlenecks(student) and not has_bottlenecks(teacher):
        adapter = fit_adapter(pair.teacher, pair.family, job.rows(), student.hidden_size)
        if job.untrained:
            reduce_embeddings(pair.teacher, pair.student, adapter)
        notes.append(
            f"{pair.family.title} has no bottlenecks: {adapter.width} principal components of its states, "
            f"{adapter.kept:.1%} of their variance, replace them"
        )
        print_note(f"  {notes[-1]}")
    objective = MobileBertDistillation(pair.teacher, pair.student, pair.family, pair.stage, pair.where, adapter=adapter)
    batch = (
        "" if pair.stage.batch == PUBLISHED_BATCH else f", batch {pair.stage.batch:,} instead of {PUBLISHED_BATCH:,}"
    )
    notes.append(f"MobileBERT transfer: {objective.phases.name}{batch}")
    print_note(f"  {notes[-1]}")
    outcome = job.fit(objective, pads_fully=pair.stage.reference)
    if adapter is None:
        return StageResult(outcome, {}, tuple(notes))
    tensors = {"centre": adapter.centre.cpu(), "basis": adapter.basis.cpu()}
    return StageResult(outcome, {_ADAPTER: CarriedPart(tensors, {"kept": adapter.kept})}, tuple(notes))


def needs(stage: MobileBertStage, where: str) -> Needs:
    """Return which pre-training heads teacher and student need.

    The teacher's masked-LM head must be a trained one if a loss term learns from its predictions.
    """
    learns_predictions = bool(stage.truth < 1 and stage.weights.guesses)
    advice = Problem(
        f"{where}.truth",
        f"{stage.truth}: the teacher's guesses are learnt, so it needs the head that makes them.",
        "Set truth: 1 to learn only its layers and the original tokens.",
    )
    heads = Heads.WORDS_AND_PAIRS if stage.weights.next_sentence else Heads.WORDS
    return Needs(heads, learns_predictions, advice if learns_predictions else None)


class MobileBertDistillation:
    """Objective: MobileBERT's losses (Sun et al. 2020, arXiv 2004.02984, eqs. 2 to 4), switched on phase by phase.

    Each layer of the phase adds ``100 FMT + 5000 mean term + 5 variance term + AT`` with the weights of the released
    code, divided by the student's depth; pre-training distillation adds ``L_PD``. Student layer m learns from teacher
    layer ``g(m)``. Without ``L_PD``, neither model runs past the last layer of the phase.

    AT is the divergence of the paper; the released code's cross-entropy has the same gradient. Unlike there, the
    statistics of a layer are compared with those of the layer that it learns from: see `feature_transfer`.

    Args:
        teacher: Frozen model with its pre-training heads; its attention is replaced by one that records.
        student: The model that will be trained, of the teacher's width; its attention is replaced too.
        family: Names, layer paths and inputs of the teacher's model family.
        stage: Settings: strategy, weights of the terms, and layer map.
        where: Recipe key that error messages name.
        student_family: Model family of the student; default by its model type.
        adapter: Maps the teacher's states to the student's width, if the teacher is no IB-BERT. Everything outside the
            student's encoder then learns at the rates of its first layer.

    Attributes:
        weights: 1 for ``layer_1`` to ``layer_M``, which are weighted sums already, and the stage's weights of
            ``guesses`` and ``next_sentence``, if above 0.
        phases: The phases, which decide what terms are computed at a step.
        course: LAMB with the learning rates of the phases.

    Raises:
        InputError: Listing everything in which the two models do not fit each other or the stage; or if a model lacks a
            head that is needed, or the steps do not divide into the phases.
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
        self.layers = _check_blocks(pair, width)
        published = STRATEGIES[stage.strategy](len(self.layers))
        phases = published.reduced(stage.steps, stage.transfer_steps, where)
        self.phases = phases.with_embeddings() if adapter else phases
        self.stage, self.family, self.teacher, self._adapter = stage, family, teacher, adapter
        self._student_family = student_family or pair.student_family
        self.course = TransferCourse(self.phases, self._student_family.layer_path, stage)
        head_weights = {"guesses": stage.weights.guesses, "next_sentence": stage.weights.next_sentence}
        self._layer_names = [f"layer_{m}" for m in range(1, len(self.layers) + 1)]
        self.weights = dict.fromkeys(self._layer_names, 1.0) | {k: w for k, w in head_weights.items() if w}
        self._student_head = LmHead(student, "student")
        self._teacher_head = LmHead(teacher, "teacher") if stage.truth < 1 and stage.weights.guesses else None
        if stage.weights.next_sentence and not self._student_head.has_next_sentence:
            what = f"{type(student).__name__} has no next-sentence head."
            raise InputError(Problem(f"{where}.weights.next_sentence", what, "Set next_sentence: 0 and pairs: false."))
        for model, row in ((teacher, family), (student, self._student_family)):
            record_attention(model, row, ())  # switches its attention to the one that is captured

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Count the items of a batch over which each loss term is a mean, and return the counts by the term's name.

        These are real tokens for the layers' terms, masked tokens for ``guesses``, and text pairs for
        ``next_sentence``. If the stage sets ``reference``, the layers' terms count padding too.
        """
        tokens = counted_mask(batch["attention_mask"], self.stage.reference).sum()
        counts = dict.fromkeys(self._layer_names, tokens)
        counts["guesses"] = (batch["labels"] != IGNORED_LABEL).sum()
        if "next_sentence" in self.weights:
            counts["next_sentence"] = (batch[NEXT_SENTENCE_LABEL] != IGNORED_LABEL).sum()
        return {name: counts[name] for name in self.weights}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Run both models on a batch, and return the loss terms of the phase that the batch's step belongs to.

        Args:
            model: The student.
            batch: The families' inputs (with masked tokens) and ``labels`` (original ids of the masked tokens, else
                -100), [B, S] each; ``steps``, [B], the number of the step; if next-sentence prediction is trained,
                ``next_sentence_label``, [B]. Other entries are ignored.
        """
        phase = self.phases.phase_of(int(batch[STEP_NUMBERS][0]))
        masked = flat_indices(batch["labels"] != IGNORED_LABEL)
        teacher_output, teacher_blocks = self._run_teacher(batch, phase, masked)
        head = self._student_head if phase.pretraining else None
        output, blocks = self._run(model, self._student_family, batch, range(len(self.layers)), phase, head, masked)
        counted = counted_mask(batch["attention_mask"], self.stage.reference)
        terms = {
            self._layer_names[m]: Term.of(self._block_loss(blocks[m], teacher_blocks[m], counted), counted.sum())
            for m in phase.layers
        }
        if output is not None and "guesses" in self.weights:
            # without a teacher that predicts, the target is only the original tokens (truth is 1)
            teacher_logits = output.logits if teacher_output is None else teacher_output.logits
            ids = batch["labels"].flatten()[masked]
            terms["guesses"] = pretraining_distillation(output.logits, teacher_logits, ids, self.stage.truth)
        if output is not None and output.next_sentence is not None and "next_sentence" in self.weights:
            terms["next_sentence"] = next_sentence(output.next_sentence, batch[NEXT_SENTENCE_LABEL])
        return terms

    def _run_teacher(
        self, batch: dict[str, Tensor], phase: Phase, masked: Tensor
    ) -> tuple[TokenOutput | None, dict[int, _BlockSignals]]:
        """Run the teacher on a batch, and return its predictions and block outputs if the phase's losses need them.

        `masked` are indices of the tokens to predict. The result is (None, {}) if the phase learns nothing from the
        teacher; see `_run`.
        """
        head = self._teacher_head if phase.pretraining else None
        if head is None and not phase.layers:
            return None, {}
        move_teacher(self.teacher, batch["input_ids"].device)
        layer_numbers = [n - 1 for n in self.layers]
        with torch.no_grad():
            return self._run(self.teacher, self.family, batch, layer_numbers, phase, head, masked)

    def _run(
        self,
        model: Any,
        family: Family,
        batch: dict[str, Tensor],
        layer_numbers: Sequence[int],
        phase: Phase,
        head: LmHead | None,
        masked: Tensor,
    ) -> tuple[TokenOutput | None, dict[int, _BlockSignals]]:
        """Run teacher or student on a batch and return the head's predictions and the outputs of the blocks to compare.

        Args:
            model: Teacher or student.
            family: Names, layer paths and inputs of the model's family.
            batch: The model's inputs by name, [B, S] each, with the labels.
            layer_numbers: Number of the model's layer, from 0, that stands for each layer of the student.
            phase: The phase of the training, which decides which blocks are compared.
            head: The masked-LM head; None to end the pass after the last layer of the phase.
            masked: Indices of the tokens to predict in the flattened batch.

        Returns:
            The head's output, or None without a head; and the signals of the phase's blocks, by the number of the
            student's layer from 0.
        """
        inputs = {name: batch[name] for name in family.inputs}
        numbers = [layer_numbers[m] for m in phase.layers]
        depth = model.config.num_hidden_layers if head is not None else max(numbers) + 1
        recorder = AttentionRecorder(numbers if self.stage.weights.attention else [], depth)
        layer_outputs, output = LayerOutputs(model, family.layer_path, numbers, stop=head is None), None
        with recorder, layer_outputs:
            output = model(**inputs) if head is None else head.run(model, inputs, masked)
        blocks = {
            m: (layer_outputs.states[layer_numbers[m]], recorder.scores.get(layer_numbers[m])) for m in phase.layers
        }
        return (output if head is not None else None), blocks

    def _block_loss(self, student: _BlockSignals, teacher: _BlockSignals, counted: Tensor) -> Tensor:
        """Return the weighted loss of one student block against its teacher block, divided by the number of blocks.

        The terms compare the normalised feature maps, their means and variances, and the attention scores. `counted` is
        1 at tokens that count in the loss, [B, S].
        """
        weights = self.stage.weights
        (states, scores), (teacher_states, teacher_scores) = student, teacher
        if self._adapter is not None:
            teacher_states = self._adapter(teacher_states)
        features = feature_transfer(states, teacher_states, counted)
        loss = weights.maps * features.maps + weights.means * features.means + weights.variances * features.variances
        if scores is not None and teacher_scores is not None:
            loss = loss + weights.attention * attention_kl(scores, teacher_scores, counted)
        return loss / len(self.layers)


def _check_blocks(pair: TeacherStudent[MobileBertStage], width: int) -> list[int]:
    """Check that the blocks of two models can be compared, and return the teacher layer (from 1) of each student layer.

    `width` is the width of the teacher's states, after the adapter if there is one. Raises one InputError that lists
    all problems, each with what to set instead.
    """
    problems, student_width = list[Problem](), pair.student.config.hidden_size
    # the states themselves may be of any size: they are normalised, and their statistics have separate weights
    if pair.stage.weights.attention:
        key = f"{pair.where}.weights"
        problems += find_invalid_signals(pair.family, {"attention": Signal.ATTENTION}, key)
        fix = "Set attention: 0, or give the student as many."
        problems += find_head_mismatch(pair, f"{key}.attention", ": maps are compared head by head", fix)
    if student_width != width:
        what = f"the student's blocks are {student_width} wide outside, the teacher's {width}."
        fix = (
            "Set student.size, which takes the teacher's width, or use method: tinybert-general, "
            "which learns a projection."
        )
        problems.append(Problem(pair.where, what, fix))
    return check_and_map_layers(pair, problems)
