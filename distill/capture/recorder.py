"""The recorder of attention inputs, and the attention function that fills it through transformers' attention interface.

An `AttentionRecorder` is a context manager around one forward pass. The attention of each layer calls
`active_recorder`, and stores its scores, queries, keys and values there if they are wanted. `capturing_attention` does
this for all families that use transformers' attention interface (BERT, RoBERTa, DistilBERT, MobileBERT, ...); the other
files of this folder do it for the other families. `pocketbert.core.families` names the capture of each family; see
`pocketbert.distill.capture.record.record_attention`.

With SDPA, transformers' ``output_attentions=True`` returns an empty tuple and raises nothing; with eager attention
every layer computes its map. Here only the wanted layers compute their scores, the others use SDPA; queries, keys and
values exist in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from pocketbert.core.families import CAPTURES

ATTENTION_NAME = "pocketbert_capture"
"""Name of `capturing_attention` in transformers' registry of attention implementations."""
MASKED_SCORE = -1e4
"""Added to scores of padded keys: exp of it is exactly 0, and it is finite in every dtype."""

_active: list[AttentionRecorder] = []


@dataclass(frozen=True)
class QueryKeyValue:
    """Queries, keys and values of one layer by head, as the model passes them to its attention function.

    They include the biases of their projections, and rotary positions if the model has them, but not the scaling of the
    scores, unless the model scales its queries itself.

    Attributes:
        query: [B, H, S, head size].
        key: [B, H, S, head size].
        value: [B, H, S, head size].
    """

    query: Tensor
    key: Tensor
    value: Tensor


class EndOfPassError(Exception):
    """Raised to end a forward pass after the last wanted layer. The context manager `owner` raises and catches it."""

    def __init__(self, owner: object) -> None:
        self.owner = owner


class AttentionRecorder:
    """Context manager that stores attention scores, queries, keys and values of chosen layers in a forward pass.

    Open it around one forward pass; when the block ends, it checks that the attention of every layer that was to run
    has called the recorder once. After an error nothing is kept.

    Args:
        layers: Layers whose scores before the softmax are kept, from 0.
        depth: Number of layers of the model.
        relations: Layers whose queries, keys and values are kept.
        stop: Whether to end the pass within the last of these layers, before its attention is applied. The pass then
            returns nothing, and leaves the ``with`` block; what was recorded has the same gradients. If no layers are
            chosen, the pass runs to its end.

    Attributes:
        scores: Attention scores before the softmax by layer, [B, H, S, S] each, with the mask applied.
        relations: Queries, keys and values by layer.

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
        """Make this the active recorder of the next forward pass, and clear what an earlier pass recorded."""
        self._clear()
        self._calls = 0
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop recording, and check that the attention of every layer that was to run called the recorder.

        Returns:
            Whether the recorder itself ended the pass.

        Raises:
            RuntimeError: If not every layer up to the last one that runs has called once: a signal would be missing
                silently.
        """
        _active.pop()
        ended = isinstance(error, EndOfPassError) and error.owner is self
        if error is not None and not ended:
            self._clear()
            return False
        expected = self.depth if self._last is None else self._last + 1
        if self._calls != expected:
            self._clear()
            until = "" if self._last is None else f" and was to end in layer {self._last} (from 0)"
            raise RuntimeError(
                f"attention was captured {self._calls} times, the model has {self.depth} layers{until}: "
                "this model does not use transformers' attention interface, or did not run exactly once"
            )
        return ended

    def next_layer(self) -> int:
        """Count a call of a layer's attention, and return the layer's number from 0.

        Layers are numbered in call order, which also works for shared weights.
        """
        self._calls += 1
        return self._calls - 1

    def end_behind(self, layer: int) -> None:
        """Raise EndOfPassError, which ends the forward pass, if `stop` is set and `layer` is the last wanted layer."""
        if layer == self._last:
            raise EndOfPassError(self)

    def _clear(self) -> None:
        """Delete all recorded scores, queries, keys and values."""
        self.scores, self.relations = {}, {}


class CapturingModule:
    """Base class of attention modules that fill the active recorder without transformers' attention interface."""


def replace_classes(model: Any, classes: Mapping[type, type]) -> None:
    """Give each module whose class is a key of `classes` the class that it maps to, in place. Weights stay the same."""
    for module in model.modules():
        if type(module) in classes:
            module.__class__ = classes[type(module)]


def active_recorder() -> AttentionRecorder | None:
    """Return the recorder of the forward pass in progress; None if there is none."""
    return _active[-1] if _active else None


# --- transformers' attention interface --------------------------------------------------------------------------------


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
    """Compute scaled dot-product attention, and store what the active recorder keeps: scores, queries, keys, values.

    Without a recorder nothing is stored. If it ends the pass here, neither probabilities nor context are computed.

    Args:
        module: The attention module that calls this function.
        query: Queries, [B, H, S, head size].
        key: Keys, [B, H, S, head size].
        value: Values, [B, H, S, head size].
        attention_mask: Added to the scores, [B, 1, 1, S] or a shape that expands to [B, H, S, S]; None to add nothing.
        scaling: Factor on the scores; default 1/sqrt(head size).
        dropout: Dropout rate of the probabilities.

    Returns:
        The context, [B, S, H, head size], and None in place of the probabilities.
    """
    recorder, scores = active_recorder(), None
    if recorder is not None:
        layer = recorder.next_layer()
        if layer in recorder.relation_layers:
            recorder.relations[layer] = QueryKeyValue(query, key, value)
        if layer in recorder.layers:
            # Passes over scores cost more than those over queries, forwards and backwards: only the mask's, in place.
            scores = torch.matmul(query * (scaling or query.shape[-1] ** -0.5), key.transpose(2, 3))
            if attention_mask is not None:
                scores += attention_mask
            recorder.scores[layer] = scores
        recorder.end_behind(layer)
    if scores is None:
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
        )
    else:
        probabilities = F.dropout(F.softmax(scores, -1), dropout, module.training)
        context = torch.matmul(probabilities, value)
    return context.transpose(1, 2).contiguous(), None


def additive_mask(
    *_: Any,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    local_size: int | None = None,
    kv_length: int = 0,
    device: torch.device | None = None,
    **__: Any,
) -> Tensor | None:
    """Build the additive attention mask that transformers passes to `capturing_attention`.

    Args:
        attention_mask: 1 for real tokens, [B, S]; None if all are real.
        dtype: Dtype of the mask.
        local_size: How many tokens to each side a token attends to, in a layer with windowed attention; None for full
            attention.
        kv_length: Number of tokens S.
        device: Device of the mask if `attention_mask` is None.

    Returns:
        The term to add to the scores, [B, 1, 1, S], or with a window [B, 1, S, S] ([1, 1, S, S] if all tokens are
        real); None without window and padding.
    """
    allowed = None if attention_mask is None else attention_mask[:, None, None, :].to(dtype)
    if local_size is not None:
        positions = torch.arange(kv_length, device=device if attention_mask is None else attention_mask.device)
        distance = (positions[:, None] - positions[None, :]).abs()
        band = (local_size + 1 - distance).clamp(0, 1).to(dtype)[None, None]
        allowed = band if allowed is None else allowed * band
    return None if allowed is None else (1.0 - allowed) * MASKED_SCORE


def _install(model: Any) -> None:
    """Make a model use `capturing_attention`. Weights and results stay the same."""
    AttentionInterface.register(ATTENTION_NAME, capturing_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, additive_mask)
    model.set_attn_implementation(ATTENTION_NAME)


CAPTURES.add("attention-interface", _install)
