"""Moving values without changing them: shapes, slices, joins."""

from __future__ import annotations

import math

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, Arrays, Flags, Ints, kernel, like, named
from pocketbert.runtime.coreml.limits import elements
from pocketbert.runtime.coreml.mil_types import Dtype


@kernel(like("x"), exact=True)
def reshape(x: Array, shape: Ints) -> Array:
    """Other sizes for the same elements; 0 copies a size, -1 is what is left."""
    if 0 in shape and x.size:
        shape = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(shape))
    return x.reshape(shape)


@kernel(like("x"), exact=True)
def transpose(x: Array, perm: Ints) -> Array:
    """Axes in the order `perm`."""
    return x.transpose(perm)


@kernel(like("x"), exact=True)
def expand_dims(x: Array, axes: Ints) -> Array:
    """New axes of size 1 at the result's positions `axes`."""
    return np.expand_dims(x, axes)


@kernel(like("x"), exact=True)
def squeeze(x: Array, axes: Ints | None = None) -> Array:
    """Without the axes of size 1, or without those named."""
    return np.squeeze(x, axis=axes)


@kernel(like("x"), exact=True)
def split(x: Array, axis: int, num_splits: int | None = None, split_sizes: Ints | None = None) -> Arrays:
    """Pieces along `axis`, equal ones or of the sizes given.

    Raises:
        ValueError: If they do not add up.
    """
    total = x.shape[axis]
    if split_sizes is None:
        if not num_splits or num_splits < 0 or total % num_splits:
            raise ValueError(f"{total} in {num_splits} pieces")
        split_sizes = (total // num_splits,) * num_splits
    if sum(split_sizes) != total or min(split_sizes) < 0:
        raise ValueError(f"{total} in pieces of {split_sizes}")
    return tuple(np.split(x, np.cumsum(split_sizes)[:-1].tolist(), axis=axis))


@kernel(like("values"), exact=True)
def concat(values: Arrays, axis: int, interleave: bool = False) -> Array:
    """Values one after the other along `axis`, or in turns."""
    total = sum(v.size for v in values)
    elements((total,))
    # numbers are joined to a list, as in a shape that is put together from sizes
    values = tuple(v.reshape(1) if v.ndim == 0 else v for v in values)
    if not interleave:
        return np.concatenate(values, axis=axis)
    axis %= values[0].ndim
    stacked = np.stack(values, axis=axis + 1)
    return stacked.reshape(*stacked.shape[:axis], -1, *stacked.shape[axis + 2 :])


@kernel(like("values"), exact=True)
def stack(values: Arrays, axis: int) -> Array:
    """Values along a new axis."""
    elements((sum(v.size for v in values),))
    return np.stack(values, axis=axis)


@kernel(like("x"), exact=True)
def tile(x: Array, reps: Ints) -> Array:
    """`x` repeated along each axis."""
    if len(reps) != x.ndim:
        raise ValueError(f"{len(reps)} repetitions for rank {x.ndim}")
    elements([n * r for n, r in zip(x.shape, reps, strict=True)])
    return np.tile(x, reps)


@kernel(like("x"), exact=True)
def slice_by_index(
    x: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Flags | None = None,
    end_mask: Flags | None = None,
    squeeze_mask: Flags | None = None,
) -> Array:
    """x[begin:end:stride] by axis; a mask drops a bound, or the axis."""
    where: list[slice | int] = []
    for i in range(x.ndim):
        if squeeze_mask is not None and squeeze_mask[i]:
            where.append(begin[i])
            continue
        first = None if begin_mask is not None and begin_mask[i] else begin[i]
        last = None if end_mask is not None and end_mask[i] else end[i]
        where.append(slice(first, last, None if stride is None else stride[i]))
    result: Array = x[tuple(where)]
    return result


@kernel(like("x"), exact=True)
def slice_by_size(x: Array, begin: Ints, size: Ints) -> Array:
    """`size` elements from `begin` on by axis; -1 for all that follow."""
    ends = [n if s == -1 else b + s for n, b, s in zip(x.shape, begin, size, strict=True)]
    if any(b < 0 or e > n for n, b, e in zip(x.shape, begin, ends, strict=True)):
        raise ValueError(f"{size} from {begin} of {x.shape}")
    result: Array = x[tuple(slice(b, e) for b, e in zip(begin, ends, strict=True))]
    return result


@kernel(like("x"), exact=True)
def pad(x: Array, pad: Ints, mode: str = "constant", constant_val: float = 0.0) -> Array:
    """More elements around the last axes: a constant, the mirror image, or the edge.

    Args:
        x: Any shape.
        pad: Before and after each of the last len(pad) / 2 axes.
        mode: ``constant``, ``reflect`` or ``replicate``.
        constant_val: For ``constant``.
    """
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ValueError(f"pad {pad} for rank {x.ndim}")
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))
    if any(w < 0 for pair in widths for w in pair):
        raise ValueError(f"pad {pad}")
    elements([n + b + a for n, (b, a) in zip(x.shape, widths, strict=True)])
    if mode == "constant":
        return np.pad(x, widths, constant_values=constant_val)
    if mode == "reflect":
        return np.pad(x, widths, mode="reflect")
    if mode == "replicate":
        return np.pad(x, widths, mode="edge")
    raise ValueError(f"pad mode {mode!r}")


@kernel(named("output_dtype", Dtype.INT32), exact=True)
def shape(x: Array, output_dtype: str = "int32") -> Array:
    """The sizes of `x`."""
    return np.asarray(x.shape, Dtype(output_dtype).storage)


@kernel(like("value"), exact=True)
def fill(shape: Ints, value: Array | None = None) -> Array:
    """A tensor of one value."""
    elements(shape)
    if value is None:
        return np.zeros(shape, np.float32)
    return np.full(shape, value.reshape(()), value.dtype)


@kernel(like("start", "end", "step"))
def range_1d(end: Array, start: Array, step: Array) -> Array:
    """start, start + step, ... below (or above) end."""
    first, last, by = start.item(), end.item(), step.item()
    if not by or not math.isfinite(first + last + by):
        raise ValueError(f"from {first} to {last} by {by}")
    count = max(0, math.ceil((last - first) / by))
    elements((count,))
    out: Array = (first + by * np.arange(count)).astype(start.dtype)
    return out
