"""One recorder for every family; the family table says which code feeds it."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from torch import Tensor

from pocketbert.core.families import Capture, Family

_active: list[AttentionRecorder] = []


class AttentionRecorder:
    """Collects pre-softmax attention scores of chosen layers during forward passes.

    Use as a context manager around one forward pass; leaving it asserts that every layer called in.

    Args:
        layers: Layers to keep, from 0.
        depth: Layers the model has.
    """

    def __init__(self, layers: Iterable[int], depth: int) -> None:
        self.layers, self.depth = frozenset(layers), depth
        self.scores: dict[int, Tensor] = {}
        self._calls = 0

    def __enter__(self) -> AttentionRecorder:
        """Start recording one forward pass."""
        self.scores, self._calls = {}, 0
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and check the count.

        Raises:
            RuntimeError: If the model did not call in once per layer: a signal would be missing silently.
        """
        _active.pop()
        if kind is None and self._calls != self.depth:
            raise RuntimeError(
                f"attention was captured {self._calls} times, the model has {self.depth} layers: "
                "this model does not use transformers' attention interface, or did not run exactly once"
            )

    def next_layer(self) -> int:
        """Number of the layer that is calling in; by call order, which also serves shared weights."""
        self._calls += 1
        return self._calls - 1


def active_recorder() -> AttentionRecorder | None:
    """The recorder of the forward pass that is running, if any."""
    return _active[-1] if _active else None


def record_attention(model: Any, family: Family, layers: Iterable[int]) -> AttentionRecorder:
    """Make a model feed a recorder.

    Args:
        model: A transformers model; its attention implementation is switched.
        family: Its row of the family table.
        layers: Layers to keep, from 0.

    Returns:
        The recorder; wrap each forward pass in it.
    """
    from pocketbert.distill.capture import interface

    installers = {Capture.INTERFACE: interface.install}
    installers[family.capture](model)
    return AttentionRecorder(layers, model.config.num_hidden_layers)
