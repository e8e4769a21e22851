"""Nonlinear functions."""

from __future__ import annotations

import math

import numpy as np

from pocketbert.runtime.coreml.kernels.error_function import erf
from pocketbert.runtime.coreml.kernels.registry import Array, kernel, like


@kernel(like("x"), exact=True)
def relu(x: Array) -> Array:
    """max(x, 0)."""
    out: Array = np.maximum(x, x.dtype.type(0))
    return out


@kernel(like("x"))
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    result: Array = 1 / (1 + np.exp(-x))
    return result


@kernel(like("x"))
def silu(x: Array) -> Array:
    """The product x * sigmoid(x)."""
    result: Array = x / (1 + np.exp(-x))
    return result


@kernel(like("x"), name="erf")
def erf_op(x: Array) -> Array:
    """The error function."""
    return erf(x)


@kernel(like("x"))
def gelu(x: Array, mode: str = "EXACT") -> Array:
    """The Gaussian error linear unit.

    Raises:
        ValueError: For a mode other than MIL's three.
    """
    if mode == "EXACT":
        out = erf(x * np.float32(math.sqrt(0.5)))
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


@kernel(like("x"))
def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along `axis`, shifted by the largest value first."""
    out: Array = x - x.max(axis=axis, keepdims=True)
    np.exp(out, out=out)
    out /= out.sum(axis=axis, keepdims=True)
    return out
