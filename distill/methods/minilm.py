"""Method `minilm`: the student's last layer learns the self-attention relations of one teacher layer, on plain text.

`train` trains a stage with the objective `MiniLmDistillation`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.recipe.stages import MiniLmStage
from pocketbert.core.types import Schedule, Signal
from pocketbert.distill.capture import query_width, record_attention
from pocketbert.distill.losses.common import Term, attention_kl
from pocketbert.distill.losses.relations import relation_heads, relation_kl
from pocketbert.distill.methods.method import (
    MethodSource,
    StageJob,
    StageResult,
    TeacherStudent,
    find_head_mismatch,
    find_invalid_signals,
    find_vocabulary_mismatch,
    nearest_layer_of_kind,
)
from pocketbert.distill.teacher.signals import TeacherSignals, Wanted, choose_signals

_SIGNALS = {
    "attention": Signal.ATTENTION,
    "query": Signal.RELATIONS,
    "key": Signal.RELATIONS,
    "value": Signal.RELATIONS,
}
"""Signal of the models that each loss term compares."""


SOURCE = MethodSource(
    paper="MiniLM, Wang et al. 2020, arXiv 2002.10957, and MiniLMv2, 2021, arXiv 2012.15828; no code of theirs, bloomberg/minilmv2.bb",
    published={
        "steps": "400,000",
        "batch": 256,
        "lr": 6e-4,
        "warmup": "0.01: 4,000 steps",
        "schedule": Schedule.LINEAR,
        "weight_decay": 0.01,
        "beta2": 0.999,
        "eps": 1e-6,
        "weights": {"attention": 0.0, "query": 1.0, "key": 1.0, "value": 1.0},
        "relation_heads": "48, of large teachers 64",
        "teacher_layer": "the last; of BERT-large the 21st",
    },
    differences=(
        ("default of `relation_heads`", "48, or the largest number below that divides both widths", "48 or 64"),
        ("default of `teacher_layer`", "the 21st of any teacher of 24 layers", "chosen for each large teacher"),
        ("mean", "over all real tokens of the batch", "over the texts' own means; the same where rows are packed"),
        ("teacher assistant", "none: two recipes by hand", "for students of at most half the depth and width (v1)"),
    ),
)


def train(job: StageJob[MiniLmStage]) -> StageResult:
    """Train a stage of method `minilm` on the job's rows, and return the losses."""
    pair = job.pair
    return StageResult(job.fit(MiniLmDistillation(pair.teacher, pair.student, pair.family, pair.stage, pair.where)))


