"""Families whose stock model takes an additive 4-D mask: BERT, RoBERTa, DistilBERT, MobileBERT and kin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.predict.pooling import DEFAULT_POOLING, Pooling
from pocketbert.core.types import Format
from pocketbert.export.adapters.lean import slim
from pocketbert.export.adapters.lean_heads import lean_head
from pocketbert.export.heads import pooled

MASKED = -1e4
"""Added to scores of padded keys. Finite and inside fp16: never -inf or finfo.min in a graph."""


def wrap(
    model: Any,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    format: Format,
    pooling: Pooling = DEFAULT_POOLING,
    carried: float = 1.0,
) -> nn.Module:
    """A module with explicit named inputs and plain tensor outputs, ready for torch.export.

    Args:
        model: A transformers model with a head; switched to eager attention and rewritten in place by `slim` and `lean_head`.
        inputs: Names of the graph's inputs, of the family table.
        outputs: Names of the graph's outputs, of the task table.
        format: What the graph will be written as.
        pooling: How `sentence_embedding` is made, where it is an output.
        carried: What the model's last states are multiplied with, a power of two; see `half_range.fit`.

    Returns:
        The module, in eval mode.
    """
    model.set_attn_implementation("eager")
    kind = _WithSegments if "token_type_ids" in inputs else _WithoutSegments
    return kind(lean_head(slim(model, format)), outputs, format, pooling, carried).eval()


class _Wrapped(nn.Module):
    def __init__(self, model: Any, outputs: tuple[str, ...], format: Format, pooling: Pooling, carried: float) -> None:
        super().__init__()
        self.model, self.outputs, self.pooling, self.carried = model, outputs, pooling, carried
        self.one_segment = format is Format.COREML and getattr(model.config, "type_vocab_size", 0) == 1

    def _run(self, attention_mask: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        additive = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * MASKED
        out = self.model(attention_mask=additive, **inputs)
        if "sentence_embedding" in self.outputs:
            states = out[self.outputs[0]]
            vector = pooled(states, attention_mask, self.pooling)
            # only now: a vector of length 1 has no scale, and fp16 may hold it where it cannot hold the states
            return self._restored(states), vector if self.pooling.normalize else self._restored(vector)
        return tuple(out[name] for name in self.outputs)

    def _restored(self, states: Tensor) -> Tensor:
        return states if self.carried == 1 else states * (1 / self.carried)


# torch.export needs a signature without *args, so there is one class per set of inputs.
class _WithSegments(_Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        return self._run(attention_mask, input_ids=input_ids, token_type_ids=token_type_ids)


class _WithoutSegments(_Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        if self.one_segment:
            # else transformers expands a buffer to a shape that Core ML's types then no longer know
            return self._run(attention_mask, input_ids=input_ids, token_type_ids=input_ids * 0)
        return self._run(attention_mask, input_ids=input_ids)
