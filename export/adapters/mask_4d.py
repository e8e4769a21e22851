"""Families whose stock model takes an additive 4-D mask: BERT, RoBERTa, DistilBERT, MobileBERT and kin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import ADAPTERS
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.ane.turn import turn
from pocketbert.export.adapters.known_parts import known_parts
from pocketbert.export.adapters.lean.slim import slim
from pocketbert.export.adapters.outliers.scaling import Outliers, divide_outliers
from pocketbert.export.adapters.plan import ExportPlan
from pocketbert.export.heads import pooled

MASKED = -1e4
"""Added to scores of padded keys. Finite and inside fp16: never -inf or finfo.min in a graph."""


def with_additive_mask(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap a model into a module with explicit named inputs and plain tensor outputs, ready for torch.export.

    Args:
        model: A transformers model with a head in eval mode; switched to eager attention and rewritten in place by what is
            registered for its layers.
        plan: What the graph is for.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: If the plan's layout is not possible for the model.
    """
    known = known_parts(plan.family)
    carried = known.half_range(model, plan.outputs, plan.samples) if known and known.half_range else 1.0
    model.set_attn_implementation("eager")
    if known is not None and known.embeddings is not None:
        model = known.embeddings(model)
    model = turn(model, plan.family) if plan.layout is Layout.ANE else slim(model, plan.family, plan.format)
    if known is not None and known.head is not None:
        model = known.head(model)
    made = wrapped(model, plan, carried)
    made.outliers = divide_outliers(made, plan.family.inputs, plan.sentences)
    return made


def wrapped(model: Any, plan: ExportPlan, carried: float = 1.0, outer: type[Wrapped] | None = None) -> Wrapped:
    """Give a model that takes an additive mask [B, 1, 1, L] explicit inputs and plain outputs.

    Args:
        model: A transformers model with a head, rewritten for export.
        plan: What the graph is for.
        carried: What the last states are multiplied with.
        outer: The class whose signature names the inputs, where they are others than those of most families.

    Returns:
        The module, in eval mode.
    """
    usual = _WithSegments if plan.family.uses_segments else _WithoutSegments
    return (outer or usual)(model, plan, carried).eval()


class Wrapped(nn.Module):
    """A model behind a two-dimensional mask; a subclass names its inputs."""

    def __init__(self, model: Any, plan: ExportPlan, carried: float) -> None:
        super().__init__()
        self.model, self.outputs, self.pooling, self.carried = model, plan.outputs, plan.pooling, carried
        self.outliers: tuple[Outliers, ...] = ()
        self.one_segment = plan.format is Format.COREML and getattr(model.config, "type_vocab_size", 0) == 1

    def run(self, attention_mask: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Answer with the outputs in the task's order."""
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
class _WithSegments(Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        return self.run(attention_mask, input_ids=input_ids, token_type_ids=token_type_ids)


class _WithoutSegments(Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        if self.one_segment:
            # else transformers expands a buffer to a shape that Core ML's types then no longer know
            return self.run(attention_mask, input_ids=input_ids, token_type_ids=input_ids * 0)
        return self.run(attention_mask, input_ids=input_ids)


ADAPTERS.add("mask-4d", with_additive_mask)