class MiniLmDistillation:
    """Objective: the student's last layer learns the self-attention relations of one teacher layer (MiniLM).

    With the default weights it is MiniLMv2 (Wang et al. 2021, arXiv 2012.15828, section 3.1): query, key and value
    relations, for which the student may have any depth, width and number of heads. With attention and value
    weighted it is MiniLM (Wang et al. 2020, arXiv 2002.10957, section 3), which needs equal numbers of heads;
    its value relations are then computed by the models' heads too, unless ``relation_heads`` is set.

    Neither model runs past the layer that is compared. As in the original, nothing after the student's last queries,
    keys and values is trained here: fine-tuning trains it.

    Args:
        teacher: Pre-trained model, frozen by the caller. Its attention is replaced by one that records, and it is put
            into eval mode.
        student: The model that will be trained; its attention is replaced by one that records.
        family: Names, layer paths and inputs of the teacher's model family.
        stage: Settings: weights of the terms, relation heads and teacher layer.
        where: Recipe key that error messages name.
        student_family: Model family of the student; default by its model type.
        signals: Source of the teacher's signals; default the teacher itself, run on every batch.

    Attributes:
        weights: Weight of each term whose weight is above 0.
        heads: Number of relation heads.
        layer: Number of the teacher layer that is learned, from 0.

    Raises:
        InputError: Listing every size or setting in which teacher, student and stage do not fit together.
    """

    def __init__(
        self,
        teacher: Any,
        student: Any,
        family: Family,
        stage: MiniLmStage,
        where: str = "distill.0",
        *,
        student_family: Family | None = None,
        signals: TeacherSignals | None = None,
    ) -> None:
        pair = TeacherStudent(teacher, student, family, stage, where)
        self.family = student_family or pair.student_family
        _check_relations(pair, self.family)
        self.weights = stage.weights.weighted()
        self._relations = [name for name in self.weights if _SIGNALS[name] is Signal.RELATIONS]
        heads = stage.relation_heads if self._relations else None
        if heads is None and "attention" in self.weights:
            # version 1 compares values head by head, as it does attention
            heads = student.config.num_attention_heads
        self.heads = relation_heads(query_width(student.config), query_width(teacher.config), heads)
        self._last = student.config.num_hidden_layers - 1
        number = _teacher_layer(teacher.config.num_hidden_layers, stage.teacher_layer)
        if "attention" in self.weights:
            listed = stage.teacher_layer is not None
            number = nearest_layer_of_kind(pair, self._last + 1, number, listed, f"{where}.teacher_layer")
        self.layer = number - 1
        self.signals = choose_signals(teacher, family, self.wanted(stage, self.layer), signals)
        recorded = self.wanted(stage, self._last)
        self._student = record_attention(student, self.family, recorded.attention, recorded.relations, stop=True)

    @staticmethod
    def wanted(stage: MiniLmStage, layer: int) -> Wanted:
        """Return which signals to record from one layer of a model: attention scores, and queries, keys and values.

        Args:
            stage: Weights of the loss terms: a signal is recorded if a term that needs it has a weight.
            layer: Number of the layer, from 0.
        """
        weights = stage.weights
        return Wanted(
            outputs=False,
            attention=(layer,) if weights.attention > 0 else (),
            relations=(layer,) if weights.query + weights.key + weights.value > 0 else (),
        )

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of real tokens of a batch for every term; see `losses.common.Counting`."""
        return dict.fromkeys(self.weights, batch["attention_mask"].sum())

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term]:
        """Run both models on a batch, and return one loss term for each signal that has a weight.

        The terms are ``attention``, ``query``, ``key`` and ``value``.

        Args:
            model: The student, or its DDP wrapper.
            batch: The inputs of both families, [B, S] each; other entries are ignored.
        """
        taught = self.signals(batch)
        with self._student:
            model(**{name: batch[name] for name in self.family.inputs})
        terms, mask = {}, batch["attention_mask"]
        tokens = mask.sum()
        if "attention" in self.weights:
            scores = self._student.scores[self._last]
            terms["attention"] = Term.of(attention_kl(scores, taught.scores[self.layer], mask), tokens)
        for name in self._relations:
            student_vectors = getattr(self._student.relations[self._last], name)
            teacher_vectors = getattr(taught.relations[self.layer], name)
            terms[name] = Term.of(relation_kl(student_vectors, teacher_vectors, mask, self.heads), tokens)
        return terms


def _teacher_layer(depth: int, listed: int | None = None) -> int:
    """Return the number (from 1) of the teacher layer to learn from: `listed`, else 21 if `depth` is 24, else the last.

    An upper-middle layer of a large teacher teaches better than its last (Wang et al. 2021, arXiv 2012.15828: the 21st
    of BERT-large's 24).
    """
    return listed or (21 if depth == 24 else depth)


def _check_relations(pair: TeacherStudent[MiniLmStage], student_family: Family) -> None:
    """Check that a MiniLM stage can compare the attention, queries, keys and values of teacher and student.

    - Both model families offer each signal that has a weight.
    - Both vocabularies have the same size.
    - If attention has a weight, both models have the same number of attention heads.
    - If queries, keys or values have a weight, `relation_heads` divides the query widths of both models.
    - The teacher layer to learn from exists.

    Args:
        pair: Teacher, student and the settings of the stage.
        student_family: Model family of the student.

    Raises:
        InputError: Listing every condition that is not met.
    """
    problems, stage, where, family = list[Problem](), pair.stage, pair.where, pair.family
    teacher, student = pair.teacher.config, pair.student.config
    weighted = stage.weights.weighted()
    for row in [family] if student_family.name == family.name else [family, student_family]:
        problems += find_invalid_signals(row, {name: _SIGNALS[name] for name in weighted}, f"{where}.weights")
    problems += find_vocabulary_mismatch(pair)
    if "attention" in weighted:
        fix = "Set attention: 0 (query, key and value do not need it), or give the student as many heads."
        problems += find_head_mismatch(pair, f"{where}.weights.attention", fix=fix)
    if any(_SIGNALS[name] is Signal.RELATIONS for name in weighted):
        try:
            relation_heads(query_width(student), query_width(teacher), stage.relation_heads, f"{where}.relation_heads")
        except InputError as error:
            problems += error.problems
    depth = teacher.num_hidden_layers
    if _teacher_layer(depth, stage.teacher_layer) > depth:
        what = f"{stage.teacher_layer}, the teacher has layers 1 to {depth}."
        problems.append(Problem(f"{where}.teacher_layer", what, "Choose one of these, or leave it out."))
    if problems:
        raise InputError(problems)
