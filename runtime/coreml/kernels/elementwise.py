"""Elementwise operations with broadcasting, activations, reductions, and the last operation of a classifier.

Most are numpy functions registered under their MIL names; the others are functions of their own. `_erf` is used by GELU too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import (
    Array,
    Declared,
    Ints,
    Texts,
    dtype_named_by,
    dtype_of,
    fixed_dtypes,
    kernel,
    register,
)
from pocketbert.runtime.coreml.types import RESULT_ELEMENTS, Dtype, check_elements


def _check_broadcast(*operands: Array) -> None:
    """Raise ValueError if operands would broadcast to an absurdly large result, before numpy allocates it."""
    product = math.prod(operand.size for operand in operands)
    if product > RESULT_ELEMENTS:  # the result cannot be larger than the product, which is cheap to know
        check_elements(np.broadcast_shapes(*(o.shape for o in operands)))


def _binary(name: str, function: Callable[[Any, Any], Any], boolean: bool = False, exact: bool = False) -> None:
    """Register a numpy function of two arrays as a MIL operation.

    Its result has the dtype of the arrays, or bool if `boolean`. `exact` marks a function whose result needs no
    rounding to fp16.
    """

    def run(x: Array, y: Array) -> Array:
        _check_broadcast(x, y)
        result: Array = function(x, y)
        return result

    same_dtype = dtype_of("x", "y")

    def boolean_rule(declared: Declared) -> tuple[Dtype, ...]:
        same_dtype(declared)  # refuses operands of different dtypes
        return (Dtype.BOOL,)

    register(name, run, boolean_rule if boolean else same_dtype, exact or boolean)


def _unary(name: str, function: Callable[[Any], Any], exact: bool = False) -> None:
    """Register a numpy function of x as a MIL operation. Its result has x's dtype."""

    def run(x: Array) -> Array:
        result: Array = function(x)
        return result

    register(name, run, dtype_of("x"), exact)


_binary("add", np.add)
_binary("sub", np.subtract)
_binary("mul", np.multiply)
_binary("real_div", np.true_divide)
_binary("floor_div", np.floor_divide)
_binary("mod", np.mod)
_binary("pow", np.power)
_binary("maximum", np.maximum, exact=True)
_binary("minimum", np.minimum, exact=True)
_binary("equal", np.equal, boolean=True)
_binary("not_equal", np.not_equal, boolean=True)
_binary("greater", np.greater, boolean=True)
_binary("greater_equal", np.greater_equal, boolean=True)
_binary("less", np.less, boolean=True)
_binary("less_equal", np.less_equal, boolean=True)
_binary("logical_and", np.logical_and, boolean=True)
_binary("logical_or", np.logical_or, boolean=True)
_binary("logical_xor", np.logical_xor, boolean=True)

_unary("abs", np.abs, exact=True)
_unary("ceil", np.ceil, exact=True)
_unary("floor", np.floor, exact=True)
_unary("round", np.rint, exact=True)
_unary("sign", np.sign, exact=True)
_unary("identity", lambda x: x, exact=True)
_unary("logical_not", np.logical_not, exact=True)
_unary("cos", np.cos)
_unary("sin", np.sin)
_unary("exp", np.exp)
_unary("sqrt", np.sqrt)
_unary("square", np.square)
_unary("tanh", np.tanh)


@kernel(dtype_of("x"))
def _log(x: Array, epsilon: float = 1e-45) -> Array:
    """Compute the natural logarithm of x + epsilon."""
    result: Array = np.log(x + x.dtype.type(epsilon))
    return result


@kernel(dtype_of("x"))
def _rsqrt(x: Array, epsilon: float = 1e-12) -> Array:
    """Compute 1 / sqrt(x + epsilon)."""
    result: Array = 1 / np.sqrt(x + x.dtype.type(epsilon))
    return result


@kernel(dtype_of("x"), exact=True)
def _clip(x: Array, alpha: float, beta: float) -> Array:
    """Clamp x to the range from alpha to beta."""
    result: Array = np.minimum(np.maximum(x, x.dtype.type(alpha)), x.dtype.type(beta))
    return result


@kernel(dtype_of("a", "b"), exact=True)
def _select(cond: Array, a: Array, b: Array) -> Array:
    """Take `a` where `cond` is true, else `b`. All three broadcast, whatever rank the program declares."""
    _check_broadcast(cond, a, b)
    return np.where(cond, a, b)


@kernel(dtype_named_by("dtype"))
def _cast(x: Array, dtype: str) -> Array:
    """Convert `x` to another dtype. Floats become integers towards zero."""
    out: Array = x.astype(Dtype(dtype).storage)
    return out


# --- activations ---------------------------------------------------------------------------------------------------------

_LARGEST_SQUARE = np.float32(16.0)
_ERF_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (
        1.12837971e00,
        1.02765482e-01,
        -1.84385039e-04,
        -6.25718147e-04,
        8.97119240e-05,
        -5.98555552e-06,
        1.58950450e-07,
    )
)


