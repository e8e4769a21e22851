"""Convolution; 1x1 ones, as in the Neural Engine layout, are plain matrix products."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pocketbert.runtime.coreml.kernels.registry import Array, Ints, kernel, like
from pocketbert.runtime.coreml.limits import elements


@kernel(like("x"))
def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Array:
    """Cross-correlation over one to three spatial axes.

    Args:
        x: [N, C, *D].
        weight: [O, C / groups, *K].
        bias: [O] or absent.
        strides: By spatial axis; default 1.
        pad_type: ``valid``, ``custom``, ``same`` or ``same_lower``.
        pad: Before and after each spatial axis, for ``custom``.
        dilations: By spatial axis; default 1.
        groups: Channels are split into so many.

    Returns:
        [N, O, *E].

    Raises:
        ValueError: If sizes do not fit.
    """
    axes = x.ndim - 2
    steps, spread = strides or (1,) * axes, dilations or (1,) * axes
    if axes < 1 or weight.ndim != x.ndim or not len(steps) == len(spread) == axes:
        raise ValueError(f"x {x.shape}, weight {weight.shape}, strides {steps}, dilations {spread}")
    if min(*steps, *spread, groups) < 1 or weight.shape[0] % groups:
        raise ValueError(f"strides {steps}, dilations {spread}, groups {groups}")
    if weight.shape[1] * groups != x.shape[1]:
        raise ValueError(f"weight {weight.shape} in {groups} groups for {x.shape[1]} channels")
    span = tuple((k - 1) * d + 1 for k, d in zip(weight.shape[2:], spread, strict=True))
    margins = _margins(x.shape[2:], span, steps, pad_type, pad or (0,) * (2 * axes))
    if any(before or after for before, after in margins):
        elements([*x.shape[:2], *(n + b + a for n, (b, a) in zip(x.shape[2:], margins, strict=True))])
        x = np.pad(x, ((0, 0), (0, 0), *margins))
    if weight.size == weight.shape[0] * weight.shape[1] and groups == 1 and set(steps) == {1}:
        kernel_matrix = weight.reshape(weight.shape[0], -1)
        elements((x.shape[0], weight.shape[0], *x.shape[2:]))
        out: Array = kernel_matrix @ x.reshape(x.shape[0], x.shape[1], -1)
        out = out.reshape(x.shape[0], weight.shape[0], *x.shape[2:])
    else:
        out = _general(x, weight, steps, spread, span, groups)
    if bias is not None:
        out += bias.reshape(-1, *(1,) * axes)
    return out


def _general(x: Array, weight: Array, steps: Ints, spread: Ints, span: Ints, groups: int) -> Array:
    axes = len(steps)
    windows = sliding_window_view(x, span, axis=tuple(range(2, x.ndim)))
    places = tuple(slice(None, None, s) for s in steps)
    points = tuple(slice(None, None, d) for d in spread)
    windows = windows[(slice(None), slice(None), *places, *points)]  # [N, C, *E, *K]
    elements((x.shape[0], weight.shape[0], *windows.shape[2 : 2 + axes]))
    elements(windows.shape)  # tensordot copies them
    inside, outside = x.shape[1] // groups, weight.shape[0] // groups
    over = [1, *range(2 + axes, 2 + 2 * axes)]
    parts = []
    for g in range(groups):
        part = windows[:, g * inside : (g + 1) * inside]
        matrix = weight[g * outside : (g + 1) * outside]
        parts.append(np.moveaxis(np.tensordot(part, matrix, (over, list(range(1, matrix.ndim)))), -1, 1))
    return np.concatenate(parts, axis=1)


def _margins(sizes: tuple[int, ...], span: Ints, steps: Ints, pad_type: str, pad: Ints) -> list[tuple[int, int]]:
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        if len(pad) != 2 * len(sizes) or min(pad) < 0:
            raise ValueError(f"pad {pad}")
        return list(zip(pad[::2], pad[1::2], strict=True))
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"pad_type {pad_type!r}")
    out = []
    for n, k, s in zip(sizes, span, steps, strict=True):
        total = max(0, (-(-n // s) - 1) * s + k - n)
        small, large = total // 2, total - total // 2
        out.append((small, large) if pad_type == "same" else (large, small))
    return out
