"""What reads the output of a module: linear layers, or anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_PRODUCTS = ("linear", "conv2d")
_SILENT = ("size", "dim", "__get__")
"""Calls that only ask what a tensor is like."""


@dataclass
class Uses:
    """What reads one tensor.

    Attributes:
        weights: Numbers (`id`) of the weights of the linear layers that read it.
        others: Names of all other functions that read it, and "output" where the module returns it.
    """

    weights: set[int] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


def uses_of(module: nn.Module, inner: nn.Module, feed: Sequence[Tensor]) -> Uses:
    """Run a module once and follow what it does with the last output of one of its inner modules.

    A view of the output, such as its first token, counts as the output itself.

    Args:
        module: A prepared module in eval mode, whose path does not depend on its input.
        inner: A module in it that returns one tensor, alone or in a tuple.
        feed: Inputs, [B, L].
    """
    follower = _Follower()
    hook = inner.register_forward_hook(follower.follow)
    try:
        with torch.inference_mode(), follower:
            outputs = module(*feed)
    finally:
        hook.remove()
    if any(follower.is_followed(out) for out in _tensors(outputs)):
        follower.uses.others.add("output")
    return follower.uses


class _Follower(TorchFunctionMode):
    """Sees every call of a function of torch, and keeps those that read the followed tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.uses = Uses()
        self._followed: Tensor | None = None  # kept: memory that is freed could be another tensor's

    def follow(self, _: nn.Module, __: Any, out: Any) -> None:
        """Begin to follow what a module returns, and forget what was followed before."""
        (self._followed,) = _tensors(out)
        self.uses = Uses()

    def is_followed(self, tensor: Tensor) -> bool:
        """Whether a tensor is the followed one, or a view of it."""
        return self._followed is not None and _place(tensor) == _place(self._followed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        read = [t for t in _tensors((args, tuple(kwargs.values()))) if self.is_followed(t)]
        if not read or name in _SILENT or any(self.is_followed(t) for t in _tensors(result)):
            return result
        if name in _PRODUCTS and self.is_followed(args[0]):
            self.uses.weights.add(id(args[1]))
        else:
            self.uses.others.add(name)
        return result


def _place(tensor: Tensor) -> int:
    """Where the memory of a tensor begins, which it shares with its views."""
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Any) -> list[Tensor]:
    """All tensors in nested tuples and lists."""
    if isinstance(values, Tensor):
        return [values]
    return [t for v in values for t in _tensors(v)] if isinstance(values, tuple | list) else []
