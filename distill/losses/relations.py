"""The loss of MiniLM: `relation_kl` compares the self-attention relations of two models, whatever their widths.

`relation_heads` chooses the number of relation heads for two models.

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

_MAX_HEADS = 48
"""Relation heads of a student of a base-size teacher in the paper."""

_ACCELERATOR_CHUNK, _CPU_CHUNK = 1 << 24, 1 << 19
"""Most numbers of one model's relations in memory at a time; a row is never divided.

A CPU is faster if they stay in its cache.
"""


def relation_heads(
    student_width: int, teacher_width: int, wanted: int | None = None, where: str = "relation_heads"
) -> int:
    """Return the number of relation heads A into which the queries, keys and values of both models are split (MiniLM).

    Args:
        student_width: Channels of the student's query over all heads; see `query_width`.
        teacher_width: Channels of the teacher's query over all heads.
        wanted: The number that the recipe asks for; None for 48, or the largest possible number below.
        where: Recipe key that error messages name.

    Returns:
        The number A.

    Raises:
        InputError: If `wanted` does not divide both widths; the message lists the numbers that do.
    """
    divisor = gcd(student_width, teacher_width)
    possible = [n for n in range(1, divisor + 1) if divisor % n == 0]
    if wanted is None:
        return max(n for n in possible if n <= _MAX_HEADS)
    if wanted not in possible:
        what = (
            f"{wanted} relation heads do not divide the student's {student_width} and the teacher's {teacher_width} "
            f"numbers; possible: {', '.join(map(str, possible))}."
        )
        raise InputError(Problem(where, what, "Choose one of these, or leave it out."))
    return wanted


def relation_kl(student: Tensor, teacher: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Compute MiniLM's loss: the KL divergence of two models' token-to-token relations, over heads and real queries.

    It is ``1/(A |x|) * sum_A sum_q KL(R_T || R_S)`` with ``R = softmax(X X^T / sqrt(d_r))`` over the real keys, for X
    the queries, keys or values (MiniLMv2, Wang et al. 2021, arXiv 2012.15828, section 3.1, eq. 1-5). With A the models'
    own heads and X the values it is MiniLM's value relation (Wang et al. 2020, arXiv 2002.10957, section 3.2).

    The vectors of all heads are concatenated and split again into A relation heads. The loss is computed in fp32 (in
    fp64 if the student's vectors are fp64), some rows at a time, together with the gradient: what is kept for the
    backward pass is as large as the student's vectors, not as the relations, which take S / d_r times as much.

    Args:
        student: The student's queries, keys or values, [B, H, S, head size].
        teacher: The teacher's queries, keys or values, [B, H, S, head size]; its heads may differ in number and size.
            Gets no gradient.
        mask: 1 at real tokens, [B, S].
        heads: Relation heads A, which divide H * head size of both models.

    Returns:
        Scalar, in nats, 0 if there is no real token. It can be differentiated once.

    Raises:
        ValueError: If the number of relation heads does not divide the width of a model's vectors.
    """
    student, teacher = (vectors.transpose(1, 2).flatten(2) for vectors in (student, teacher))
    if student.shape[-1] % heads or teacher.shape[-1] % heads:
        raise ValueError(f"{heads} relation heads do not divide {student.shape[-1]} and {teacher.shape[-1]} numbers")
    divergence: Tensor = _RelationDivergence.apply(student, teacher.detach(), mask, heads)  # type: ignore[no-untyped-call]
    return divergence


class _RelationDivergence(torch.autograd.Function):
    """Autograd function of `relation_kl` for vectors [B, S, width], which needs little memory."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, mask: Tensor, heads: int) -> Tensor:
        """Return the KL divergence averaged over heads and real tokens, computed for a few rows at a time.

        If the student needs a gradient, it is computed in the same pass, before the division by the count, and kept for `backward`.
        """
        length, device = mask.shape[1], student.device.type
        dtype = torch.promote_types(student.dtype, torch.float32)
        total = torch.zeros((), dtype=dtype, device=student.device)
        weight = mask.to(dtype)[:, None, :]
        gradient = torch.empty(student.shape, dtype=dtype, device=student.device)
        rows = max(1, (_CPU_CHUNK if device == "cpu" else _ACCELERATOR_CHUNK) // (heads * length * length))
        has_autocast = torch.amp.autocast_mode.is_autocast_available(device)
        with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
            for start in range(0, len(mask), rows):
                part = slice(start, start + rows)
                padded, query_weight = mask[part, None, None, :] == 0, weight[part]
                vectors = _split_heads(student[part].to(dtype), heads)
                log_s = _log_relations(vectors, padded)
                log_t = _log_relations(_split_heads(teacher[part].to(dtype), heads), padded)
                target = log_t.exp()
                total += ((target * log_t.sub_(log_s)).sum(-1) * query_weight).sum()
                if ctx.needs_input_grad[0]:
                    # d KL / d scores = R_S - R_T, and a vector takes part as query and as key
                    score_gradient = log_s.exp_().sub_(target).mul_(query_weight[..., None])
                    as_query = torch.matmul(score_gradient, vectors)
                    vector_gradient = as_query + torch.matmul(score_gradient.transpose(2, 3), vectors)
                    scaled = vector_gradient.mul_(vectors.shape[-1] ** -0.5)
                    gradient[part] = scaled.transpose(1, 2).flatten(2)
        count = weight.sum().clamp(min=1) * heads
        ctx.dtype = student.dtype
        ctx.save_for_backward(gradient, count)
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient with respect to the student's vectors."""
        gradient, count = ctx.saved_tensors
        return (gradient * (outer[0] / count)).to(ctx.dtype), None, None, None


def _split_heads(vectors: Tensor, heads: int) -> Tensor:
    """Reshape [B, S, A * d_r] to [B, A, S, d_r]."""
    return vectors.reshape(*vectors.shape[:2], heads, -1).transpose(1, 2)


def _log_relations(vectors: Tensor, padded: Tensor) -> Tensor:
    """Compute log-softmax relations between all tokens, [B, A, S, d_r] to [B, A, S, S].

    Relations to padded keys are finite numbers whose exp is 0.
    """
    scores = torch.matmul(vectors * vectors.shape[-1] ** -0.5, vectors.transpose(2, 3))
    return F.log_softmax(scores.masked_fill_(padded, torch.finfo(scores.dtype).min), -1)
