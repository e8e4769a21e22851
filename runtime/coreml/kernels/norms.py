"""Normalization."""

from __future__ import annotations

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, Ints, kernel, like


@kernel(like("x"))
def layer_norm(
    x: Array,
    axes: Ints | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over `axes`.

    Args:
        x: Any shape.
        axes: Axes of the statistics; None for all.
        gamma: Sizes of `axes`, in ascending order of the axes.
        beta: As gamma.
        epsilon: Added to the variance.
    """
    over = tuple(range(x.ndim)) if axes is None else tuple(sorted(a % x.ndim for a in axes))
    count = 1
    for axis in over:
        count *= x.shape[axis]
    out: Array = x - x.sum(axis=over, keepdims=True) / x.dtype.type(count)
    variance = (out * out).sum(axis=over, keepdims=True) / x.dtype.type(count)
    out /= np.sqrt(variance + x.dtype.type(epsilon))
    shape = [x.shape[a] if a in over else 1 for a in range(x.ndim)]
    if gamma is not None:
        out *= gamma.reshape(shape)
    if beta is not None:
        out += beta.reshape(shape)
    return out


@kernel(like("x"))
def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta by channel.

    Args:
        x: [N, C, ...].
        mean: [C].
        variance: [C].
        gamma: [C].
        beta: [C].
        epsilon: Added to the variance.

    Raises:
        ValueError: If a vector has another length than the channel axis.
    """
    for value in (mean, variance, gamma, beta):
        if value is not None and value.shape != x.shape[1:2]:
            raise ValueError(f"values of shape {value.shape} for {x.shape}")
    shape = (1, -1) + (1,) * (x.ndim - 2)
    out: Array = x - mean.reshape(shape)
    out /= np.sqrt(variance + variance.dtype.type(epsilon)).reshape(shape)
    if gamma is not None:
        out *= gamma.reshape(shape)
    if beta is not None:
        out += beta.reshape(shape)
    return out
