"""Terms of layer-wise distillation (TinyBERT): squared errors of attention scores and states, summed over layers.

Conventions: B batch, S length, H heads, d width. `mask` is [B, S], 1 at real tokens. Hidden states and embeddings in
the default mode are `pocketbert.distill.losses.common.hidden_mse`. The functions called ``reference`` average as the released
code does (huawei-noah/Pretrained-Language-Model, TinyBERT): there, padding enters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.distill.losses.common import wide
from pocketbert.distill.losses.squared_error import squared_error_sum

MASKED_BELOW = -1e2
"""The released code takes scores at or below this for those of padded keys, to which it adds -1e4."""


def attention_score_mse(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean squared error of attention scores over heads and pairs of a real query and a real key.

    ``L_attn = 1/H * sum_i MSE(A_i^S, A_i^T)`` with A before the softmax (Jiao et al. 2020, arXiv 1909.10351, eq. 7),
    the mean over ``sum_B n_b^2`` pairs, n_b being the tokens of row b.

    Args:
        student: Scores before the softmax, additive mask applied, finite, [B, H, S, S].
        teacher: Likewise; as many heads.
        mask: [B, S].

    Returns:
        Scalar, float32 or wider.
    """
    pairs = mask[:, None, :, None] * mask[:, None, None, :]
    return squared_error_sum(student, teacher, pairs) / (real_pairs(mask) * student.shape[1])


def real_pairs(mask: Tensor) -> Tensor:
    """Pairs of two real tokens of one row, ``sum_B n_b^2``: what `attention_score_mse` is a mean over; float32 scalar."""
    return mask.sum(1).square().sum().float()


def reference_score_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute the error of attention scores as the released code: masked scores are 0, mean over B * H * S * S.

    Padded keys add 0 and stay in the denominator; padded queries count as real ones do.

    Args:
        student: Scores before the softmax, additive mask applied, [B, H, S, S].
        teacher: Likewise; as many heads.

    Returns:
        Scalar, float32 or wider.
    """
    ours, theirs = (wide(x).masked_fill(x <= MASKED_BELOW, 0.0) for x in (student, teacher))
    return F.mse_loss(ours, theirs)


def reference_state_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute the error of hidden states as the released code: squares, mean over B * S * d with padding.

    Args:
        student: Projected hidden states or embeddings, [B, S, d].
        teacher: Likewise, [B, S, d].

    Returns:
        Scalar, float32 or wider.
    """
    return F.mse_loss(wide(student), wide(teacher))


def sum_over_layers(losses: Sequence[Tensor]) -> Tensor:
    """Add up per-layer losses with weight 1 each (Jiao et al. 2020, arXiv 1909.10351, eqs. 6 and 11).

    Raises:
        ValueError: If there are none: a layer loss over nothing would silently be 0.
    """
    if not losses:
        raise ValueError("no layer losses: no signal was captured")
    return torch.stack(list(losses)).sum()
