"""Terms of bottleneck transfer (MobileBERT): feature maps, attention maps and masked guesses of a teacher as wide as the student.

Conventions: B batch, S length, H heads, d width between the blocks, V vocabulary, n tokens. Every mean over tokens is over
those of `counted_tokens`: by default the real ones, so that padding changes nothing, and as many as ``mask.sum()``; as in the
released code (google-research/mobilebert), all of them.

The attention maps' divergence is `pocketbert.distill.losses.common.attention_kl`, the next-sentence term
`pocketbert.distill.losses.common.hard_targets`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.heads.head import IGNORED
from pocketbert.distill.capture.outputs import places
from pocketbert.distill.losses.common import Term, wide

TRUTH_SHARE = 0.5
"""Alpha of `pretraining_distillation` in the released training command (distill_ground_truth_ratio)."""

_EPSILON = 1e-12
"""Added to the variance by the norm of the released code."""


def counted_tokens(mask: Tensor, reference: bool = False) -> Tensor:
    """Which tokens the means of this file are over: the real ones, or all as in the released code.

    Args:
        mask: [B, S], 1 at real tokens.
        reference: Whether padding counts.

    Returns:
        [B, S]; its sum is the count of the terms.
    """
    return torch.ones_like(mask) if reference else mask


@dataclass(frozen=True)
class FeatureTransfer:
    """Feature map transfer of one layer, in three parts: one number, large and small directions apart.

    MobileBERT's states reach 1e6 in a few channels, beside which a plain squared error sees nothing else.

    Attributes:
        maps: ``mean_{t,d} (LN(h_T) - LN(h_S))^2``, scalar.
        means: ``mean_t (mu_T - mu_S)^2`` with mu the mean over channels, scalar, in squared units of the states.
        variances: ``mean_t |var_T - var_S|``, scalar, in squared units of the states.
    """

    maps: Tensor
    means: Tensor
    variances: Tensor


def feature_transfer(student: Tensor, teacher: Tensor, counted: Tensor) -> FeatureTransfer:
    """Compute the feature map transfer of one layer (Sun et al. 2020, arXiv 2004.02984, eq. 2) as the released code.

    The paper's ``L_FMT = 1/(TN) sum_{t,n} (H^tr - H^st)^2`` is of the states as they are. The released code normalises
    both over the channels, without learned scale and shift, and adds a term for each of the statistics that this takes
    away. These are of the same layer, as in the TensorFlow 2 port: the first release compares the student's layer with
    the statistics of all teacher layers, by a slip of a name.

    Args:
        student: A layer's output, [B, S, d].
        teacher: The output of the layer that it learns from, [B, S, d]; gets no gradient.
        counted: `counted_tokens`, [B, S].

    Returns:
        Three means over the counted tokens, float32 or wider; 0 if there are none.
    """
    ours, theirs = wide(student), wide(teacher.detach())
    width = ours.shape[-1:]
    apart = F.layer_norm(theirs, width, eps=_EPSILON) - F.layer_norm(ours, width, eps=_EPSILON)
    # two passes: the mean of the squares less the square of the mean loses all digits of a state far from 0
    variance_s, mean_s = torch.var_mean(ours, -1, correction=0)
    variance_t, mean_t = torch.var_mean(theirs, -1, correction=0)
    real, tokens = counted.bool(), counted.sum().clamp(min=1)

    def over_tokens(each: Tensor) -> Tensor:
        return torch.where(real, each, each.new_zeros(())).sum() / tokens

    return FeatureTransfer(
        maps=over_tokens(apart.square().mean(-1)),
        means=over_tokens((mean_t - mean_s).square()),
        variances=over_tokens((variance_t - variance_s).abs()),
    )


def pretraining_distillation(student: Tensor, teacher: Tensor, labels: Tensor, truth: float = TRUTH_SHARE) -> Term:
    """Compute the cross-entropy of the hidden tokens with a mixture of the original ids and the teacher's guesses.

    ``alpha L_MLM + (1 - alpha) L_KD`` of ``L_PD = alpha L_MLM + (1 - alpha) L_KD + L_NSP`` (Sun et al. 2020, arXiv
    2004.02984, eq. 4), as one cross-entropy ``-sum_V q log p_S`` with ``q = alpha onehot + (1 - alpha) softmax(z_T)``, without
    a temperature. The two terms apart, for a log or a teacher that was asked beforehand, are
    `pocketbert.distill.losses.tokens.masked_lm` and `token_soft_targets`; only the teacher's entropy is not in these.

    Args:
        student: Logits at the selected tokens, [n, V].
        teacher: Likewise, [n, V]; gets no gradient.
        labels: Original ids, -100 where nothing is to be predicted, [n].
        truth: alpha, 0 to 1.

    Returns:
        Mean over the tokens with a label, in nats; 0 with count 0 if there are none.

    Raises:
        ValueError: If alpha is no share.
    """
    if not 0 <= truth <= 1:
        raise ValueError(f"the share of the original ids is {truth}; allowed: 0 to 1")
    hidden = places(labels != IGNORED)
    ours, theirs, ids = (x.index_select(0, hidden) for x in (student, teacher.detach(), labels))
    target = wide(theirs).softmax(-1).mul_(1 - truth)
    target.scatter_add_(1, ids[:, None], target.new_full((len(ids), 1), truth))
    total = -(wide(ours).log_softmax(-1) * target).sum()
    return Term.of(total / max(1, len(hidden)), len(hidden))
