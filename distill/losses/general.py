"""Terms of general distillation: means over tokens, each with the number of tokens it is over.

Conventions: n selected tokens, V vocabulary, B batch, S length, d width. A mean over no tokens is 0 with count 0.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.heads.head import IGNORED
from pocketbert.distill.capture.lm_heads import places
from pocketbert.distill.losses.divergence import divergence_sum
from pocketbert.distill.losses.sparse_logits import SparseLogits, sparse_kl
from pocketbert.distill.training.terms import Term


def token_soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Term:
    """Compute the KL divergence of temperature-softened vocabulary distributions, times T^2.

    ``T^2 * (1/n) * sum_n sum_V p_T (log p_T - log p_S)`` with ``p = softmax(z / T)``: L_ce of DistilBERT (Sanh et
    al. 2019, arXiv 1910.01108, section 3) as the released code computes it. The paper writes a cross-entropy; the
    gradient is the same, and the divergence is 0 where the student agrees.

    Args:
        student: Logits at the selected tokens, [n, V].
        teacher: Likewise, [n, V].
        temperature: T > 0.

    Returns:
        Mean over the n tokens, in nats.
    """
    total = temperature**2 * divergence_sum(student, teacher, temperature=temperature)
    return Term.of(total / max(1, len(student)), len(student))


def sparse_token_soft_targets(student: Tensor, teacher: SparseLogits) -> Term:
    """`token_soft_targets` with a teacher of which a sample is known: right in expectation, at the teacher's temperature.

    Random-sampling distillation (Anshumann et al. 2025, arXiv 2503.16870); see `sparse_kl`.

    Args:
        student: Logits at the selected tokens, [n, V].
        teacher: At the same tokens.

    Returns:
        Mean over the n tokens, in nats.

    Raises:
        ValueError: If tokens or vocabularies differ.
    """
    return Term.of(sparse_kl(student, teacher) if len(student) else student.float().sum(), len(student))


def masked_lm(student: Tensor, labels: Tensor) -> Term:
    """Compute the cross-entropy of the hidden tokens (Devlin et al. 2019, arXiv 1810.04805, section 3.1).

    Args:
        student: Logits at the selected tokens, [n, V].
        labels: Original ids, -100 where nothing is to be predicted, [n].

    Returns:
        Mean over the tokens with a label, in nats.
    """
    hidden = places(labels != IGNORED)
    # chosen first: of all real tokens' logits, six sevenths have no label
    if len(hidden) != len(labels):
        student, labels = student.index_select(0, hidden), labels[hidden]
    total = F.cross_entropy(student.float(), labels, reduction="sum")
    return Term.of(total / max(1, len(hidden)), len(hidden))


def next_sentence(logits: Tensor, labels: Tensor) -> Term:
    """Compute the cross-entropy of next-sentence prediction (Devlin et al. 2019, arXiv 1810.04805, section 3.1).

    Args:
        logits: Of yes and no, [B, 2].
        labels: See `pocketbert.distill.text.pairs.PairedRows`: 0 where it follows, 1 where it does not, -100 where a row has
            one segment; [B].

    Returns:
        Mean over the rows with two segments, in nats.
    """
    return masked_lm(logits, labels)


def cosine_distance(student: Tensor, teacher: Tensor, mask: Tensor) -> Term:
    """Compute ``1 - cos`` of the last hidden states (L_cos, Sanh et al. 2019, arXiv 1910.01108, section 3).

    Computed as ``|a/|a| - b/|b||^2 / 2``, the same number, which is exactly 0 for equal states and does not lose
    its digits close to 0 as a difference from 1 does.

    Args:
        student: Hidden states, [B, S, d].
        teacher: Hidden states, [B, S, d].
        mask: 1 at real tokens, [B, S].

    Returns:
        Mean over the real tokens, between 0 and 2.
    """
    apart = F.normalize(student.float(), dim=-1) - F.normalize(teacher.float(), dim=-1)
    weight = mask.to(apart.dtype)
    count = weight.sum()
    return Term.of((apart.square().sum(-1) / 2 * weight).sum() / count.clamp(min=1), count)
