"""What each task makes of its outputs: the loss against gold labels, and against a teacher's outputs.

Conventions: B batch, S length, C labels, V vocabulary, d width. Tokens that nobody labels (special ones, the rest of a
word, padding) are in no mean. Every function returns a mean and the number of items it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.heads.head import IGNORED
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind
from pocketbert.core.tasks import Level, ScoreFunction, Task, TaskName
from pocketbert.distill.losses.common import Term, hard_targets, soft_targets

PADDED = -1e4
"""Score of a padded token as start or end of an answer: no probability, and finite."""


def gold_loss(task: Task, made: Any, batch: Mapping[str, Tensor]) -> Term:
    """Compute the task's loss against gold labels.

    Cross-entropy for labels, tokens and masked words; binary cross-entropy averaged over labels for multi-label; squared
    error for regression, binary cross-entropy where its answers go through a sigmoid; the mean of the two cross-entropies of start and end for answers (Devlin et al. 2019,
    arXiv 1810.04805, sections 4 and 5).

    Args:
        task: What the outputs are.
        made: The model's outputs.
        batch: Targets by name: ``labels`` [B], [B, C] or [B, S], or ``start_positions`` and ``end_positions`` [B].
    """
    if task.name is TaskName.QUESTION_ANSWERING:
        scores = _answer_scores(made, batch["attention_mask"])
        both = [hard_targets(s, batch[k]) for s, k in zip(scores, ("start_positions", "end_positions"), strict=True)]
        return Term.of((both[0] + both[1]) / 2, len(scores[0]))
    labels, logits = batch["labels"], made.logits
    if task.level is Level.TOKEN:
        chosen = labels != IGNORED
        count = int(chosen.sum())
        if not count:
            return Term.of(logits.float().sum() * 0.0, 0)
        return Term.of(hard_targets(logits[chosen], labels[chosen]), count)
    rows = len(logits)
    if task.name is TaskName.MULTI_LABEL:
        return Term.of(F.binary_cross_entropy_with_logits(logits.float(), labels.float()), rows)
    if task.name is TaskName.REGRESSION:
        loss = F.mse_loss if task.score is ScoreFunction.NONE else F.binary_cross_entropy_with_logits
        return Term.of(loss(logits.float()[:, 0], labels.float()), rows)
    return Term.of(hard_targets(logits, labels), rows)


def soft_loss(
    task: Task,
    made: Any,
    taught: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    temperature: float,
    pooling: Pooling,
) -> Term:
    """Compute the task's loss against a teacher's outputs; it is 0 where the two agree.

    Of label distributions the KL divergence at a temperature, times T^2 (Hinton et al. 2015, arXiv 1503.02531), for each
    label by itself in multi-label; of numbers the squared error; of start and end the mean of the two divergences
    over the real tokens; of vectors 1 minus the cosine of the pooled states.

    Args:
        task: What the outputs are.
        made: The student's outputs.
        taught: The teacher's outputs by name.
        batch: ``attention_mask`` [B, S], and ``labels`` [B, S] where they tell which tokens are labelled.
        temperature: T > 0.
        pooling: How token states become a vector.
    """
    mask = batch["attention_mask"]
    if task.name is TaskName.QUESTION_ANSWERING:
        ours, theirs = _answer_scores(made, mask), _answer_scores(taught, mask)
        both = [soft_targets(s, t, temperature) for s, t in zip(ours, theirs, strict=True)]
        return Term.of((both[0] + both[1]) / 2, len(mask))
    if task.name is TaskName.FEATURE_EXTRACTION:
        ours_pooled = pooled(made.last_hidden_state, mask, pooling)
        cosine = F.cosine_similarity(ours_pooled, pooled(taught["last_hidden_state"], mask, pooling), dim=-1)
        return Term.of((1 - cosine).mean(), len(mask))
    student, teacher = made.logits, taught["logits"]
    if task.level is Level.TOKEN:
        chosen = batch["labels"] != IGNORED
        count = int(chosen.sum())
        if not count:
            return Term.of(student.float().sum() * 0.0, 0)
        return Term.of(soft_targets(student[chosen], teacher[chosen], temperature), count)
    rows = len(student)
    if task.name is TaskName.MULTI_LABEL:
        return Term.of(_binary_soft(student, teacher, temperature), rows)
    if task.name is TaskName.REGRESSION:
        return Term.of(F.mse_loss(student.float(), teacher.float()), rows)
    return Term.of(soft_targets(student, teacher, temperature), rows)


def counted(task: Task, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Items that the terms ``labels`` and ``logits`` are means over, where they are not rows; see `Counting`."""
    if task.level is not Level.TOKEN or task.name is TaskName.QUESTION_ANSWERING:
        return {}
    tokens = (batch["labels"] != IGNORED).sum()
    return {"labels": tokens, "logits": tokens}


def pooled(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """One vector per text, [B, d] float32, not normalised: directions are compared.

    Args:
        states: Token states, [B, S, d].
        mask: [B, S].
        pooling: Mean of real tokens, or the first one.
    """
    if pooling.kind is PoolingKind.CLS:
        return states.float()[:, 0]
    weight = mask[:, :, None].float()
    return (states.float() * weight).sum(1) / weight.sum(1).clamp(min=1.0)


def _binary_soft(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 times the KL divergence of each label's softened yes and no, averaged over rows and labels."""
    s, t = student.float() / temperature, teacher.float() / temperature
    yes = torch.sigmoid(t)
    per_label = yes * (F.logsigmoid(t) - F.logsigmoid(s)) + (1 - yes) * (F.logsigmoid(-t) - F.logsigmoid(-s))
    return temperature**2 * per_label.mean()


def _answer_scores(outputs: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Start and end scores with padding out of the race, [B, S] float32 each."""
    take = outputs.__getitem__ if isinstance(outputs, Mapping) else lambda name: getattr(outputs, name)
    closed = (1.0 - mask.float()) * PADDED
    return take("start_logits").float() + closed, take("end_logits").float() + closed
