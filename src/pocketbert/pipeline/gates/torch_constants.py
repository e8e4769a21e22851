"""The constants of a torch module, in the order in which its graph uses them: what a file made of it has to hold.

`trace_constants` runs a prepared module once and follows its operators with a `ConstantTracker`. `ModuleConstants` runs
it with two lengths, to tell apart what depends on the length of the input. Only this module imports torch; the gate
that uses it can be imported without.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from pocketbert.core.families import GraphInput
from pocketbert.pipeline.formats.constants import (
    MIN_INTEGER_BYTES,
    Constant,
    ConstantRole,
    ConstantTracker,
    StoredTensor,
)

_LENGTH = 8
"""Tokens that a module is run with; any number does."""
_SHAPE_OPERATORS = (
    "view",
    "_unsafe_view",
    "reshape",
    "expand",
    "unsqueeze",
    "squeeze",
    "_to_copy",
    "clone",
    "alias",
    "detach",
)
"""Operators that leave channels where they are if the last axis stays as it was."""
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "convolution")
"""Operators that take most of the time of a model."""


class ModuleConstants:
    """The constants of a torch module, traced with two input lengths to separate those that depend on the length.

    A module may compute some tensors, such as position embeddings or window masks, from its constants and the input's
    length alone. An exporter stores the result if it knows the length of the input, and the computation if it does not.

    Args:
        module: A prepared module, in eval mode.
        inputs: Names of the module's inputs.
        extra: Inputs among them that a text alone does not give.

    Attributes:
        constants: The constants, as `trace_constants` lists them. Those that depend on the length count as not used,
            since a file need not hold them.
        needed: Names of the buffers from which these are computed. A file holds their numbers or a result.

    Raises:
        ValueError: If the number of constants depends on the length.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[str], extra: Sequence[GraphInput] = ()) -> None:
        self._module, self._inputs, self._extra = module, inputs, extra
        lengths = _LENGTH, _other_length(_LENGTH)
        first, second = (trace_constants(module, example_inputs(inputs, n, extra)) for n in lengths)
        if len(first) != len(second):
            raise ValueError(f"{len(first)} constants with {lengths[0]} tokens, {len(second)} with {lengths[1]}")
        changes = [a.tensor.value.shape != b.tensor.value.shape for a, b in zip(first, second, strict=True)]
        self.constants = [replace(c, used=c.used and not change) for c, change in zip(first, changes, strict=True)]
        buffers = {name for name, b in module.named_buffers() if b.is_floating_point() and b.numel() > 1}
        names = {name for c, change in zip(first, changes, strict=True) if change and c.used for name in c.names}
        self.needed = tuple(sorted(names & buffers))

    def of_length(self, length: int) -> list[Constant]:
        """Return the tensors that the module computes from its constants alone for inputs of a length.

        Position embeddings are such tensors. Exporters differ in how many of the steps they compute in advance, so the
        results of all steps are returned.
        """
        computed, other = (
            _trace(self._module, example_inputs(self._inputs, n, self._extra))[1]
            for n in (length, _other_length(length))
        )
        if len(computed) == len(other):
            pairs = zip(computed, other, strict=True)
            computed = [one for one, shorter in pairs if one.value.shape != shorter.value.shape]
        squeezed = [t.transform(np.squeeze) for t in computed]
        return [Constant(ConstantRole.ARRAY, t, 0, 0, used=False) for t in squeezed if t.value.size > 1]


def trace_constants(module: nn.Module, inputs: Sequence[Tensor]) -> list[Constant]:
    """Run a module and list the constants that its operators use, in order of use, and then the module's buffers.

    Buffers are listed as not used, even if an operator uses them: a file may keep a buffer, such as position ids,
    although the module uses only results computed from it.

    Args:
        module: A prepared module, in eval mode.
        inputs: Tensors that it is run with, [1, L].
    """
    constants = _trace(module, inputs)[0]
    for name, buffer in module.named_buffers():
        tensor = StoredTensor(buffer.detach().squeeze().numpy(), name)
        roles: tuple[ConstantRole, ...] = ()
        if tensor.is_float and tensor.value.ndim:
            roles = (ConstantRole.ARRAY, *([ConstantRole.FACTOR] if tensor.value.ndim == 1 else []))
        elif not tensor.is_float and buffer.nbytes > MIN_INTEGER_BYTES:
            roles = (ConstantRole.ARRAY,)
        constants += [Constant(role, tensor, 0, 0, used=False) for role in roles]
    return constants


def example_inputs(inputs: Sequence[str], length: int, extra: Sequence[GraphInput] = ()) -> list[Tensor]:
    """Return example inputs of a module for one row without padding, in the order of `inputs`.

    Args:
        inputs: Names of the inputs: token ids, mask and segment ids, [1, L] each, or inputs in `extra`.
        length: Number of tokens.
        extra: Inputs that a text alone does not give, with their shapes and sample values.
    """
    values: dict[str, float] = {"input_ids": 5, "attention_mask": 1, "token_type_ids": 0}
    values |= {i.name: i.sample for i in extra}
    shapes, dtypes = {i.name: i.shape(1, length) for i in extra}, {i.name: i.dtype for i in extra}
    return [
        torch.from_numpy(np.full(shapes.get(n, (1, length)), values.get(n, 0), dtypes.get(n, "int64"))) for n in inputs
    ]


