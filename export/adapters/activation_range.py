"""How large the numbers inside a torch model become."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn


class ActivationRange:
    """Largest magnitudes by name, read by hooks while the model runs; `remove` takes the hooks off again.

    What NoNorm makes is looked at as `lean_mobilebert` writes it, the folded product and the residual each: two numbers
    that cancel must fit into a type too.
    """

    def __init__(self) -> None:
        self._largest: dict[str, float] = {}
        self._hooks: list[Any] = []

    def largest(self, name: str) -> float:
        """The largest magnitude seen; infinite if anything was infinite or NaN, 0 if nothing was seen."""
        return self._largest.get(name, 0.0)

    def take(self, name: str, *values: Tensor) -> None:
        """Look at tensors."""
        for value in values:
            found = float(value.abs().max())
            self._largest[name] = max(self.largest(name), found if math.isfinite(found) else math.inf)

    def linear(self, name: str, dense: nn.Module) -> None:
        """Watch what a module returns."""
        self._hooks.append(dense.register_forward_hook(lambda _, __, out: self.take(name, out)))

    def scaled_sum(self, before: str, after: str, norm: Any) -> None:
        """Watch a NoNorm that is not folded: what it is given as `before`, what it makes as `after`."""

        def look(_: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
            self.take(before, args[0])
            self.take(after, out, args[0] * norm.weight)

        self._hooks.append(norm.register_forward_hook(look))

    def residual(self, name: str, part: Any) -> None:
        """Watch a linear layer `dense` and NoNorm `LayerNorm` over its result, a residual between them or not."""
        made: list[Tensor] = []

        def look(_: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
            product = made.pop()
            folded = product * part.LayerNorm.weight + part.LayerNorm.bias
            self.take(name, out, folded, (args[0] - product) * part.LayerNorm.weight)

        self._hooks.append(part.dense.register_forward_hook(lambda _, __, out: made.append(out)))
        self._hooks.append(part.LayerNorm.register_forward_hook(look))

    def remove(self) -> None:
        """Take all hooks off."""
        for hook in self._hooks:
            hook.remove()
