"""What chosen encoder layers hand on, in a forward pass that may end behind the last of them."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from torch import Tensor, nn


class _EnoughError(Exception):
    """Ends a forward pass behind the last wanted layer; never leaves the object that it carries."""

    def __init__(self, owner: LayerOutputs) -> None:
        self.owner = owner


class LayerOutputs:
    """Collects the outputs of encoder layers.

    Use as a context manager around one forward pass. A recorder of attention scores goes around it, not inside, and
    has the depth that is run.

    Args:
        model: A transformers model.
        layer_path: Dotted path from the class with a head to the list of encoder layers.
        wanted: Layers, from 0.
        stop: End the pass behind the last of them, and leave the ``with`` block; gradients are the same.

    Attributes:
        states: By layer, each [B, S, d].

    Raises:
        ValueError: If the model has no such layer.
    """

    def __init__(self, model: Any, layer_path: str, wanted: Iterable[int], *, stop: bool = False) -> None:
        # an encoder without a head lacks the name it has within one
        path = layer_path if hasattr(model, layer_path.partition(".")[0]) else layer_path.partition(".")[2]
        found = model.get_submodule(path)
        self._wanted = sorted(set(wanted))
        count = len(found) if isinstance(found, nn.ModuleList) else 0
        # layers that share weights run more often than they are stored: numbers are those of the runs, in call order
        self._shared = 0 < count < model.config.num_hidden_layers
        runs = model.config.num_hidden_layers if self._shared else count
        if not isinstance(found, nn.ModuleList) or any(not 0 <= n < runs for n in self._wanted):
            raise ValueError(f"no layers {self._wanted} at '{layer_path}' of {type(model).__name__}, which has {runs}")
        self._layers = list(enumerate(found)) if self._shared else [(n, found[n]) for n in self._wanted]
        self._runs = 0
        self._last = self._wanted[-1] if stop and self._wanted else None
        self.states: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> LayerOutputs:
        """Start collecting."""
        self.states, self._runs = {}, 0
        for number, layer in self._layers:
            self._handles.append(layer.register_forward_hook(self._hook(number)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop, and check that every wanted layer ran.

        Returns:
            Whether this object itself ended the pass.

        Raises:
            RuntimeError: If a layer did not run: a loss over what is missing would silently be 0.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        ended = isinstance(error, _EnoughError) and error.owner is self
        if error is not None and not ended:
            self.states = {}
            return False
        if sorted(self.states) != self._wanted:
            have, self.states = sorted(self.states), {}
            raise RuntimeError(f"layers {have} handed on a state, wanted were {self._wanted}")
        return ended

    def _hook(self, number: int) -> Any:
        def keep(_module: nn.Module, _arguments: Any, output: Any) -> None:
            run = self._runs if self._shared else number
            self._runs += 1
            if run in self._wanted:
                self.states[run] = output[0] if isinstance(output, tuple) else output
            if run == self._last:
                raise _EnoughError(self)

        return keep
