"""Wrap a model into a module with explicit inputs and plain outputs, ready for torch.export.

`ExportPlan` holds the settings. `with_additive_mask` is the adapter of families whose model takes an additive 4-D mask
(BERT, RoBERTa, DistilBERT, MobileBERT and kin): the layers are rewritten by the functions that are registered for the
family, and `wrap_model` puts the model behind inputs [B, L]. Adapters that write a new encoder check the model with
`check_computed` and use `with_own_encoder`: the transformers head over another encoder, which reuses the loaded
submodules. `sentence_pooling` computes sentence embeddings in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ADAPTERS, Family
from pocketbert.core.predict.predictor import split_heads
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.ane import rewrite_channels_first
from pocketbert.export.adapters.lean import decompose_norms, find_layer_parts, rewrite_layers
from pocketbert.export.adapters.outliers import Outliers, divide_outliers
from pocketbert.export.adapters.pooling import SentencePooling

MASK_VALUE = -1e4
"""Added to scores of padded keys. Finite and inside fp16: never -inf or finfo.min in a graph."""


@dataclass(frozen=True)
class ExportPlan:
    """Settings for which a model is prepared for export.

    Attributes:
        family: The model's family; it names the inputs and the path of the layers.
        task: The model's task; it names the outputs.
        format: Format of the file; the cheapest graph for one engine is not the cheapest for another.
        layout: How activations lie in memory.
        pooling: How `sentence_embedding` is computed, if the task has that output.
        samples: Inputs [B, L] of real text by name, on which the largest numbers inside a MobileBERT are measured.
        sentences: Inputs [B, L] of texts that are the same in every run for a model, on which outlier channels are
            found; if empty, none are looked for.
        channels: Largest magnitudes of channels on `sentences`, shared by all plans that prepare the same weights in
            the same way; `divide_outliers` fills it if it is empty. None to measure them for this plan only.
    """

    family: Family
    task: Task
    format: Format = Format.ONNX
    layout: Layout = Layout.PLAIN
    pooling: Pooling = DEFAULT_POOLING
    samples: Sequence[Mapping[str, NDArray[np.int64]]] = ()
    sentences: Sequence[Mapping[str, NDArray[np.int64]]] = ()
    channels: dict[str, Tensor] | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""
        return self.task.outputs


def with_additive_mask(model: Any, plan: ExportPlan) -> nn.Module:
    """Rewrite a model's layers for a format, and wrap it with named inputs [B, L] and plain tensor outputs.

    Activations beyond fp16's range are scaled first, if the family has a function for that. Last, outlier channels are
    divided, if the plan has sentences to find them; the module lists them as `outliers`.

    Args:
        model: A transformers model with a head in eval mode. It is switched to eager attention, and its layers are
            changed in place.
        plan: Settings of the export.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: If the plan's layout is not possible for the model, or the family names layer parts that are not
            registered.
    """
    parts = find_layer_parts(plan.family)
    factor = parts.half_range(model, plan.outputs, plan.samples) if parts and parts.half_range else 1.0
    model.set_attn_implementation("eager")
    if parts is not None and parts.embeddings is not None:
        model = parts.embeddings(model)
    if plan.layout is Layout.ANE:
        model = rewrite_channels_first(model, plan.family)
    else:
        model = rewrite_layers(model, plan.family, plan.format)
    if parts is not None and parts.head is not None:
        model = parts.head(model)
    module = wrap_model(model, plan, factor)
    module.outliers = divide_outliers(module, plan.family.inputs, plan.sentences, plan.channels)
    return module


def check_computed(model: Any, plan: ExportPlan) -> None:
    """Check that the rewritten encoder can compute what config.json and the export plan ask for.

    Args:
        model: A transformers model.
        plan: Settings of the export. The plan's family lists the entries of config.json that have only one supported
            value.

    Raises:
        InputError: Naming each entry with another value, and the layout if it is not ``plain``.
    """
    config = model.config
    problems = [
        Problem("config.json", f"{key} is {getattr(config, key)!r:.40}; only {value!r} is computed.")
        for key, value in plan.family.fixed.items()
        if getattr(config, key, value) != value
    ]
    if plan.layout is not Layout.PLAIN:
        what = f"'{plan.layout}' has no rewrite for the encoder of '{config.model_type}'."
        problems.append(Problem("export.coreml.layout", what, "Set export.coreml.layout: plain."))
    if problems:
        raise InputError(problems)


def with_own_encoder(
    model: Any, plan: ExportPlan, encoder: nn.Module, output_class: Any, wrapper: type[Wrapped] | None = None
) -> nn.Module:
    """Replace a model's encoder by a rewritten one, keep its head, and wrap both for export.

    For TFLite, the encoder's layer normalizations are written as arithmetic (`decompose_norms`).

    Args:
        model: A transformers model with a head, or without one, in eval mode. **It is changed in place.**
        plan: Settings of the export.
        encoder: The rewritten encoder: called with the inputs of the model's family, it returns the last states [B, L,
            H], or those that the head reads, [B, 1, H].
        output_class: The class of the encoder's output that the loaded head expects, called with `last_hidden_state`.
        wrapper: The class whose signature names the inputs, if they differ from those of most families.

    Returns:
        The module, in eval mode.
    """
    if plan.format is Format.TFLITE:
        decompose_norms(encoder)
    inner = Answering(encoder, output_class)
    name = model.base_model_prefix
    if hasattr(model, name):
        setattr(model, name, inner)
    else:
        model = inner
    return wrap_model(model, plan, wrapper=wrapper, additive=False)


def wrap_model(
    model: Any, plan: ExportPlan, factor: float = 1.0, wrapper: type[Wrapped] | None = None, additive: bool = True
) -> Wrapped:
    """Wrap a model into a module with named inputs [B, L] and a tuple of tensors as output.

    Args:
        model: A model with a head, rewritten for export.
        plan: Settings of the export.
        factor: Factor by which the last states are scaled inside the model; outputs are divided by it. See
            `half_range`.
        wrapper: The class whose signature names the inputs, if they differ from those of most families.
        additive: Whether the model takes an additive mask [B, 1, 1, L], not the mask [B, L] itself.

    Returns:
        The module, in eval mode.
    """
    default = _WithSegments if plan.family.uses_segments else _WithoutSegments
    return (wrapper or default)(model, plan, factor, additive).eval()


def sentence_pooling(plan: ExportPlan, carried: float = 1.0) -> SentencePooling | None:
    """Return the module that computes sentence vectors from states, or None if the task does not have that output.

    `carried` is the factor by which the states are scaled inside the model.
    """
    if "sentence_embedding" not in plan.outputs:
        return None
    return SentencePooling(plan.pooling, plan.family.padding_side == "left", carried)


class Wrapped(nn.Module):
    """A model for export that takes a two-dimensional attention mask. Subclasses name its inputs in `forward`.

    Args:
        model: The model.
        plan: Settings of the export.
        carried: Factor by which the last states are scaled inside the model.
        additive: Whether the model takes an additive mask [B, 1, 1, L].

    Attributes:
        outliers: The tensors whose outlier channels were divided.
    """

    def __init__(self, model: Any, plan: ExportPlan, carried: float, additive: bool = True) -> None:
        super().__init__()
        self.model, self.task, self.outputs, self.carried = model, plan.task, plan.outputs, carried
        self.pooling = sentence_pooling(plan, carried)
        self.additive = additive
        self.outliers: tuple[Outliers, ...] = ()
        has_one_segment = getattr(getattr(model, "config", None), "type_vocab_size", 0) == 1
        self.one_segment = additive and plan.format is Format.COREML and has_one_segment

    def run(self, attention_mask: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the model on inputs [B, L], and return the task's outputs in order.

        A model that takes an additive mask gets [B, 1, 1, L], made of `attention_mask`. Sentence embeddings are pooled
        from the states here, and states that the model scales are scaled back. Logits of several heads are split.
        """
        mask = attention_mask
        if self.additive:
            mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * MASK_VALUE
        out = self.model(attention_mask=mask, **inputs)
        if "sentence_embedding" in self.outputs:
            states = out[self.outputs[0]]
            assert self.pooling is not None
            vector = self.pooling(states, attention_mask)
            # only now: a vector of length 1 has no scale, and fp16 may hold it where it cannot hold the states
            return self._restored(states), self._restored(vector) if self.pooling.scaled else vector
        if self.task.heads:
            by_head = split_heads(out["logits"], self.task)
            return tuple(by_head[name] for name in self.outputs)
        return tuple(out[name] for name in self.outputs)

    def _restored(self, states: Tensor) -> Tensor:
        return states if self.carried == 1 else states * (1 / self.carried)


