"""Operations that move values without changing them: shapes, slices, concatenation, and selection by index."""

from __future__ import annotations

import math

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, Arrays, Flags, Ints, dtype_named_by, dtype_of, kernel
from pocketbert.runtime.coreml.types import Dtype, check_elements


@kernel(dtype_of("x"), exact=True)
def _reshape(x: Array, shape: Ints) -> Array:
    """Reshape a tensor. A size of 0 copies the old one, -1 takes the remaining elements."""
    if 0 in shape and x.size:
        shape = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(shape))
    return x.reshape(shape)


@kernel(dtype_of("x"), exact=True)
def _transpose(x: Array, perm: Ints) -> Array:
    """Permute the axes into the order `perm`."""
    return x.transpose(perm)


@kernel(dtype_of("x"), exact=True)
def _expand_dims(x: Array, axes: Ints) -> Array:
    """Insert axes of size 1 at the positions `axes` of the result."""
    return np.expand_dims(x, axes)


@kernel(dtype_of("x"), exact=True)
def _squeeze(x: Array, axes: Ints | None = None) -> Array:
    """Remove the named axes of size 1, or all of them."""
    return np.squeeze(x, axis=axes)


@kernel(dtype_of("x"), exact=True)
def _split(x: Array, axis: int, num_splits: int | None = None, split_sizes: Ints | None = None) -> Arrays:
    """Split a tensor along `axis` into `num_splits` equal pieces, or into pieces of `split_sizes`.

    Raises:
        ValueError: If the sizes do not add up to the axis.
    """
    total = x.shape[axis]
    if split_sizes is None:
        if not num_splits or num_splits < 0 or total % num_splits:
            raise ValueError(f"{total} in {num_splits} pieces")
        split_sizes = (total // num_splits,) * num_splits
    if sum(split_sizes) != total or min(split_sizes) < 0:
        raise ValueError(f"{total} in pieces of {split_sizes}")
    return tuple(np.split(x, np.cumsum(split_sizes)[:-1].tolist(), axis=axis))


@kernel(dtype_of("values"), exact=True)
def _concat(values: Arrays, axis: int, interleave: bool = False) -> Array:
    """Concatenate tensors along `axis`, one after the other, or element by element if `interleave`."""
    total = sum(v.size for v in values)
    check_elements((total,))
    # numbers are joined to a list, as in a shape that is put together from sizes
    values = tuple(v.reshape(1) if v.ndim == 0 else v for v in values)
    if not interleave:
        return np.concatenate(values, axis=axis)
    axis %= values[0].ndim
    stacked = np.stack(values, axis=axis + 1)
    return stacked.reshape(*stacked.shape[:axis], -1, *stacked.shape[axis + 2 :])


@kernel(dtype_of("values"), exact=True)
def _stack(values: Arrays, axis: int) -> Array:
    """Stack tensors along a new axis."""
    check_elements((sum(v.size for v in values),))
    return np.stack(values, axis=axis)


@kernel(dtype_of("x"), exact=True)
def _tile(x: Array, reps: Ints) -> Array:
    """Repeat a tensor `reps` times along each axis."""
    if len(reps) != x.ndim:
        raise ValueError(f"{len(reps)} repetitions for rank {x.ndim}")
    check_elements([n * r for n, r in zip(x.shape, reps, strict=True)])
    return np.tile(x, reps)


@kernel(dtype_of("x"), exact=True)
def _slice_by_index(
    x: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Flags | None = None,
    end_mask: Flags | None = None,
    squeeze_mask: Flags | None = None,
) -> Array:
    """Slice a tensor, x[begin:end:stride] on each axis.

    An axis set in `begin_mask` or `end_mask` is sliced from its first or up to its last element. An axis set in
    `squeeze_mask` is removed: the single index `begin` is taken from it.
    """
    index: list[slice | int] = []
    for i in range(x.ndim):
        if squeeze_mask is not None and squeeze_mask[i]:
            index.append(begin[i])
            continue
        first = None if begin_mask is not None and begin_mask[i] else begin[i]
        last = None if end_mask is not None and end_mask[i] else end[i]
        index.append(slice(first, last, None if stride is None else stride[i]))
    result: Array = x[tuple(index)]
    return result


@kernel(dtype_of("x"), exact=True)
def _slice_by_size(x: Array, begin: Ints, size: Ints) -> Array:
    """Slice `size` elements from `begin` on along each axis. A size of -1 takes all elements that follow."""
    ends = [n if s == -1 else b + s for n, b, s in zip(x.shape, begin, size, strict=True)]
    if any(b < 0 or e > n for n, b, e in zip(x.shape, begin, ends, strict=True)):
        raise ValueError(f"{size} from {begin} of {x.shape}")
    result: Array = x[tuple(slice(b, e) for b, e in zip(begin, ends, strict=True))]
    return result


@kernel(dtype_of("x"), exact=True)
def _pad(x: Array, pad: Ints, mode: str = "constant", constant_val: float = 0.0) -> Array:
    """Pad the last axes with a constant, a mirror image or the edge value.

    Args:
        x: Array of any shape.
        pad: Number of elements before and after each of the last len(pad) / 2 axes.
        mode: ``constant``, ``reflect`` or ``replicate``.
        constant_val: The padding value of mode ``constant``.
    """
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ValueError(f"pad {pad} for rank {x.ndim}")
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))
    if any(w < 0 for pair in widths for w in pair):
        raise ValueError(f"pad {pad}")
    check_elements([n + b + a for n, (b, a) in zip(x.shape, widths, strict=True)])
    if mode == "constant":
        return np.pad(x, widths, constant_values=constant_val)
    if mode == "reflect":
        return np.pad(x, widths, mode="reflect")
    if mode == "replicate":
        return np.pad(x, widths, mode="edge")
    raise ValueError(f"pad mode {mode!r}")