def _other_length(length: int) -> int:
    """Return a second input length that the model takes: one shorter, since its position table may end at `length`."""
    return length - 1 if length > 1 else 2


def _trace(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[list[Constant], list[StoredTensor]]:
    """Run a module; return the constants that its operators use, and the tensors computed from constants alone."""
    mode = _TracingMode(module, inputs)
    with torch.no_grad(), mode:
        outputs = module(*inputs)
    return mode.tracker.finish(mode.number_of(o) for o in outputs), mode.computed


class _TracingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which constants each operator of a running torch module uses.

    Tensors are identified by numbers, and results that depend on the inputs are freed as soon as the module lets them go:
    the attention scores of all layers together have a gigabyte in a base model.

    Args:
        module: The module, whose parameters and buffers name the constants.
        inputs: Inputs of the module.

    Attributes:
        tracker: The constants found so far.
        computed: Tensors that were computed from constants alone.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracker = ConstantTracker(lists_folds=True)
        self.computed: list[StoredTensor] = []
        self._names = {id(p): name for name, p in [*module.named_parameters(), *module.named_buffers()]}
        self._numbers: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        self._next = count()
        self.tracker.other([self.number_of(i) for i in inputs], [])

    def number_of(self, tensor: Tensor) -> int:
        """Return the number of a tensor; a new one gets the next, so that no two have the same although one was freed."""
        if tensor not in self._numbers:
            self._numbers[tensor] = next(self._next)
        return self._numbers[tensor]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs, operator = _tensors_in(args), func.overloadpacket.__name__.removesuffix("_")
        for tensor in inputs:
            self._store_parameter(tensor)
        stored = [self.tracker.stored(self.number_of(t)) for t in inputs]
        is_constant = operator != "embedding" and all(s is not None for s in stored)
        if operator in _PRODUCTS and not is_constant:
            # only which constants are used is wanted, so that any numbers do for what depends on the inputs
            kind = func(*tree_map_only(Tensor, lambda t: t.to("meta"), args), **(kwargs or {}))
            result = torch.zeros(kind.shape, dtype=kind.dtype)
        else:
            result = func(*args, **(kwargs or {}))
        outputs = _tensors_in((result,))
        for output in outputs:
            self.number_of(output)  # else it would count as a parameter where it is read
        if is_constant:
            name = ", ".join(dict.fromkeys(s.name for s in stored if s is not None and s.name))
            for out in outputs:
                self.computed.append(StoredTensor(out.detach().numpy(), name))
                self.tracker.store(self.number_of(out), self.computed[-1])
        else:
            self._follow(operator, args, inputs, outputs)
        return result

    def _store_parameter(self, tensor: Tensor) -> None:
        """Register a parameter or buffer as a constant with the tracker, when an operator first reads it."""
        if tensor not in self._numbers:
            self.tracker.store(
                self.number_of(tensor), StoredTensor(tensor.detach().numpy(), self._names.get(id(tensor), ""))
            )

    def _follow(self, operator: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Report one torch operator to the constant tracker: as lookup, product, sum, scaling, norm, reshape, or as unknown."""
        tracker, keys, out = self.tracker, [self.number_of(t) for t in inputs], self.number_of(outputs[0])
        if operator == "embedding":
            tracker.lookup(out, keys[0], keys[1])
        elif operator in ("mm", "bmm") and tracker.stored(keys[1]) is not None:
            tracker.product(out, keys[0], keys[1], transposed=True)
        elif operator == "addmm" and tracker.stored(keys[2]) is not None:
            tracker.product(out, keys[1], keys[2], keys[0], transposed=True)
        elif operator == "linear" or (operator == "convolution" and math.prod(inputs[1].shape[2:]) == 1):
            tracker.product(out, keys[0], keys[1], keys[2] if len(keys) > 2 else None)
        elif operator in ("add", "mul") and len(keys) == 2:
            (tracker.add if operator == "add" else tracker.multiply)(out, *keys)
        elif operator == "native_layer_norm":
            tracker.other([out], keys[:1])
            parameters = iter(keys[1:])
            for place, follow in ((2, tracker.multiply), (3, tracker.add)):
                if args[place] is not None:
                    follow(out, out, next(parameters))
        elif operator in _SHAPE_OPERATORS and outputs[0].shape[-1:] == inputs[0].shape[-1:]:
            tracker.keep(out, keys[0])
        else:
            tracker.other([self.number_of(o) for o in outputs], keys)


def _tensors_in(values: Any) -> list[Tensor]:
    """Return all tensors in nested tuples and lists."""
    if isinstance(values, Tensor):
        return [values]
    return [t for v in values for t in _tensors_in(v)] if isinstance(values, tuple | list) else []
