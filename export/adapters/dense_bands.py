"""Longformer: attention in sliding windows with global tokens, as attention over all pairs of tokens and a mask.

The encoder is put together anew from the modules of the loaded model. Nothing in the graph depends on data but numbers:
transformers' own code branches on whether a batch has global tokens, and gathers them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ADAPTERS
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.lean.attention import AllRows, FirstRow
from pocketbert.export.adapters.lean.layers import PostNormLayer, Shape
from pocketbert.export.adapters.lean.slim import spell_norms
from pocketbert.export.adapters.mask_4d import MASKED
from pocketbert.export.adapters.parts import Parts
from pocketbert.export.adapters.plan import ExportPlan
from pocketbert.export.heads import pooled

_FIRST, _QUESTION = "ForSequenceClassification", "ForQuestionAnswering"
"""Ends of the names of the classes that have global tokens: the first one, or all of the question."""


def with_dense_bands(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap a model into a module with explicit named inputs and plain tensor outputs, ready for torch.export.

    Args:
        model: A transformers model with a head in eval mode; taken apart.
        plan: What the graph is for.

    Raises:
        InputError: If the plan's layout is not possible, or the model would look for a separator that it does not name.
    """
    if plan.layout is Layout.ANE:
        what = f"'ane' has no rewrite for the encoder of '{model.config.model_type}'."
        raise InputError(Problem("export.coreml.layout", what, "Set export.coreml.layout: plain."))
    kind = type(model).__name__
    if kind.endswith(_QUESTION) and not isinstance(model.config.sep_token_id, int):
        what = "has no sep_token_id, by which the model finds the end of the question."
        raise InputError(
            Problem("config.json", what, "Add the id of the token that ends a text (2 in published models).")
        )
    made = _Banded(model, plan)
    if plan.format is Format.TFLITE:
        spell_norms(made)
    return made.eval()


class Masks(NamedTuple):
    """What layers add to attention scores, and which tokens are global.

    Attributes:
        near: By half the window: keys that a token may attend to, global ones among them, [B, 1, S, S] or [B, 1, 1, S].
        real: Keys that a global token may attend to, [B, 1, 1, S].
        globals: 1 at global tokens, [B, S, 1]; None where there are none, or the first only.
    """

    near: dict[int, Tensor]
    real: Tensor
    globals: Tensor | None


class _Banded(nn.Module):
    def __init__(self, model: Any, plan: ExportPlan) -> None:
        super().__init__()
        kind = type(model).__name__
        self.first, self.question = kind.endswith(_FIRST), kind.endswith(_QUESTION)
        self.outputs, self.pooling = plan.outputs, plan.pooling
        encoder = getattr(model, model.base_model_prefix, model)
        self.embeddings = _Embeddings(encoder.embeddings)
        shape = Shape(flat_ffn=plan.format is Format.ONNX, opaque=plan.format is Format.TFLITE)
        last = len(encoder.encoder.layer) - 1
        self.layers = nn.ModuleList(
            _layer(layer, self.first, self.question, i == last, shape) for i, layer in enumerate(encoder.encoder.layer)
        )
        self.reaches = [layer.attention.self.one_sided_attn_window_size for layer in encoder.encoder.layer]
        self.separator = model.config.sep_token_id if self.question else 0
        names = ("classifier", "qa_outputs", "lm_head")
        self.head = next((getattr(model, n) for n in names if hasattr(model, n)), None)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        masks = self._masks(input_ids, attention_mask)
        states = self.embeddings(input_ids)
        for layer, reach in zip(self.layers, self.reaches, strict=True):
            states = layer(states, (masks, reach))
        if self.head is None:
            vector = [pooled(states, attention_mask, self.pooling)] if "sentence_embedding" in self.outputs else []
            return (states, *vector)
        answer = self.head(states)
        return tuple(answer.unbind(-1)) if self.question else (answer,)

    def _masks(self, ids: Tensor, attention_mask: Tensor) -> Masks:
        real = attention_mask.to(torch.float32)
        additive = (1.0 - real[:, None, None, :]) * MASKED
        length, wide = ids.shape[1], None  # both ends of every clamp: Core ML writes infinity for one that is missing
        # counted instead of numbered: a constant of all pairs would be stored in files of fixed lengths
        places = torch.cumsum(real, 1)
        if self.question:
            wide = real * torch.clamp(1.0 - torch.cumsum(_equal(ids, self.separator), 1), min=0.0, max=1.0)
        elif self.first:
            wide = real * torch.clamp(2.0 - places, min=0.0, max=1.0)
        near = {}
        for reach in sorted(set(self.reaches)):
            if isinstance(length, int) and length <= reach + 1:
                near[reach] = additive
                continue
            distance = torch.abs(places[:, :, None] - places[:, None, :])
            allowed = torch.clamp(reach + 1.0 - distance, min=0.0, max=1.0)
            if wide is not None:
                allowed = torch.clamp(allowed + wide[:, None, :], min=0.0, max=1.0)
            near[reach] = ((allowed * real[:, None, :] - 1.0) * -MASKED)[:, None]
        return Masks(near, additive, wide[:, :, None] if wide is not None and self.question else None)


