"""MiniLM's relation terms: how the tokens of a text relate to each other, whatever the widths of the models.

Conventions: B batch, S length, H heads of a model, A relation heads, d_r their size.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pocketbert.core.errors import InputError, Problem

HEADS = 48
"""Relation heads of a student of a base-size teacher in the paper."""

_AT_ONCE, _AT_ONCE_CPU = 1 << 24, 1 << 19
"""Most numbers of one model's relations that are in memory at a time; a row is never divided. A CPU is faster where they stay
in its cache."""


def relation_heads(
    student_width: int, teacher_width: int, wanted: int | None = None, where: str = "relation_heads"
) -> int:
    """Return the number of relation heads A that divides the queries, keys and values of both models.

    Args:
        student_width: Numbers of the student's query in all heads together; see `query_width`.
        teacher_width: The teacher's.
        wanted: An explicit number; default 48 or the largest possible number below.
        where: Recipe key, for errors.

    Returns:
        A.

    Raises:
        InputError: If the explicit number does not divide both, with those that do.
    """
    both = gcd(student_width, teacher_width)
    possible = [n for n in range(1, both + 1) if both % n == 0]
    if wanted is None:
        return max(n for n in possible if n <= HEADS)
    if wanted not in possible:
        raise InputError(
            Problem(
                where,
                f"{wanted} relation heads do not divide the student's {student_width} and the teacher's "
                f"{teacher_width} numbers; possible: {', '.join(map(str, possible))}.",
                "Choose one of these, or leave it out.",
            )
        )
    return wanted


def relation_kl(student: Tensor, teacher: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Compute the KL divergence of self-relations, averaged over relation heads and real query positions.

    ``1/(A |x|) * sum_A sum_q KL(R_T || R_S)`` with ``R = softmax(X X^T / sqrt(d_r))`` over the real keys, for X
    the queries, keys or values (MiniLMv2, Wang et al. 2021, arXiv 2012.15828, section 3.1, eq. 1-5). With A the
    models' own heads and X the values it is MiniLM's value relation (Wang et al. 2020, arXiv 2002.10957,
    section 3.2).

    The vectors of all heads are put together and cut anew into A relation heads. Computed in fp32 (fp64 for
    fp64), some rows at a time, together with the gradient: what is kept for the backward pass is as large as
    the student's vectors, not as the relations, which take S / d_r times as much.

    Args:
        student: [B, H, S, head size].
        teacher: [B, H, S, head size]; heads and sizes may be others. Gets no gradient.
        mask: 1 at real tokens, [B, S].
        heads: A; divides H * head size of both.

    Returns:
        Scalar, in nats, 0 if there is no real token; differentiable once.

    Raises:
        ValueError: If the heads do not divide the vectors.
    """
    ours, theirs = _together(student), _together(teacher)
    if ours.shape[-1] % heads or theirs.shape[-1] % heads:
        raise ValueError(f"{heads} relation heads do not divide {ours.shape[-1]} and {theirs.shape[-1]} numbers")
    divergence: Tensor = _RelationDivergence.apply(ours, theirs.detach(), mask, heads)  # type: ignore[no-untyped-call]
    return divergence


class _RelationDivergence(torch.autograd.Function):
    """`relation_kl` on [B, S, width]."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, mask: Tensor, heads: int) -> Tensor:
        """Sum of the divergences by parts, and where needed its gradient, over their number."""
        length, kind = mask.shape[1], student.device.type
        dtype = torch.promote_types(student.dtype, torch.float32)
        total = torch.zeros((), dtype=dtype, device=student.device)
        weight = mask.to(dtype)[:, None, :]
        gradient = torch.empty(student.shape, dtype=dtype, device=student.device)
        rows = max(1, (_AT_ONCE_CPU if kind == "cpu" else _AT_ONCE) // (heads * length * length))
        known = torch.amp.autocast_mode.is_autocast_available(kind)
        with torch.autocast(kind, enabled=False) if known else nullcontext():
            for start in range(0, len(mask), rows):
                part = slice(start, start + rows)
                padded, counts = mask[part, None, None, :] == 0, weight[part]
                ours = _split(student[part].to(dtype), heads)
                log_s = _log_relations(ours, padded)
                log_t = _log_relations(_split(teacher[part].to(dtype), heads), padded)
                target = log_t.exp()
                total += ((target * log_t.sub_(log_s)).sum(-1) * counts).sum()
                if ctx.needs_input_grad[0]:
                    # d KL / d scores = R_S - R_T, and a vector takes part as query and as key
                    apart = log_s.exp_().sub_(target).mul_(counts[..., None])
                    both = torch.matmul(apart, ours) + torch.matmul(apart.transpose(2, 3), ours)
                    gradient[part] = both.mul_(ours.shape[-1] ** -0.5).transpose(1, 2).flatten(2)
        number = weight.sum().clamp(min=1) * heads
        ctx.dtype = student.dtype
        ctx.save_for_backward(gradient, number)
        return total / number

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of the student's vectors."""
        gradient, number = ctx.saved_tensors
        return (gradient * (outer[0] / number)).to(ctx.dtype), None, None, None


def _together(vectors: Tensor) -> Tensor:
    """[B, H, S, size] to [B, S, H * size]."""
    return vectors.transpose(1, 2).flatten(2)


def _split(vectors: Tensor, heads: int) -> Tensor:
    """[B, S, A * d_r] to [B, A, S, d_r]."""
    return vectors.reshape(*vectors.shape[:2], heads, -1).transpose(1, 2)


def _log_relations(vectors: Tensor, padded: Tensor) -> Tensor:
    """Logarithms of the relations of [B, A, S, d_r], [B, A, S, S]; those to padded keys are finite, their exp is 0."""
    scores = torch.matmul(vectors * vectors.shape[-1] ** -0.5, vectors.transpose(2, 3))
    return F.log_softmax(scores.masked_fill_(padded, torch.finfo(scores.dtype).min), -1)
