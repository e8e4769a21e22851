"""The constants of a torch module, where its graph uses them: what a file that was made of it has to hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pocketbert.core.families import GraphInput
from pocketbert.pipeline.formats.constants import LARGE, Constant, Numbers, Role, Tracker

LENGTH = 8
"""Tokens that a module is run with; any number does."""
_SHAPED = ("view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "_to_copy", "clone", "alias", "detach")
"""Operators that leave channels where they are, if the last axis stays as it was."""


def module_constants(module: nn.Module, inputs: Sequence[Tensor]) -> list[Constant]:
    """List the constants of a module, in the order in which it uses them.

    Args:
        module: A prepared module, in eval mode.
        inputs: What it is run with, [1, L].
    """
    return [*_traced(module, inputs)[0], *_kept(module)]


def _traced(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[list[Constant], list[Numbers]]:
    """The constants that a graph uses, and all that it computes from nothing but constants."""
    mode = _Mode({id(p): name for name, p in [*module.named_parameters(), *module.named_buffers()]}, inputs)
    with torch.no_grad(), mode:
        outputs = module(*inputs)
    return mode.tracker.finish(id(o) for o in outputs), mode.computed


class Trace:
    """The constants of a module whose graph is traced with inputs of a length, and those that depend on the length.

    Rotations of positions, windows: a module computes them from nothing but its own constants. An exporter stores the result
    where it knows the length of the input, and computes it where it does not.

    Args:
        module: A prepared module, in eval mode.
        inputs: Names of its inputs.
        extra: Those of them that a text alone does not give.

    Attributes:
        constants: As `module_constants` lists them; what depends on the length counts as not used, since a file need not
            hold it.
        needed: Names of what those are computed from: of each, a file holds the numbers themselves or a result.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[str], extra: Sequence[GraphInput] = ()) -> None:
        self._module, self._inputs, self._extra = module, inputs, extra
        here, there = (module_constants(module, example(inputs, n, extra)) for n in (LENGTH, _other(LENGTH)))
        if len(here) != len(there):
            raise ValueError(f"{len(here)} constants with {LENGTH} tokens, {len(there)} with {_other(LENGTH)}")
        shapes = [(a.numbers.value.shape, b.numbers.value.shape) for a, b in zip(here, there, strict=True)]
        self._places = [i for i, (one, other) in enumerate(shapes) if one != other]
        self.constants = [replace(c, used=c.used and i not in self._places) for i, c in enumerate(here)]
        several = {name for name, b in module.named_buffers() if b.is_floating_point() and b.numel() > 1}
        names = {name for i in self._places if here[i].used for name in here[i].names}
        self.needed = tuple(sorted(names & several))

    def of_length(self, length: int) -> list[Constant]:
        """Return what depends on the length, for inputs of this length, and what it is computed from step by step.

        How many of the steps an exporter takes in advance is its own affair.
        """
        computed, other = (
            _traced(self._module, example(self._inputs, n, self._extra))[1] for n in (length, _other(length))
        )
        if len(computed) == len(other):
            pairs = zip(computed, other, strict=True)
            computed = [one for one, shorter in pairs if one.value.shape != shorter.value.shape]
        squeezed = [n.changed(np.squeeze) for n in computed]
        return [Constant(Role.ARRAY, n, 0, 0, used=False) for n in squeezed if n.value.size > 1]


def _other(length: int) -> int:
    """Another length that the model takes too: its table of positions may end at `length`."""
    return length - 1 if length > 1 else 2


def _kept(module: nn.Module) -> Iterator[Constant]:
    """What a file may keep, and the module looks up or computes with in advance: numbers of places, and rotations."""
    for name, buffer in module.named_buffers():
        numbers = Numbers(buffer.detach().squeeze().numpy(), name)
        if numbers.is_float and numbers.value.ndim:
            yield Constant(Role.ARRAY, numbers, 0, 0, used=False)
            if numbers.value.ndim == 1:
                yield Constant(Role.FACTOR, numbers, 0, 0, used=False)
        elif not numbers.is_float and buffer.nbytes > LARGE:
            yield Constant(Role.ARRAY, numbers, 0, 0, used=False)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, names: Mapping[int, str], inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.tracker = names, Tracker(folds=True)
        self.kept: list[Tensor] = [*inputs]  # their numbers are keys
        self.known = {id(i) for i in inputs}
        self.tracker.other(list(self.known), [])
        self.computed: list[Numbers] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [t for t in _tensors(args) if self._key(t) is not None]
        outputs = _tensors((result,))
        self.kept += outputs
        for out in outputs:
            self.known.add(id(out))
        kind = func.overloadpacket.__name__.removesuffix("_")
        stored = [self.tracker.stored(id(t)) for t in inputs]
        if kind != "embedding" and all(s is not None for s in stored):
            name = ", ".join(dict.fromkeys(s.name for s in stored if s is not None and s.name))
            for out in outputs:
                self.computed.append(Numbers(out.detach().numpy(), name))
                self.tracker.store(id(out), self.computed[-1])
        else:
            self._follow(kind, args, inputs, outputs)
        return result

    def _key(self, tensor: Tensor) -> int:
        """The key of a tensor; parameters are stored when they are seen first."""
        if id(tensor) not in self.known:
            self.known.add(id(tensor))
            self.kept.append(tensor)
            self.tracker.store(id(tensor), Numbers(tensor.detach().numpy(), self.names.get(id(tensor), "")))
        return id(tensor)

    def _follow(self, kind: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        tracker, keys, out = self.tracker, [id(t) for t in inputs], id(outputs[0])
        if kind == "embedding":
            tracker.lookup(out, keys[0], keys[1])
        elif kind in ("mm", "bmm") and tracker.stored(keys[1]) is not None:
            tracker.product(out, keys[0], keys[1], turned=True)
        elif kind == "addmm" and tracker.stored(keys[2]) is not None:
            tracker.product(out, keys[1], keys[2], keys[0], turned=True)
        elif kind == "linear" or (kind == "convolution" and math.prod(inputs[1].shape[2:]) == 1):
            tracker.product(out, keys[0], keys[1], keys[2] if len(keys) > 2 else None)
        elif kind in ("add", "mul") and len(keys) == 2:
            (tracker.add if kind == "add" else tracker.multiply)(out, *keys)
        elif kind == "native_layer_norm":
            tracker.other([out], keys[:1])
            given = iter(keys[1:])
            for place, change in ((2, tracker.multiply), (3, tracker.add)):
                if args[place] is not None:
                    change(out, out, next(given))
        elif kind in _SHAPED and (outputs[0].shape[-1:] == inputs[0].shape[-1:]):
            tracker.keep(out, keys[0])
        else:
            tracker.other([id(o) for o in outputs], keys)


def _tensors(values: Any) -> list[Tensor]:
    """All tensors in nested tuples and lists."""
    if isinstance(values, Tensor):
        return [values]
    return [t for v in values for t in _tensors(v)] if isinstance(values, tuple | list) else []


def example(inputs: Sequence[str], length: int, extra: Sequence[GraphInput] = ()) -> list[Tensor]:
    """What a module is run with: [1, L], all tokens real, and the further inputs of a form."""
    values: dict[str, float] = {"input_ids": 5, "attention_mask": 1, "token_type_ids": 0}
    shapes = {i.name: i.shape(1, length) for i in extra}
    kinds, values = {i.name: i.dtype for i in extra}, values | {i.name: i.sample for i in extra}
    return [
        torch.from_numpy(np.full(shapes.get(n, (1, length)), values.get(n, 0), kinds.get(n, "int64"))) for n in inputs
    ]
