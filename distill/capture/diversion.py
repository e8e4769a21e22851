"""Replacing the forward function of single modules, for models that do not use transformers' attention interface."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

_MARK = "_diverted"


def divert(module: Any, forward: Callable[..., Any]) -> None:
    """Let a module compute another function of the same weights, until `restore`; may be called again.

    Args:
        module: Any module; copies of it are diverted, too.
        forward: Called as the module's own `forward` is, with the module first.
    """
    module.forward = MethodType(forward, module)
    setattr(module, _MARK, True)


def is_diverted(module: Any) -> bool:
    """Tell whether a module was diverted."""
    return bool(getattr(module, _MARK, False))


def restore(module: Any) -> None:
    """Let a module compute its own function again."""
    if is_diverted(module):
        del module.forward
        delattr(module, _MARK)
