"""Losses of models that tell of each token whether it was replaced."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.distill.training.terms import Term


def replaced_tokens(logits: Tensor, replaced: Tensor, mask: Tensor) -> Term:
    """Compute the cross-entropy of replaced-token detection, L_Disc of ELECTRA (Clark et al. 2020, arXiv 2003.10555, section 2).

    ``-log D`` at tokens that are the original ones, also where a generator drew them, and ``-log(1 - D)`` at replaced ones,
    where ``1 - D = sigmoid(logit)``.

    Args:
        logits: Above 0 where a token is thought to be replaced, [B, S].
        replaced: 1 where it is, [B, S].
        mask: 1 at real tokens, [B, S].

    Returns:
        Mean over real tokens, in nats.
    """
    real = mask.to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")
    return Term.of((losses * real).sum() / real.sum().clamp(min=1.0), real.sum())


def replaced_soft_targets(student: Tensor, teacher: Tensor, mask: Tensor, temperature: float) -> Term:
    """Compute ``T^2 KL(sigmoid(t / T) || sigmoid(s / T))`` of binary distributions, token by token.

    Args:
        student: Logits, [B, S].
        teacher: Logits, [B, S]; gets no gradient.
        mask: 1 at real tokens, [B, S].
        temperature: T > 0.

    Returns:
        Mean over real tokens, in nats.
    """
    s, t = student / temperature, teacher.detach() / temperature
    yes = torch.sigmoid(t)
    losses = yes * (F.logsigmoid(t) - F.logsigmoid(s)) + (1 - yes) * (F.logsigmoid(-t) - F.logsigmoid(-s))
    real = mask.to(losses.dtype)
    return Term.of((losses * real).sum() / real.sum().clamp(min=1.0) * temperature**2, real.sum())
