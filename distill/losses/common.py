"""Loss terms, and the losses that several methods share, as pure functions of tensors.

* `Term` is a mean with its number of items, so that the terms of parts of a batch add up to those of the batch:
  `to_terms`, `count_items`, `count_rows` and `scale_partial_mean` are used by the training loop.
* `soft_targets` and `hard_targets` are losses of logits.
* `attention_kl` and `hidden_mse` compare one layer of a student with one of its teacher; `mean_over_layers` averages
  layers.
* `attention_score_mse` and `sum_over_layers` are TinyBERT's; `reference_score_mse` and `reference_state_mse` average as
  its released code does (huawei-noah/Pretrained-Language-Model, TinyBERT), where padding enters.

Conventions: B batch, S length, C classes, H heads, d width. `mask` is [B, S], 1 at real tokens. Except in the reference
losses, padding never enters a mean: appending pad tokens to a batch leaves every loss unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# --- terms ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """A named part of a loss over some rows: its mean, and the number of items (rows, tokens) in the mean.

    Means of parts of unequal size do not average to the mean of the whole: three ranks with 100, 100 and
    10 labelled tokens would weigh the last ten tenfold. With its count, a part's mean is weighted correctly.

    Attributes:
        mean: Mean over the items; a differentiable scalar, float.
        count: Number of items (rows, tokens) in the mean, a float scalar without gradient. If it is 0, the
            mean is ignored, whatever it is.
    """

    mean: Tensor
    count: Tensor

    @classmethod
    def of(cls, mean: Tensor, count: Tensor | float) -> Term:
        """Create a term from a mean and a count, which becomes a tensor on the mean's device.

        Args:
            mean: Mean over the items, scalar.
            count: Number of items.
        """
        return cls(mean, torch.as_tensor(count, dtype=torch.float32, device=mean.device).detach())


@runtime_checkable
class Counting(Protocol):
    """Interface of an objective some of whose loss terms are means over tokens or pairs instead of rows."""

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return, for each such term, the number of items in its mean, from the batch alone, without a forward pass."""
        ...


def to_terms(made: Mapping[str, Term | Tensor], rows: int) -> dict[str, Term]:
    """Convert the loss values that an objective returned to terms. A plain tensor counts as a mean over the rows.

    Args:
        made: The objective's result: terms or tensors by name.
        rows: Number of rows of the batch.
    """
    return {name: t if isinstance(t, Term) else Term.of(t, rows) for name, t in made.items()}


def count_items(objective: object, names: Iterable[str], batch: dict[str, Tensor]) -> dict[str, float]:
    """Return, for each loss term, the number of items of a batch over which its mean is taken.

    The number is the one that `Counting.counts` returns for the term, else the number of rows.

    Args:
        objective: An objective, which may implement `Counting`.
        names: Names of the objective's terms.
        batch: Tensors whose first dimension is rows.
    """
    rows = float(count_rows(batch))
    if not isinstance(objective, Counting):
        return dict.fromkeys(names, rows)
    counts = objective.counts(batch)
    return {name: float(counts[name]) if name in counts else rows for name in names}


def count_rows(batch: dict[str, Tensor]) -> int:
    """Return the number of rows of a batch, the first dimension of its tensors.

    Raises:
        ValueError: If the tensors have different numbers of rows.
    """
    sizes = {name: len(value) for name, value in batch.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"tensors of one batch must have rows first, as many in each: {sizes}")
    return next(iter(sizes.values()))


def scale_partial_mean(mean: Tensor, part: float, whole: float) -> Tensor:
    """Scale the mean over a part of a batch to its share of the mean over the whole batch: ``mean * part / whole``.

    The scaled means of all parts sum to the mean of the whole. A part without items adds exactly 0, also to the
    gradient, even if its mean is 0/0. If the part is the whole batch, its mean is returned unchanged, bit for bit.

    Args:
        mean: Mean over the part's items, scalar.
        part: Items in the part.
        whole: Items in all parts together.
    """
    if part == 0 or whole == 0:
        return mean.new_zeros(())  # not `mean * 0`: a mean over nothing is NaN, and so is NaN * 0
    return mean if part == whole else mean * (part / whole)


# --- losses of logits -------------------------------------------------------------------------------------------------


def soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the KL divergence of the teacher's and the student's temperature-softened class distributions, times T^2.

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
    """Compute the cross-entropy of the student's logits with gold labels.

    Args:
        student: Logits, [B, C].
        labels: Class ids, [B].

    Returns:
        Scalar, in nats.
    """
    return F.cross_entropy(student.float(), labels)


# --- losses of layers -------------------------------------------------------------------------------------------------


