"""Losses of a task's outputs: `gold_loss` against gold labels, `soft_loss` against a teacher's outputs.

Both return a `Term`, a mean with its number of items. Tokens without a label (special ones, later word pieces of a
word, padding) are in no mean.

Conventions: B batch, S length, C labels, V vocabulary, d width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind
from pocketbert.core.tasks import Level, ScoreFunction, Task, TaskName
from pocketbert.distill.losses.common import Term, hard_targets, soft_targets

_PADDED_SCORE = -1e4
"""Added to the score of a padded token as start or end of an answer: its probability is 0, and the score finite."""


def gold_loss(task: Task, outputs: Any, batch: Mapping[str, Tensor]) -> Term:
    """Compute a task's loss of the model's outputs against the gold labels.

    Cross-entropy for labels, tokens and masked words; binary cross-entropy averaged over labels for multi-label;
    squared error for regression, binary cross-entropy if its outputs go through a sigmoid; the mean of the two
    cross-entropies of start and end for answers (Devlin et al. 2019, arXiv 1810.04805, sections 4 and 5).

    Args:
        task: Task of the model, such as classification; decides the loss.
        outputs: The result of the transformers model.
        batch: Targets by name: ``labels`` [B], [B, C] or [B, S], or ``start_positions`` and ``end_positions`` [B].
    """
    if task.name is TaskName.QUESTION_ANSWERING:
        start, end = _answer_scores(outputs, batch["attention_mask"])
        start_loss, end_loss = hard_targets(start, batch["start_positions"]), hard_targets(end, batch["end_positions"])
        return Term.of((start_loss + end_loss) / 2, len(start))
    labels, logits = batch["labels"], outputs.logits
    if task.level is Level.TOKEN:
        labelled = labels != IGNORED_LABEL
        count = int(labelled.sum())
        if not count:
            return Term.of(logits.float().sum() * 0.0, 0)
        return Term.of(hard_targets(logits[labelled], labels[labelled]), count)
    rows = len(logits)
    if task.name is TaskName.MULTI_LABEL:
        return Term.of(F.binary_cross_entropy_with_logits(logits.float(), labels.float()), rows)
    if task.name is TaskName.REGRESSION:
        loss = F.mse_loss if task.score is ScoreFunction.NONE else F.binary_cross_entropy_with_logits
        return Term.of(loss(logits.float()[:, 0], labels.float()), rows)
    return Term.of(hard_targets(logits, labels), rows)


def soft_loss(
    task: Task,
    outputs: Any,
    teacher_outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    temperature: float,
    pooling: Pooling,
) -> Term:
    """Compute a task's loss of the student's outputs against the teacher's; it is 0 where both agree.

    For label distributions the KL divergence at a temperature, times T^2 (Hinton et al. 2015, arXiv 1503.02531), for
    each label by itself in multi-label; for numbers the squared error; for start and end the mean of the two
    divergences over the real tokens; for vectors 1 minus the cosine of the pooled states.

    Args:
        task: Task of the model, such as classification; decides the loss.
        outputs: The result of the student, a transformers model.
        teacher_outputs: The teacher's outputs by name.
        batch: ``attention_mask`` [B, S], and ``labels`` [B, S] if they mark the labelled tokens.
        temperature: T > 0.
        pooling: How token states become a vector, for feature-extraction.
    """
    mask = batch["attention_mask"]
    if task.name is TaskName.QUESTION_ANSWERING:
        start, end = _answer_scores(outputs, mask)
        teacher_start, teacher_end = _answer_scores(teacher_outputs, mask)
        start_loss = soft_targets(start, teacher_start, temperature)
        return Term.of((start_loss + soft_targets(end, teacher_end, temperature)) / 2, len(mask))
    if task.name is TaskName.FEATURE_EXTRACTION:
        vectors = _pool_states(outputs.last_hidden_state, mask, pooling)
        teacher_vectors = _pool_states(teacher_outputs["last_hidden_state"], mask, pooling)
        return Term.of((1 - F.cosine_similarity(vectors, teacher_vectors, dim=-1)).mean(), len(mask))
    student, teacher = outputs.logits, teacher_outputs["logits"]
    if task.level is Level.TOKEN:
        labelled = batch["labels"] != IGNORED_LABEL
        count = int(labelled.sum())
        if not count:
            return Term.of(student.float().sum() * 0.0, 0)
        return Term.of(soft_targets(student[labelled], teacher[labelled], temperature), count)
    rows = len(student)
    if task.name is TaskName.MULTI_LABEL:
        return Term.of(_binary_soft_targets(student, teacher, temperature), rows)
    if task.name is TaskName.REGRESSION:
        return Term.of(F.mse_loss(student.float(), teacher.float()), rows)
    return Term.of(soft_targets(student, teacher, temperature), rows)


def count_labelled_tokens(task: Task, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the number of labelled tokens for the terms ``labels`` and ``logits``; empty if they are over rows."""
    if task.level is not Level.TOKEN or task.name is TaskName.QUESTION_ANSWERING:
        return {}
    tokens = (batch["labels"] != IGNORED_LABEL).sum()
    return {"labels": tokens, "logits": tokens}


def _pool_states(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool a text's token states to one vector, [B, d] float32, not normalised.

    Args:
        states: Token states, [B, S, d].
        mask: 1 at real tokens, [B, S].
        pooling: Mean of real tokens, or the first one.
    """
    if pooling.kind is PoolingKind.CLS:
        return states.float()[:, 0]
    weight = mask[:, :, None].float()
    return (states.float() * weight).sum(1) / weight.sum(1).clamp(min=1.0)


def _binary_soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the KL divergence of each label's softened yes/no distributions, times T^2, over rows and labels."""
    s, t = student.float() / temperature, teacher.float() / temperature
    yes = torch.sigmoid(t)
    per_label = yes * (F.logsigmoid(t) - F.logsigmoid(s)) + (1 - yes) * (F.logsigmoid(-t) - F.logsigmoid(-s))
    return temperature**2 * per_label.mean()


def _answer_scores(outputs: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the start and the end scores of an answer, [B, S] float32 each, with -1e4 added at padding."""
    take = outputs.__getitem__ if isinstance(outputs, Mapping) else lambda name: getattr(outputs, name)
    padding = (1.0 - mask.float()) * _PADDED_SCORE
    return take("start_logits").float() + padding, take("end_logits").float() + padding
