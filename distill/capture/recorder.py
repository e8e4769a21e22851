"""One recorder for every family; the family table says which code feeds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from torch import Tensor

_active: list[AttentionRecorder] = []


@dataclass(frozen=True)
class QueryKeyValue:
    """What a layer's attention is computed from, head by head, as the model hands it to its attention function.

    Biases are in it, and rotary positions where the model has them; the scaling of the scores is not, unless the
    model scales its queries itself.

    Attributes:
        query: [B, H, S, head size].
        key: [B, H, S, head size].
        value: [B, H, S, head size].
    """

    query: Tensor
    key: Tensor
    value: Tensor


class _EnoughError(Exception):
    """Ends a forward pass behind the last wanted layer; never leaves the recorder that it carries."""

    def __init__(self, recorder: AttentionRecorder) -> None:
        self.recorder = recorder


class AttentionRecorder:
    """A recorder of the attention inputs of chosen layers during forward passes.

    Use as a context manager around one forward pass; leaving it asserts that every layer called in. After an
    error nothing is kept.

    Args:
        layers: Layers whose scores before the softmax are kept, from 0.
        depth: Layers the model has.
        relations: Layers whose queries, keys and values are kept.
        stop: End the pass within the last of these layers, before its attention is applied. The pass then returns
            nothing, and leaves the ``with`` block; what was recorded has the same gradients. Without any layer
            the pass goes on to its end.

    Attributes:
        scores: By layer, each [B, H, S, S], the additive mask applied.
        relations: By layer.

    Raises:
        ValueError: If the model has no such layer.
    """

    def __init__(self, layers: Iterable[int], depth: int, relations: Iterable[int] = (), *, stop: bool = False) -> None:
        self.layers, self.relation_layers, self.depth = frozenset(layers), frozenset(relations), depth
        wanted = self.layers | self.relation_layers
        if bad := sorted(n for n in wanted if not 0 <= n < depth):
            raise ValueError(f"no layers {bad} in a model of {depth} layers, 0 to {depth - 1}")
        self._last = max(wanted) if stop and wanted else None
        self.scores: dict[int, Tensor] = {}
        self.relations: dict[int, QueryKeyValue] = {}
        self._calls = 0

    def __enter__(self) -> AttentionRecorder:
        """Start recording one forward pass."""
        self._forget()
        self._calls = 0
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop, and check the count.

        Returns:
            Whether the recorder itself ended the pass.

        Raises:
            RuntimeError: If the model did not call in once per layer, up to the one where it was to end: a signal
                would be missing silently.
        """
        _active.pop()
        ended = isinstance(error, _EnoughError) and error.recorder is self
        if error is not None and not ended:
            self._forget()
            return False
        expected = self.depth if self._last is None else self._last + 1
        if self._calls != expected:
            self._forget()
            until = "" if self._last is None else f" and was to end in layer {self._last} (from 0)"
            raise RuntimeError(
                f"attention was captured {self._calls} times, the model has {self.depth} layers{until}: "
                "this model does not use transformers' attention interface, or did not run exactly once"
            )
        return ended

    def next_layer(self) -> int:
        """Number of the layer that is calling in; by call order, which also serves shared weights."""
        self._calls += 1
        return self._calls - 1

    def end_behind(self, layer: int) -> None:
        """End the pass if this is the last wanted layer of a pass that may end there; to be called by the layer."""
        if layer == self._last:
            raise _EnoughError(self)

    def _forget(self) -> None:
        self.scores, self.relations = {}, {}


class CapturingModule:
    """What an attention module becomes that feeds recorders, where transformers' attention interface does not reach."""


def active_recorder() -> AttentionRecorder | None:
    """Return the recorder of the forward pass that is running, if any."""
    return _active[-1] if _active else None
