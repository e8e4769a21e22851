"""The terms a student is trained on: pure functions of tensors, with shapes in the docstrings.

Conventions: B batch, S length, C classes, H heads, d width. `mask` is [B, S], 1 at real tokens. Padding
never enters a mean: appending pad tokens to a batch leaves every loss unchanged.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.distill.losses.divergence import divergence_sum
from pocketbert.distill.losses.squared_error import squared_error_sum


def soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the KL divergence of temperature-softened class distributions, times T^2.

    ``T^2 * mean_B sum_C p_T (log p_T - log p_S)`` with ``p = softmax(z / T)`` (Hinton et al. 2015,
    arXiv 1503.02531, section 2; the T^2 keeps the gradient's size independent of T).

    Args:
        student: Logits, [B, C].
        teacher: Logits, [B, C].
        temperature: T > 0.

    Returns:
        Scalar, in nats.
    """
    log_s = F.log_softmax(student.float() / temperature, -1)
    log_t = F.log_softmax(teacher.float() / temperature, -1)
    return temperature**2 * F.kl_div(log_s, log_t, reduction="batchmean", log_target=True)


def hard_targets(student: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross-entropy with gold labels.

    Args:
        student: Logits, [B, C].
        labels: Class ids, [B].

    Returns:
        Scalar, in nats.
    """
    return F.cross_entropy(student.float(), labels)


def hidden_mse(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean squared error of hidden states over real tokens and all channels.

    ``L_hidn`` of TinyBERT (Jiao et al. 2020, arXiv 1909.10351, eq. 8) with equal widths, so without a
    projection, and without the padded rows that the released code lets in.

    Args:
        student: Hidden states, [B, S, d].
        teacher: Hidden states, [B, S, d].
        mask: [B, S].

    Returns:
        Scalar, float32 or wider.
    """
    return squared_error_sum(student, teacher, mask[..., None]) / (mask.sum() * student.shape[-1])


def attention_kl(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Compute the KL divergence of attention distributions, averaged over heads and real query positions.

    ``mean_{B,H,q} sum_k p_T (log p_T - log p_S)`` (MobileBERT, Sun et al. 2020, arXiv 2004.02984, attention transfer;
    MiniLM, Wang et al. 2020, arXiv 2002.10957, eq. 1).

    Args:
        student: Pre-softmax scores with the additive mask applied, [B, H, S, S].
        teacher: Likewise, [B, H, S, S]; as many heads.
        mask: [B, S]; decides which query rows count.

    Returns:
        Scalar, in nats.
    """
    weight = mask[:, None, :].to(torch.promote_types(student.dtype, torch.float32))
    return divergence_sum(student, teacher, weight) / (weight.sum() * student.shape[1])


def mean_over_layers(losses: list[Tensor]) -> Tensor:
    """Average per-layer losses.

    Raises:
        ValueError: If there are none: a layer loss over nothing would silently be 0.
    """
    if not losses:
        raise ValueError("no layer losses: no signal was captured")
    return torch.stack(losses).mean()


def wide(x: Tensor) -> Tensor:
    """At least float32: in half precision the difference of close numbers is mostly rounding."""
    return x if x.dtype is torch.float64 else x.float()