def _erf(x: Array) -> Array:
    """Compute the error function in float32, within 1.5e-7. The library numpy has none.

    erf(x) = tanh(x P(x²)), P being a polynomial fitted to atanh(erf(x)) / x on [-4, 4], weighted by the effect of its
    error on the result. A rational function as in most libraries rounds worse in float32 (3.7e-7) and takes longer.

    Args:
        x: Array of float32.

    Returns:
        A new array.
    """
    square = x * x
    # beyond 4 the result is 1 in float32: P is held, x itself carries tanh there
    square = np.minimum(square, _LARGEST_SQUARE)
    out: Array = square * _ERF_COEFFICIENTS[-1]
    for c in _ERF_COEFFICIENTS[-2:0:-1]:
        out += c
        out *= square
    out += _ERF_COEFFICIENTS[0]
    out *= x
    return np.tanh(out)


@kernel(dtype_of("x"), exact=True)
def _relu(x: Array) -> Array:
    """Compute max(x, 0)."""
    out: Array = np.maximum(x, x.dtype.type(0))
    return out


@kernel(dtype_of("x"))
def _sigmoid(x: Array) -> Array:
    """Compute 1 / (1 + exp(-x))."""
    result: Array = 1 / (1 + np.exp(-x))
    return result


@kernel(dtype_of("x"))
def _silu(x: Array) -> Array:
    """Compute x * sigmoid(x)."""
    result: Array = x / (1 + np.exp(-x))
    return result


register("erf", _erf, dtype_of("x"))


@kernel(dtype_of("x"))
def _gelu(x: Array, mode: str = "EXACT") -> Array:
    """Compute the Gaussian error linear unit.

    Raises:
        ValueError: For a mode other than MIL's three.
    """
    if mode == "EXACT":
        out = _erf(x * np.float32(math.sqrt(0.5)))
        out += 1
        out *= x
        out *= np.float32(0.5)
        return out
    if mode == "TANH_APPROXIMATION":
        out = x * x
        out *= np.float32(0.044715)
        out += 1
        out *= x
        out *= np.float32(math.sqrt(2 / math.pi))
        np.tanh(out, out=out)
        out += 1
        out *= x
        out *= np.float32(0.5)
        return out
    if mode == "SIGMOID_APPROXIMATION":
        result: Array = x / (1 + np.exp(np.float32(-1.702) * x))
        return result
    raise ValueError(f"gelu mode {mode!r}")


@kernel(dtype_of("x"))
def _softmax(x: Array, axis: int = -1) -> Array:
    """Compute exp(x) / sum(exp(x)) along `axis`, shifted by the largest value first."""
    out: Array = x - x.max(axis=axis, keepdims=True)
    np.exp(out, out=out)
    out /= out.sum(axis=axis, keepdims=True)
    return out


@kernel(fixed_dtypes(Dtype.STRING, Dtype.FP64), exact=True)
def _classify(probabilities: Array, classes: Texts) -> tuple[str, dict[str, float]]:
    """Return the most probable label, and the probability of each label.

    Args:
        probabilities: As many elements as there are classes.
        classes: Labels.

    Returns:
        The first of the most probable labels; the probability by label.
    """
    values = probabilities.reshape(-1)
    if values.size != len(classes):
        raise ValueError(f"{values.size} probabilities for {len(classes)} classes")
    return classes[int(np.argmax(values))], dict(zip(classes, values.tolist(), strict=True))


# --- reductions ----------------------------------------------------------------------------------------------------------


def _reduction(name: str, function: Callable[..., Any], exact: bool = False) -> None:
    """Register a numpy reduction as a MIL operation. It reduces the given axes, or all if they are None."""

    def run(x: Array, axes: Ints | None = None, keep_dims: bool = False) -> Array:
        result: Array = function(x, axis=axes, keepdims=keep_dims)
        return result

    register(name, run, dtype_of("x"), exact)


_reduction("reduce_mean", np.mean)
_reduction("reduce_sum", np.sum)
_reduction("reduce_max", np.max, exact=True)
_reduction("reduce_min", np.min, exact=True)
_reduction("reduce_prod", np.prod)


@kernel(dtype_named_by("output_dtype", Dtype.INT32), exact=True)
def _reduce_argmax(x: Array, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32") -> Array:
    """Return the index of the largest value along `axis`, or the first such index if several values are equal."""
    result: Array = np.argmax(x, axis=axis, keepdims=keep_dims).astype(Dtype(output_dtype).storage)
    return result


@kernel(dtype_of("x"))
def _cumsum(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    """Compute the running sum along `axis`.

    `exclusive` leaves out the element itself; `reverse` sums from the end.
    """
    if reverse:
        x = np.flip(x, axis)
    out: Array = np.cumsum(x, axis=axis, dtype=x.dtype)
    if exclusive:
        out -= x
    return np.flip(out, axis) if reverse else out
