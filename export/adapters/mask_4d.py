"""Families whose stock model takes an additive 4-D mask: BERT, RoBERTa, DistilBERT, MobileBERT and kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.core.families import ADAPTERS, Family
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, PoolingKind
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.ane import turn
from pocketbert.export.adapters.lean import known_parts, slim
from pocketbert.export.adapters.outliers import Outliers, divide_outliers

# --- plan ---
# What an adapter is told.


@dataclass(frozen=True)
class ExportPlan:
    """Settings for which a model is prepared for export.

    Attributes:
        family: Its row of the family table: names the inputs and where the layers are.
        task: Names the outputs.
        format: What the graph will be written as: the cheapest graph for one engine is not the cheapest for another.
        layout: How activations lie in memory.
        pooling: How `sentence_embedding` is made, where the task has that output.
        samples: Inputs [B, L] of real text by name, to measure how large numbers become inside the model.
        sentences: Inputs [B, L] of texts that are the same in every run for a model, to find outlier channels on; empty to
            look for none.
    """

    family: Family
    task: Task
    format: Format = Format.ONNX
    layout: Layout = Layout.PLAIN
    pooling: Pooling = DEFAULT_POOLING
    samples: Sequence[Mapping[str, NDArray[np.int64]]] = ()
    sentences: Sequence[Mapping[str, NDArray[np.int64]]] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""
        return self.task.outputs


# --- heads ---
# What a graph computes after the model, where clients expect it inside the file.


_LEAST = 1e-4
"""What a length is taken for at least, so that a vector of zeros stays one; fp16 knows the number."""


def pooled(states: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """One vector per text.

    Source: Reimers and Gurevych 2019 (Sentence-BERT), strategies MEAN and CLS; normalised as sentence-transformers'
    Normalize.

    Args:
        states: Token states [B, L, H].
        attention_mask: [B, L], 1 for real tokens.
        pooling: Which states, and whether the vector has length 1.

    Returns:
        [B, H] float32.
    """
    vector = states[:, 0] if pooling.kind is PoolingKind.CLS else _mean(states, attention_mask)
    if not pooling.normalize:
        return vector
    # first by the largest entry: in fp16 the squares of a long vector's entries do not fit
    scaled = vector / _at_least(vector.abs().amax(-1, keepdim=True), _LEAST)
    return scaled / _at_least((scaled * scaled).sum(-1, keepdim=True).sqrt(), _LEAST)


def _mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    mask = attention_mask[:, :, None].to(states.dtype)
    return (states * mask).sum(1) / _at_least(mask.sum(1), 1.0)


def _at_least(values: Tensor, least: float) -> Tensor:
    """Values, none below a number. Not `clamp`: Core ML's has an upper end too, and infinity is a weight to refuse."""
    return torch.maximum(values, torch.full((), least))


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