# torch.export needs a signature without *args, so there is one class per set of inputs
class _WithSegments(Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        return self.run(attention_mask, input_ids=input_ids, token_type_ids=token_type_ids)


class _WithoutSegments(Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        if self.one_segment:
            # else transformers expands a buffer to a shape that Core ML's types do not hold
            return self.run(attention_mask, input_ids=input_ids, token_type_ids=input_ids * 0)
        return self.run(attention_mask, input_ids=input_ids)


class Answering(nn.Module):
    """A rewritten encoder with the call signature of a transformers encoder. Arguments for training are ignored."""

    def __init__(self, encoder: nn.Module, answer: Any) -> None:
        super().__init__()
        self.encoder, self.answer = encoder, answer

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        langs: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Run the encoder on inputs [B, L] and return its states as a transformers output object."""
        optional = {"token_type_ids": token_type_ids, "langs": langs}
        more = {name: value for name, value in optional.items() if value is not None}
        return self.answer(last_hidden_state=self.encoder(input_ids, attention_mask, **more))


def computed_zero(values: Tensor) -> Tensor:
    """Return a zero [1] computed from an input [B, L] of 0 or more, so that no converter recognizes it as constant.

    Converters compute in advance whatever does not depend on an input. A table to which this zero is added stays in the
    graph: it is stored once for all lengths, and compressed like any other.
    """
    return torch.clamp(values[0, :1].to(torch.float32), -1.0, 0.0)


ADAPTERS.add("mask-4d", with_additive_mask)
