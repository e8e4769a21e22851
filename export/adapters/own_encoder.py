"""What models whose encoder is written anew have in common: the stock head over another encoder, behind explicit inputs.

The encoders take over the loaded submodules; only what runs between them is new.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.lean import spell_norms
from pocketbert.export.adapters.mask_4d import ExportPlan, pooled


def check_computed(model: Any, plan: ExportPlan) -> None:
    """Refuse a model that asks for what its encoder does not compute.

    Args:
        model: A transformers model.
        plan: Names the row of the family, with the entries of config.json that are fixed.

    Raises:
        InputError: Naming each entry, or the layout.
    """
    config = model.config
    found = [
        Problem("config.json", f"{key} is {getattr(config, key)!r:.40}; only {value!r} is computed.")
        for key, value in plan.family.fixed.items()
        if getattr(config, key, value) != value
    ]
    if plan.layout is not Layout.PLAIN:
        what = f"'{plan.layout}' has no rewrite for the encoder of '{config.model_type}'."
        found.append(Problem("export.coreml.layout", what, "Set export.coreml.layout: plain."))
    if found:
        raise InputError(found)


def with_own_encoder(
    model: Any, plan: ExportPlan, encoder: nn.Module, answer: Any, outer: type[Wrapped] | None = None
) -> nn.Module:
    """Put an encoder in the place of a model's own, and wrap the whole into a module with plain inputs and outputs.

    Args:
        model: A transformers model with a head, or without one, in eval mode. **It is changed in place.**
        plan: What the graph is for.
        encoder: Called with the inputs of the family's row by name; returns the last states [B, L, H].
        answer: What the stock head expects its encoder to return, called with `last_hidden_state`.
        outer: The class whose signature names the inputs, where they are others than those of most families.

    Returns:
        The module, in eval mode.
    """
    if plan.format is Format.TFLITE:
        spell_norms(encoder)
    inner = Answering(encoder, answer)
    name = model.base_model_prefix
    if hasattr(model, name):
        setattr(model, name, inner)
    else:
        model = inner
    # torch.export needs a signature without *args, so there is one class per set of inputs
    usual = _WithSegments if plan.family.uses_segments else _WithoutSegments
    return (outer or usual)(model, plan).eval()


class Answering(nn.Module):
    """An encoder behind the signature of a stock one: what a head passes for training and decoding is not computed."""

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
        """Run the encoder; all inputs are [B, L]."""
        given = {"token_type_ids": token_type_ids, "langs": langs}
        more = {name: value for name, value in given.items() if value is not None}
        return self.answer(last_hidden_state=self.encoder(input_ids, attention_mask, **more))


class Wrapped(nn.Module):
    """A model whose outputs are the tensors that the task names."""

    def __init__(self, model: nn.Module, plan: ExportPlan) -> None:
        super().__init__()
        self.model, self.outputs, self.pooling = model, plan.outputs, plan.pooling

    def run(self, attention_mask: Tensor, **inputs: Tensor) -> tuple[Tensor, ...]:
        """Answer with the outputs in the task's order; inputs are [B, L]."""
        out = self.model(attention_mask=attention_mask, **inputs)
        if "sentence_embedding" in self.outputs:
            states = out[self.outputs[0]]
            return states, pooled(states, attention_mask, self.pooling)
        return tuple(out[name] for name in self.outputs)


class _WithSegments(Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        return self.run(attention_mask, input_ids=input_ids, token_type_ids=token_type_ids)


class _WithoutSegments(Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        return self.run(attention_mask, input_ids=input_ids)


def zero_of(values: Tensor) -> Tensor:
    """A zero [1] that no converter knows to be one, made of numbers that are 0 or more, [B, L].

    A converter computes in advance whatever does not depend on an input. What is added to this zero stays in the graph: a
    table is stored once for all lengths, and compressed as any other.
    """
    return torch.clamp(values[0, :1].to(torch.float32), -1.0, 0.0)
