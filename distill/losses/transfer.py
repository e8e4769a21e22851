"""Losses of MobileBERT's knowledge transfer.

`feature_transfer` compares the outputs of two blocks, `pretraining_distillation` the predictions of masked tokens.

The divergence of attention maps is `pocketbert.distill.losses.common.attention_kl`, the next-sentence loss
`pocketbert.distill.losses.tokens.next_sentence`.

Conventions: B batch, S length, d width between the blocks, V vocabulary, n tokens. `feature_transfer` averages over the
tokens of `counted_mask`: by default the real ones, so that padding changes nothing; with `reference` all, as in the
released code (google-research/mobilebert).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.distill.capture.outputs import flat_indices
from pocketbert.distill.losses.common import Term, at_least_float32

_EPSILON = 1e-12
"""Added to the variance by the norm of the released code."""


def counted_mask(mask: Tensor, reference: bool = False) -> Tensor:
    """Return the mask of the tokens that losses average over: the real ones, or all tokens with `reference`.

    Args:
        mask: [B, S], 1 at real tokens.
        reference: Whether padding counts.

    Returns:
        Mask [B, S]; its sum is the number of items of the losses' means.
    """
    return torch.ones_like(mask) if reference else mask


@dataclass(frozen=True)
class FeatureTransfer:
    """MobileBERT's feature map transfer loss of one layer, in three parts: normalised states, means, variances.

    MobileBERT's states reach 1e6 in a few channels; a plain squared error is decided by these only.

    Attributes:
        maps: ``mean_{t,d} (LN(h_T) - LN(h_S))^2``, scalar.
        means: ``mean_t (mu_T - mu_S)^2`` with mu the mean over channels, scalar, in squared units of the states.
        variances: ``mean_t |var_T - var_S|``, scalar, in squared units of the states.
    """

    maps: Tensor
    means: Tensor
    variances: Tensor


def feature_transfer(student: Tensor, teacher: Tensor, counted: Tensor) -> FeatureTransfer:
    """Compute MobileBERT's feature map transfer loss between a student layer's and a teacher layer's output.

    It is eq. 2 of Sun et al. 2020, arXiv 2004.02984, as in the released code. The paper's ``L_FMT = 1/(TN) sum_{t,n}
    (H^tr - H^st)^2`` compares the states as they are. The released code normalises both over the channels, without
    learned scale and shift, and adds a term for the mean and one for the variance, which the normalization removes.
    Both terms compare the same two layers, as in the TensorFlow 2 port: the first release compares the student's layer
    with the statistics of all teacher layers, because of a wrong variable name.

    Args:
        student: A student layer's output, [B, S, d].
        teacher: The output of the teacher layer that it learns from, [B, S, d]; gets no gradient.
        counted: 1 at the tokens over which the means are taken, [B, S]; see `counted_mask`.

    Returns:
        Three means over the counted tokens, float32 or wider; 0 if there are none.
    """
    student, teacher = at_least_float32(student), at_least_float32(teacher.detach())
    width = student.shape[-1:]
    difference = F.layer_norm(teacher, width, eps=_EPSILON) - F.layer_norm(student, width, eps=_EPSILON)
    # two passes: the mean of the squares less the square of the mean loses all digits of a state far from 0
    variance_s, mean_s = torch.var_mean(student, -1, correction=0)
    variance_t, mean_t = torch.var_mean(teacher, -1, correction=0)
    is_counted, tokens = counted.bool(), counted.sum().clamp(min=1)

    def mean_over_tokens(values: Tensor) -> Tensor:
        return torch.where(is_counted, values, values.new_zeros(())).sum() / tokens

    return FeatureTransfer(
        maps=mean_over_tokens(difference.square().mean(-1)),
        means=mean_over_tokens((mean_t - mean_s).square()),
        variances=mean_over_tokens((variance_t - variance_s).abs()),
    )


def pretraining_distillation(student: Tensor, teacher: Tensor, labels: Tensor, truth: float = 0.5) -> Term:
    """Compute the cross-entropy of masked tokens against a mixture of original ids and teacher predictions.

    ``alpha L_MLM + (1 - alpha) L_KD`` of ``L_PD = alpha L_MLM + (1 - alpha) L_KD + L_NSP`` (Sun et al. 2020, arXiv
    2004.02984, eq. 4), as one cross-entropy ``-sum_V q log p_S`` with ``q = alpha onehot + (1 - alpha) softmax(z_T)``,
    without a temperature. `pocketbert.distill.losses.tokens.masked_lm` and `token_soft_targets` compute the two terms
    separately, except that `token_soft_targets` subtracts the teacher's entropy.

    Args:
        student: Logits at the selected tokens, [n, V].
        teacher: The teacher's logits at these tokens, [n, V]; gets no gradient.
        labels: Original ids, -100 at tokens that are not predicted, [n].
        truth: alpha, 0 to 1; the default is that of the released training command (distill_ground_truth_ratio).

    Returns:
        Mean over the tokens with a label, in nats; 0 with count 0 if there are none.

    Raises:
        ValueError: If alpha is not from 0 to 1.
    """
    if not 0 <= truth <= 1:
        raise ValueError(f"the share of the original ids is {truth}; allowed: 0 to 1")
    labelled = flat_indices(labels != IGNORED_LABEL)
    student, teacher, ids = (x.index_select(0, labelled) for x in (student, teacher.detach(), labels))
    target = at_least_float32(teacher).softmax(-1).mul_(1 - truth)
    target.scatter_add_(1, ids[:, None], target.new_full((len(ids), 1), truth))
    total = -(at_least_float32(student).log_softmax(-1) * target).sum()
    return Term.of(total / max(1, len(labelled)), len(labelled))
