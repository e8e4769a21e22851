"""Squared errors of wide signals at real tokens, computed together with what their gradient needs, some rows at a time.

Written as a choice of targets, a difference, squares and a sum, with what autograd keeps of them, the error of one layer's
attention scores reads and writes some ten arrays of megabytes. Here the rows at work stay in the cache, and what is kept for
the backward pass is one array as large as the student's signal: the difference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_AT_ONCE = 1 << 18
"""Numbers of a signal that are at work at a time on a CPU; a row is never divided. Their sum is as exact as one of a whole
batch only while they are few."""
_AT_ONCE_ELSEWHERE = 1 << 26
"""On an accelerator each operation has a price of its own."""


def squared_error_sum(student: Tensor, teacher: Tensor, real: Tensor) -> Tensor:
    """``sum (s - t)^2`` over what is real.

    Args:
        student: Signal of any shape, rows first; finite, also at padding.
        teacher: Likewise, of the same shape; gets no gradient.
        real: 1 at what counts, 0 elsewhere; of a shape that expands to the signal's, rows first.

    Returns:
        Scalar; float32, float64 for float64. Differentiable once; the gradient is exactly 0 at what is not real.

    Raises:
        ValueError: If the shapes differ.
    """
    if student.shape != teacher.shape:
        raise ValueError(f"signals of shapes {tuple(student.shape)} and {tuple(teacher.shape)} cannot be compared")
    total: Tensor = _SquaredError.apply(student, teacher.detach(), real)  # type: ignore[no-untyped-call]
    return total


class _SquaredError(torch.autograd.Function):
    """`squared_error_sum`."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, real: Tensor) -> Tensor:
        """The sum; keeps the difference."""
        # in half precision the difference of close numbers is mostly rounding
        dtype = torch.promote_types(student.dtype, torch.float32)
        apart = torch.empty(student.shape, dtype=dtype, device=student.device)
        total, kept = torch.zeros((), dtype=dtype, device=student.device), real.to(dtype)
        most = _AT_ONCE if student.device.type == "cpu" else _AT_ONCE_ELSEWHERE
        rows = max(1, most // max(1, student[0].numel()))
        for start in range(0, len(student), rows):
            part = slice(start, start + rows)
            made = torch.sub(student[part].to(dtype), teacher[part].to(dtype), out=apart[part])
            flat = made.mul_(kept[part]).flatten()
            total += torch.dot(flat, flat)
        ctx.dtype = student.dtype
        ctx.save_for_backward(apart)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the student's signal, ``2 (s - t)`` where real."""
        (apart,) = ctx.saved_tensors
        return (apart * (2 * outer[0])).to(ctx.dtype), None, None