def hidden_mse(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean squared error of two models' hidden states over real tokens and all channels.

    ``L_hidn`` of TinyBERT (Jiao et al. 2020, arXiv 1909.10351, eq. 8) with equal widths, so without a
    projection, and without the padded rows that the released code lets in.

    Args:
        student: Hidden states, [B, S, d].
        teacher: Hidden states, [B, S, d].
        mask: 1 at real tokens, [B, S].

    Returns:
        Scalar, float32 or wider.
    """
    return _squared_error_sum(student, teacher, mask[..., None]) / (mask.sum() * student.shape[-1])


def attention_kl(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Compute the KL divergence of two models' attention distributions, averaged over heads and real query positions.

    ``mean_{B,H,q} sum_k p_T (log p_T - log p_S)`` (MobileBERT, Sun et al. 2020, arXiv 2004.02984, attention transfer;
    MiniLM, Wang et al. 2020, arXiv 2002.10957, eq. 1).

    Args:
        student: The student's scores before the softmax with the additive mask applied, [B, H, S, S].
        teacher: The teacher's scores, of the same shape.
        mask: 1 at real tokens, [B, S]; padded queries are left out.

    Returns:
        Scalar, in nats.
    """
    weight = mask[:, None, :].to(torch.promote_types(student.dtype, torch.float32))
    return divergence_sum(student, teacher, weight) / (weight.sum() * student.shape[1])


def mean_over_layers(losses: list[Tensor]) -> Tensor:
    """Return the mean of per-layer losses.

    Raises:
        ValueError: If there are none: a layer loss over nothing would silently be 0.
    """
    if not losses:
        raise ValueError("no layer losses: no signal was captured")
    return torch.stack(losses).mean()


def attention_score_mse(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean squared error of two models' attention scores over heads and pairs of real tokens.

    ``L_attn = 1/H * sum_i MSE(A_i^S, A_i^T)`` with A before the softmax (Jiao et al. 2020, arXiv 1909.10351, eq. 7),
    the mean over ``sum_B n_b^2`` pairs, n_b being the tokens of row b.

    Args:
        student: The student's scores before the softmax with the additive mask applied, finite, [B, H, S, S].
        teacher: The teacher's scores, of the same shape.
        mask: 1 at real tokens, [B, S].

    Returns:
        Scalar, float32 or wider.
    """
    pairs = mask[:, None, :, None] * mask[:, None, None, :]
    return _squared_error_sum(student, teacher, pairs) / (count_token_pairs(mask) * student.shape[1])


def count_token_pairs(mask: Tensor) -> Tensor:
    """Return the number of pairs of real tokens in a batch, ``sum_B n_b^2``, as a float32 scalar."""
    return mask.sum(1).square().sum().float()


def sum_over_layers(losses: Sequence[Tensor]) -> Tensor:
    """Return the sum of per-layer losses, each with weight 1 (Jiao et al. 2020, arXiv 1909.10351, eqs. 6 and 11).

    Raises:
        ValueError: If there are none: a layer loss over nothing would silently be 0.
    """
    if not losses:
        raise ValueError("no layer losses: no signal was captured")
    return torch.stack(list(losses)).sum()


_REFERENCE_MASKED = -1e2
"""The released code treats scores at or below this as those of padded keys, to which it adds -1e4."""


def reference_score_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute the mean squared error of attention scores as TinyBERT's released code does, with padding in the mean.

    Scores of -100 or less, as padded keys have them, are set to 0 in each model. The mean is over B * H * S * S: padded
    keys add 0 and stay in the denominator, and padded queries count as real ones do.

    Args:
        student: The student's scores before the softmax with the additive mask applied, [B, H, S, S].
        teacher: The teacher's scores, of the same shape.

    Returns:
        Scalar, float32 or wider.
    """
    student, teacher = (at_least_float32(x).masked_fill(x <= _REFERENCE_MASKED, 0.0) for x in (student, teacher))
    return F.mse_loss(student, teacher)


def reference_state_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute the mean squared error of hidden states as TinyBERT's released code does, with padding in the mean.

    Args:
        student: The student's hidden states or embeddings, projected to the teacher's width, [B, S, d].
        teacher: The teacher's hidden states or embeddings, [B, S, d].

    Returns:
        Scalar, float32 or wider.
    """
    return F.mse_loss(at_least_float32(student), at_least_float32(teacher))


def at_least_float32(x: Tensor) -> Tensor:
    """Convert a tensor to float32 unless it is float64. Differences of close numbers are lost in half precision."""
    return x if x.dtype is torch.float64 else x.float()


# --- fused kernels ----------------------------------------------------------------------------------------------------
#
# Written with autograd's operations, the divergence of a batch over a vocabulary of 30,000 reads and writes some twenty
# arrays of hundreds of megabytes, and the squared error of one layer's attention scores some ten arrays of megabytes.
# The functions below compute some rows at a time, which stay in the cache, and keep one array as large as the student's
# signal for the backward pass.

_DIVERGENCE_CHUNK = 1 << 20
"""Numbers of one model's scores in one chunk on a CPU: with their copies they stay in its cache.

Times of 2^16 to 2^22 differ by 8 %."""
_SQUARED_ERROR_CHUNK = 1 << 18
"""Numbers of a signal in one chunk on a CPU; a row is never divided.

Their sum is as exact as one of a whole batch only if they are few."""
_ACCELERATOR_CHUNK = 1 << 26
"""The same for both on an accelerator, where each operation has a cost of its own."""


def divergence_sum(student: Tensor, teacher: Tensor, weight: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Compute the weighted sum of KL divergences from teacher to student over rows of scores.

    It is ``sum_r w_r KL(softmax(t_r / T) || softmax(s_r / T))``.

    Args:
        student: The student's scores before the softmax, [..., C].
        teacher: The teacher's scores before the softmax, of the same shape; gets no gradient.
        weight: Weight of each row, of the shape [...] or one that expands to it; default 1. Gets no gradient.
        temperature: T > 0, by which the scores are divided.

    Returns:
        Scalar, in nats: float64 if the scores are, else float32. It can be differentiated once.

    Raises:
        ValueError: If the shapes differ.
    """
    if student.shape != teacher.shape:
        raise ValueError(f"scores of shapes {tuple(student.shape)} and {tuple(teacher.shape)} cannot be compared")
    row_weight = None if weight is None else weight.expand(student.shape[:-1]).flatten()
    student, teacher = (scores.reshape(-1, scores.shape[-1]) for scores in (student, teacher.detach()))
    total: Tensor = _Divergence.apply(student, teacher, row_weight, temperature)  # type: ignore[no-untyped-call]
    return total


class _Divergence(torch.autograd.Function):
    """Autograd function of `divergence_sum` for scores [R, C], which needs less memory than autograd's operations."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, weight: Tensor | None, temperature: float) -> Tensor:
        """Compute the weighted sum of KL divergences, and keep T times its gradient for `backward` if it is needed.

        T times the gradient is ``w_r (softmax(s_r / T) - softmax(t_r / T))``.
        """
        dtype = torch.promote_types(student.dtype, torch.float32)
        total = torch.zeros((), dtype=dtype, device=student.device)
        needs_gradient = bool(ctx.needs_input_grad[0])
        gradient = torch.empty(student.shape if needs_gradient else (0,), dtype=dtype, device=student.device)
        chunk = _DIVERGENCE_CHUNK if student.device.type == "cpu" else _ACCELERATOR_CHUNK
        rows = max(1, chunk // max(1, student.shape[-1]))
        for start in range(0, len(student), rows):
            part = slice(start, start + rows)
            log_s = _log_softmax(student[part], dtype, temperature)
            log_t = _log_softmax(teacher[part], dtype, temperature)
            target = log_t.exp()
            divergence = log_t.sub_(log_s).mul_(target).sum(-1)
            total += (divergence if weight is None else divergence * weight[part]).sum()
            if needs_gradient:
                row_gradient = torch.sub(log_s.exp_(), target, out=gradient[part])
                if weight is not None:
                    row_gradient.mul_(weight[part, None])
        ctx.dtype, ctx.factor = student.dtype, 1 / temperature
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient with respect to the student's scores."""
        (gradient,) = ctx.saved_tensors
        return (gradient * (outer[0] * ctx.factor)).to(ctx.dtype), None, None, None


def _log_softmax(scores: Tensor, dtype: torch.dtype, temperature: float) -> Tensor:
    """Return the log-softmax of scores divided by the temperature, in the given number type."""
    scores = scores.to(dtype)
    return F.log_softmax(scores if temperature == 1 else scores / temperature, -1)


def _squared_error_sum(student: Tensor, teacher: Tensor, counted: Tensor) -> Tensor:
    """Compute the sum of the squared differences of two tensors at the positions where `counted` is 1.

    The sum is float32 or wider. `counted` must expand to the tensors' shape, with rows first. The teacher gets no
    gradient, and the student's is exactly 0 at all other positions. It can be differentiated once. Raises ValueError if
    the shapes differ.
    """
    if student.shape != teacher.shape:
        raise ValueError(f"signals of shapes {tuple(student.shape)} and {tuple(teacher.shape)} cannot be compared")
    total: Tensor = _SquaredError.apply(student, teacher.detach(), counted)  # type: ignore[no-untyped-call]
    return total


class _SquaredError(torch.autograd.Function):
    """Autograd function of the sum of squared differences, computed some rows at a time."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, counted: Tensor) -> Tensor:
        """Compute the sum of squared differences, some rows at a time, and keep the differences for the gradient."""
        # in half precision the difference of close numbers is mostly rounding
        dtype = torch.promote_types(student.dtype, torch.float32)
        difference = torch.empty(student.shape, dtype=dtype, device=student.device)
        total, factor = torch.zeros((), dtype=dtype, device=student.device), counted.to(dtype)
        chunk = _SQUARED_ERROR_CHUNK if student.device.type == "cpu" else _ACCELERATOR_CHUNK
        rows = max(1, chunk // max(1, student[0].numel()))
        for start in range(0, len(student), rows):
            part = slice(start, start + rows)
            rows_difference = torch.sub(student[part].to(dtype), teacher[part].to(dtype), out=difference[part])
            flat = rows_difference.mul_(factor[part]).flatten()
            total += torch.dot(flat, flat)
        ctx.dtype = student.dtype
        ctx.save_for_backward(difference)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient with respect to the student's tensor, ``2 (s - t)`` where positions count."""
        (difference,) = ctx.saved_tensors
        return (difference * (2 * outer[0])).to(ctx.dtype), None, None