class _Embeddings(nn.Module):
    """Words and places, normalized; the one segment is added to the table of places."""

    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.words, self.places, self.norm = stock.word_embeddings, stock.position_embeddings, stock.LayerNorm
        with torch.no_grad():
            self.places.weight.add_(stock.token_type_embeddings.weight[0])
        self.padding: int = stock.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        real = torch.clamp(torch.abs(ids - self.padding), min=0, max=1)
        places = torch.cumsum(real, 1).to(ids.dtype) * real + self.padding
        states: Tensor = self.norm(self.words(ids) + self.places(places))
        return states


class _Local(nn.Module):
    """Attention within the window, and of the global tokens to all."""

    def __init__(self, parts: Parts, wide: Any, first: bool, shape: Shape) -> None:
        super().__init__()
        self.near = AllRows(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.wide: nn.Module | None = None
        self.first = first
        if wide is not None:
            projections = (wide.query_global, wide.key_global, wide.value_global, parts.heads, parts.scaling)
            self.wide = FirstRow(*projections, opaque=shape.opaque) if first else AllRows(*projections)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Masks, int]) -> Tensor:
        masks, reach = mask
        context: Tensor = self.near(queries, keys, values, masks.near[reach])
        if self.wide is None:
            return context
        if self.first:
            return torch.cat([self.wide(queries[:, :1], keys, values, masks.real), context[:, 1:]], 1)
        assert masks.globals is not None
        wide: Tensor = self.wide(queries, keys, values, masks.real)
        return context + (wide - context) * masks.globals


class _FirstOnly(nn.Module):
    """Attention of the first token, which is global, to all."""

    def __init__(self, wide: Any, heads: int, scaling: float, shape: Shape) -> None:
        super().__init__()
        projections = (wide.query_global, wide.key_global, wide.value_global)
        self.wide = FirstRow(*projections, heads, scaling, opaque=shape.opaque)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Masks, int]) -> Tensor:
        context: Tensor = self.wide(queries, keys, values, mask[0].real)
        return context


def _layer(layer: Any, first: bool, question: bool, last: bool, shape: Shape) -> PostNormLayer:
    own, out = layer.attention.self, layer.attention.output
    parts = Parts(
        query=own.query,
        key=own.key,
        value=own.value,
        heads=own.num_heads,
        scaling=own.head_dim**-0.5,
        attention_out=out.dense,
        attention_norm=out.LayerNorm,
        up=layer.intermediate.dense,
        act=layer.intermediate.intermediate_act_fn,
        down=layer.output.dense,
        output_norm=layer.output.LayerNorm,
    )
    if first and last:
        attention: nn.Module = _FirstOnly(own, parts.heads, parts.scaling, shape)
    else:
        attention = _Local(parts, own if first or question else None, first, shape)
    return PostNormLayer(parts, first and last, shape, attention)


def _equal(ids: Tensor, id: int) -> Tensor:
    """1 where ids are a certain one, else 0."""
    return 1.0 - torch.clamp(torch.abs(ids - id), min=0, max=1).to(torch.float32)


ADAPTERS.add("dense-bands", with_dense_bands)
