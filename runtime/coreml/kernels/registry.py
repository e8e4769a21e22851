"""The table of MIL operations: for each its numpy function, its parameters, and the rule for the dtypes of its results.

`kernel` registers a decorated function; parameters and defaults are read from the function's signature. `dtype_of`,
`fixed_dtypes` and `dtype_named_by` return rules.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from pocketbert.runtime.coreml.types import Dtype

Array = NDArray[Any]
Arrays = tuple[Array, ...]
Ints = tuple[int, ...]
Flags = tuple[bool, ...]
Texts = tuple[str, ...]

OPSET = "opset"
"""A kernel parameter of that name is the program's operation set, not one of MIL's parameters."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a MIL operation: its Python type, and whether it is required.

    Attributes:
        kind: The annotation: `Array`, `Arrays`, `Ints`, `Flags`, `Texts`, int, float, bool or str.
        required: Whether the parameter has no default in MIL.
    """

    kind: Any
    required: bool

    @property
    def variadic(self) -> bool:
        """Whether the parameter takes several values."""
        return bool(self.kind == Arrays)

    @property
    def tensor(self) -> bool:
        """Whether the kernel gets this parameter as arrays, not as Python values."""
        return bool(self.kind in (Array, Arrays))

    def convert(self, value: Any) -> Any:
        """Convert an argument to the Python type that the kernel takes: an array, numbers, or texts.

        Raises:
            ValueError: If the argument has another type or shape.
        """
        if self.tensor:
            return value
        if self.kind is str:
            if not isinstance(value, str):
                raise ValueError("a text is expected")
            return value
        if self.kind == Texts:
            return tuple(value)
        array = np.asarray(value)
        if self.kind in (Ints, Flags):
            one = int if self.kind == Ints else bool
            if array.ndim > 1 or array.dtype.kind not in "iub":
                raise ValueError(f"a list of {one.__name__} is expected, not {array.dtype}{array.shape}")
            return tuple(one(v) for v in array.reshape(-1).tolist())
        if array.size != 1:
            raise ValueError(f"one {self.kind.__name__} is expected, not {array.dtype}{array.shape}")
        if self.kind in (int, bool) and array.dtype.kind not in "iub":
            raise ValueError(f"a whole number is expected, not {array.dtype}")
        return self.kind(array.item())


@dataclass(frozen=True)
class Declared:
    """The declared dtypes of an operation's inputs, from which a `Rule` computes those of its results.

    Attributes:
        dtypes: Declared dtypes by parameter; several for a variadic one. Parameters that the program leaves out are
            missing.
        constants: Constant text arguments by parameter.
    """

    dtypes: Mapping[str, tuple[Dtype, ...]]
    constants: Mapping[str, str]


Rule = Callable[[Declared], tuple[Dtype, ...]]
"""Dtypes of the results; the last one stands for all further results (split)."""


@dataclass(frozen=True)
class Kernel:
    """A MIL operation: its numpy function, its parameters and the dtype rule of its results.

    Attributes:
        name: Name of the operation in MIL.
        function: Function that computes the operation; fp16 arguments are passed as float32.
        parameters: The parameters by name.
        rule: Function that returns the dtypes of the results.
        exact: Whether the operation only moves or selects values, so that its results need no rounding.
        opset: Whether the function has the parameter `OPSET`.
    """

    name: str
    function: Callable[..., Any]
    parameters: Mapping[str, Parameter]
    rule: Rule
    exact: bool
    opset: bool


KERNELS: dict[str, Kernel] = {}
"""All operations by MIL name."""

_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(rule: Rule, exact: bool = False) -> Callable[[_F], _F]:
    """Return a decorator that registers a function as the MIL operation of its name, without the leading underscore.

    Args:
        rule: Function that returns the dtypes of the results.
        exact: Whether results need no rounding.
    """

    def decorate(function: _F) -> _F:
        register(function.__name__.removeprefix("_"), function, rule, exact)
        return function

    return decorate


def register(name: str, function: Callable[..., Any], rule: Rule, exact: bool = False) -> None:
    """Add a MIL operation to the table `KERNELS`. The function's signature gives its parameters.

    Args:
        name: Name of the operation in MIL.
        function: Function that computes the operation.
        rule: Function that returns the dtypes of the results.
        exact: Whether results need no rounding.
    """
    hints = get_type_hints(function)
    signature = inspect.signature(function).parameters
    parameters = {
        p: Parameter(_without_none(hints[p]), v.default is inspect.Parameter.empty)
        for p, v in signature.items()
        if p != OPSET
    }
    KERNELS[name] = Kernel(name, function, parameters, rule, exact, OPSET in signature)


def dtype_of(*names: str) -> Rule:
    """Return a rule for dtypes: results have the dtype of the named parameters, which must all have the same.

    If none of these parameters is given, results are fp32.
    """

    def rule(declared: Declared) -> tuple[Dtype, ...]:
        dtypes = [d for n in names for d in declared.dtypes.get(n, ())]
        if len(set(dtypes)) > 1:
            raise ValueError(f"{', '.join(names)} have different types: {', '.join(dtypes)}")
        return (dtypes[0] if dtypes else Dtype.FP32,)

    return rule


def fixed_dtypes(*dtypes: Dtype) -> Rule:
    """Return a rule for dtypes: results have these dtypes."""
    return lambda declared: dtypes


def dtype_named_by(parameter: str, default: Dtype | None = None) -> Rule:
    """Return a rule for dtypes: the result has the dtype that a text parameter names, or the default."""

    def rule(declared: Declared) -> tuple[Dtype, ...]:
        text = declared.constants.get(parameter)
        if text is None and default is not None:
            return (default,)
        return (Dtype(text or ""),)

    return rule


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return next(a for a in get_args(hint) if a is not type(None))
    return hint