@kernel(dtype_named_by("output_dtype", Dtype.INT32), exact=True)
def _shape(x: Array, output_dtype: str = "int32") -> Array:
    """Return the sizes of a tensor's axes as integers."""
    return np.asarray(x.shape, Dtype(output_dtype).storage)


@kernel(dtype_of("value"), exact=True)
def _fill(shape: Ints, value: Array | None = None) -> Array:
    """Return a tensor of a given shape filled with one value."""
    check_elements(shape)
    if value is None:
        return np.zeros(shape, np.float32)
    return np.full(shape, value.reshape(()), value.dtype)


@kernel(dtype_of("start", "end", "step"))
def _range_1d(end: Array, start: Array, step: Array) -> Array:
    """Return the numbers start, start + step, ... up to but not including end."""
    first, last, by = start.item(), end.item(), step.item()
    if not by or not math.isfinite(first + last + by):
        raise ValueError(f"from {first} to {last} by {by}")
    count = max(0, math.ceil((last - first) / by))
    check_elements((count,))
    out: Array = (first + by * np.arange(count)).astype(start.dtype)
    return out


# --- picking by index. An index outside is an error, whatever `validate_indices` is: a device would give anything. ----------

_NO_NEGATIVE = 7
"""From this operation set (iOS 17) on, negative indices are out of range."""


@kernel(dtype_of("x"), exact=True)
def _gather(
    x: Array,
    indices: Array,
    axis: int = 0,
    batch_dims: int = 0,
    validate_indices: bool = False,
    opset: int = _NO_NEGATIVE,
) -> Array:
    """Select slices of `x` along `axis` by integer indices.

    Args:
        x: Array of shape D.
        indices: Integers of shape N.
        axis: The axis of `x` to which the indices refer.
        batch_dims: Number of leading axes that `x` and `indices` have in common.
        validate_indices: Ignored: indices are always checked.
        opset: Operation set; from 7 on, negative indices are errors.

    Returns:
        The slices, of shape D[:axis] + N[batch_dims:] + D[axis + 1:].
    """
    axis %= x.ndim
    indices = _checked_indices(indices, x.shape[axis], opset)
    check_elements(x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1 :])
    if not batch_dims:
        return np.take(x, indices, axis=axis)
    shared = x.shape[:batch_dims]
    if not 0 < batch_dims <= axis or indices.shape[:batch_dims] != shared:
        raise ValueError(f"x {x.shape} and indices {indices.shape} with {batch_dims} common axes")
    pairs = zip(x.reshape(-1, *x.shape[batch_dims:]), indices.reshape(-1, *indices.shape[batch_dims:]), strict=True)
    taken = np.stack([np.take(one, i, axis=axis - batch_dims) for one, i in pairs])
    return taken.reshape(shared + taken.shape[1:])


@kernel(dtype_of("x"), exact=True)
def _gather_along_axis(
    x: Array, indices: Array, axis: int = 0, validate_indices: bool = False, opset: int = _NO_NEGATIVE
) -> Array:
    """Select single elements of `x` along `axis`. `indices` has x's shape except on that axis.

    Raises:
        ValueError: If the shapes differ on another axis.
        IndexError: If an index is out of range.
    """
    axis %= x.ndim
    if indices.ndim != x.ndim or any(
        n != m for i, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)) if i != axis
    ):
        raise ValueError(f"x {x.shape} and indices {indices.shape} along axis {axis}")
    return np.take_along_axis(x, _checked_indices(indices, x.shape[axis], opset), axis)


@kernel(dtype_of("x"), exact=True)
def _gather_nd(
    x: Array,
    indices: Array,
    batch_dims: int = 0,
    validate_indices: bool = False,
    opset: int = _NO_NEGATIVE,
) -> Array:
    """Select slices of `x` at positions on several axes, which the last axis of `indices` holds.

    Args:
        x: Array of shape D.
        indices: Integers of shape K.
        batch_dims: Number of leading axes that `x` and `indices` have in common.
        validate_indices: Ignored: indices are always checked.
        opset: Operation set; from 7 on, negative indices are errors.

    Returns:
        The slices, of shape K[:-1] + D[batch_dims + K[-1]:].
    """
    shared = x.shape[:batch_dims]
    if indices.shape[:batch_dims] != shared or indices.shape[-1] + batch_dims > x.ndim:
        raise ValueError(f"x {x.shape} and indices {indices.shape} with {batch_dims} common axes")
    check_elements(indices.shape[:-1] + x.shape[batch_dims + indices.shape[-1] :])
    picked = indices.shape[:-1]
    where = [np.arange(n).reshape([n if j == i else 1 for j in range(len(picked))]) for i, n in enumerate(shared)]
    where += [_checked_indices(indices[..., i], x.shape[batch_dims + i], opset) for i in range(indices.shape[-1])]
    result: Array = x[tuple(where)]
    return result


def _checked_indices(indices: Array, size: int, opset: int) -> Array:
    """Return the indices, after checking that all are integers inside an axis of `size`.

    Raises IndexError for an index outside, ValueError for indices that are no integers.
    """
    if indices.dtype.kind not in "iu":
        raise ValueError(f"indices of {indices.dtype}")
    if indices.size:
        low, high = int(indices.min()), int(indices.max())
        if high >= size or low < (0 if opset >= _NO_NEGATIVE else -size):
            bad = high if high >= size else low
            raise IndexError(f"index {bad} outside a table of {size}")
    return indices
