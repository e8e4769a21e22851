"""Picking by index. An index outside is an error, whatever `validate_indices` says: a device would give anything."""

from __future__ import annotations

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, kernel, like
from pocketbert.runtime.coreml.limits import elements

_NO_NEGATIVE = 7
"""From this operation set (iOS 17) on, negative indices are out of range."""


@kernel(like("x"), exact=True)
def gather(
    x: Array,
    indices: Array,
    axis: int = 0,
    batch_dims: int = 0,
    validate_indices: bool = False,
    opset: int = _NO_NEGATIVE,
) -> Array:
    """Slices of `x` along `axis`.

    Args:
        x: D.
        indices: N, integers.
        axis: Which axis the indices count.
        batch_dims: Leading axes that both share.
        validate_indices: No difference here.
        opset: Decides on negative indices.

    Returns:
        D[:axis] + N[batch_dims:] + D[axis + 1:].
    """
    axis %= x.ndim
    indices = _checked(indices, x.shape[axis], opset)
    elements(x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1 :])
    if not batch_dims:
        return np.take(x, indices, axis=axis)
    shared = x.shape[:batch_dims]
    if not 0 < batch_dims <= axis or indices.shape[:batch_dims] != shared:
        raise ValueError(f"x {x.shape} and indices {indices.shape} with {batch_dims} common axes")
    pairs = zip(x.reshape(-1, *x.shape[batch_dims:]), indices.reshape(-1, *indices.shape[batch_dims:]), strict=True)
    taken = np.stack([np.take(one, i, axis=axis - batch_dims) for one, i in pairs])
    return taken.reshape(shared + taken.shape[1:])


@kernel(like("x"), exact=True)
def gather_along_axis(
    x: Array, indices: Array, axis: int = 0, validate_indices: bool = False, opset: int = _NO_NEGATIVE
) -> Array:
    """Elements of `x` along `axis`; `indices` has x's rank and sizes but for that axis.

    Raises:
        ValueError: If other sizes differ.
        IndexError: If an index is outside.
    """
    axis %= x.ndim
    if indices.ndim != x.ndim or any(
        n != m for i, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)) if i != axis
    ):
        raise ValueError(f"x {x.shape} and indices {indices.shape} along axis {axis}")
    return np.take_along_axis(x, _checked(indices, x.shape[axis], opset), axis)


@kernel(like("x"), exact=True)
def gather_nd(
    x: Array,
    indices: Array,
    batch_dims: int = 0,
    validate_indices: bool = False,
    opset: int = _NO_NEGATIVE,
) -> Array:
    """Slices of `x` at positions given by the last axis of `indices`.

    Args:
        x: D.
        indices: K, integers.
        batch_dims: Leading axes that both share.
        validate_indices: No difference here.
        opset: Decides on negative indices.

    Returns:
        K[:-1] + D[batch_dims + K[-1]:].
    """
    shared = x.shape[:batch_dims]
    if indices.shape[:batch_dims] != shared or indices.shape[-1] + batch_dims > x.ndim:
        raise ValueError(f"x {x.shape} and indices {indices.shape} with {batch_dims} common axes")
    elements(indices.shape[:-1] + x.shape[batch_dims + indices.shape[-1] :])
    picked = indices.shape[:-1]
    where = [np.arange(n).reshape([n if j == i else 1 for j in range(len(picked))]) for i, n in enumerate(shared)]
    where += [_checked(indices[..., i], x.shape[batch_dims + i], opset) for i in range(indices.shape[-1])]
    result: Array = x[tuple(where)]
    return result


def _checked(indices: Array, size: int, opset: int) -> Array:
    if indices.dtype.kind not in "iu":
        raise ValueError(f"indices of {indices.dtype}")
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if high >= size or low < (0 if opset >= _NO_NEGATIVE else -size):
            bad = high if high >= size else low
            raise IndexError(f"index {bad} outside a table of {size}")
    return indices
