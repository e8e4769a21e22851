"""Operations on one element at a time, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pocketbert.runtime.coreml.kernels.registry import Array, kernel, like, named, register
from pocketbert.runtime.coreml.limits import RESULT_ELEMENTS, elements
from pocketbert.runtime.coreml.mil_types import Dtype


def _fits(*operands: Array) -> None:
    """Refuse a broadcast that would be absurdly large, before numpy allocates it."""
    product = 1
    for operand in operands:
        product *= operand.size
    if product > RESULT_ELEMENTS:  # the result cannot be larger than the product, which is cheap to know
        elements(np.broadcast_shapes(*(o.shape for o in operands)))


def _binary(name: str, function: Callable[[Any, Any], Any], boolean: bool = False, exact: bool = False) -> None:
    """Register a binary operation."""

    def run(x: Array, y: Array) -> Array:
        _fits(x, y)
        result: Array = function(x, y)
        return result

    same = like("x", "y")
    if boolean:

        def rule(declared: Any) -> tuple[Dtype, ...]:
            same(declared)
            return (Dtype.BOOL,)

        register(name, run, rule, exact=True)
    else:
        register(name, run, same, exact)


def _unary(name: str, function: Callable[[Any], Any], exact: bool = False) -> None:
    """Register a unary operation."""

    def run(x: Array) -> Array:
        result: Array = function(x)
        return result

    register(name, run, like("x"), exact)


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


@kernel(like("x"))
def log(x: Array, epsilon: float = 1e-45) -> Array:
    """The natural logarithm of x + epsilon."""
    result: Array = np.log(x + x.dtype.type(epsilon))
    return result


@kernel(like("x"))
def rsqrt(x: Array, epsilon: float = 1e-12) -> Array:
    """1 / sqrt(x + epsilon)."""
    result: Array = 1 / np.sqrt(x + x.dtype.type(epsilon))
    return result


@kernel(like("x"), exact=True)
def clip(x: Array, alpha: float, beta: float) -> Array:
    """The nearest value between alpha and beta."""
    result: Array = np.minimum(np.maximum(x, x.dtype.type(alpha)), x.dtype.type(beta))
    return result


@kernel(like("a", "b"), exact=True)
def select(cond: Array, a: Array, b: Array) -> Array:
    """`a` where `cond` holds, else `b`; all three broadcast, whatever rank the program declares."""
    _fits(cond, a, b)
    return np.where(cond, a, b)


@kernel(named("dtype"))
def cast(x: Array, dtype: str) -> Array:
    """`x` as another dtype; floats become integers towards zero."""
    out: Array = x.astype(Dtype(dtype).storage)
    return out
