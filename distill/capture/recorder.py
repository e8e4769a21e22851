"""One recorder for every family; the family table says which code feeds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from pocketbert.core.families import CAPTURES

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


# --- interface ---
# Capture through transformers' attention interface: BERT, RoBERTa, DistilBERT, MobileBERT and kin.
#
# With SDPA, `output_attentions=True` returns an empty tuple and raises nothing; with eager attention every
# layer pays for its map. Here the layers that are wanted compute their scores openly, the others use SDPA; queries,
# keys and values are on their way in any case and cost nothing.


NAME = "pocketbert_capture"
MASKED = -1e4
"""Added to scores of padded keys: exp of it is exactly 0, and it is finite in every dtype."""


def install(model: Any) -> None:
    """Switch a model to the capturing attention; weights and results stay the same."""
    AttentionInterface.register(NAME, capturing_attention)
    AttentionMaskInterface.register(NAME, additive_mask)
    model.set_attn_implementation(NAME)


def capturing_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention that hands the active recorder what it wants of this layer.

    Where the recorder ends the pass, neither probabilities nor context are computed.

    Args:
        module: The attention module that calls.
        query: [B, H, S, head size].
        key: [B, H, S, head size].
        value: [B, H, S, head size].
        attention_mask: Additive, [B, 1, 1, S], or None.
        scaling: Factor on the scores; default 1/sqrt(head size).
        dropout: Dropout of the probabilities.

    Returns:
        Context, [B, S, H, head size], and None in place of the probabilities.
    """
    recorder, scores = active_recorder(), None
    if recorder is not None:
        layer = recorder.next_layer()
        if layer in recorder.relation_layers:
            recorder.relations[layer] = QueryKeyValue(query, key, value)
        if layer in recorder.layers:
            # Passes over scores cost more than those over queries, forwards and backwards: none but the mask's, in place.
            scores = torch.matmul(query * (scaling or query.shape[-1] ** -0.5), key.transpose(2, 3))
            if attention_mask is not None:
                scores += attention_mask
            recorder.scores[layer] = scores
        recorder.end_behind(layer)
    if scores is None:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
        )
    else:
        probabilities = F.dropout(F.softmax(scores, -1), dropout, module.training)
        out = torch.matmul(probabilities, value)
    return out.transpose(1, 2).contiguous(), None


def additive_mask(
    *_: Any,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    local_size: int | None = None,
    kv_length: int = 0,
    device: torch.device | None = None,
    **__: Any,
) -> Tensor | None:
    """The mask transformers passes to `capturing_attention`.

    Args:
        attention_mask: 1 for real tokens, [B, S]; None where all are real.
        dtype: Of the mask.
        local_size: How far a token of a layer with a window sees to either side; None of a layer without.
        kv_length: Tokens S.
        device: Where the model runs.

    Returns:
        What is added to the scores, [B, 1, 1, S], with a window [B, 1, S, S]; None where every token sees every other.
    """
    allowed = None if attention_mask is None else attention_mask[:, None, None, :].to(dtype)
    if local_size is not None:
        places = torch.arange(kv_length, device=device if attention_mask is None else attention_mask.device)
        distance = (places[:, None] - places[None, :]).abs()
        band = (local_size + 1 - distance).clamp(0, 1).to(dtype)[None, None]
        allowed = band if allowed is None else allowed * band
    return None if allowed is None else (1.0 - allowed) * MASKED


CAPTURES.add("attention-interface", install)
