"""Longformer: attention in sliding windows with global tokens, over all pairs of tokens and a mask, or over blocks of them.

The encoder is put together anew from the modules of the loaded model. Nothing in the graph depends on data but numbers:
transformers' own code branches on whether a batch has global tokens, and gathers them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ADAPTERS
from pocketbert.core.types import Format, Layout
from pocketbert.export.adapters.bands.attention import FirstOnly, LocalAttention
from pocketbert.export.adapters.bands.masks import Masks, block_masks, pair_masks
from pocketbert.export.adapters.lean.layers import PostNormLayer, Shape
from pocketbert.export.adapters.lean.slim import spell_norms
from pocketbert.export.adapters.parts import Parts
from pocketbert.export.adapters.plan import ExportPlan
from pocketbert.export.heads import pooled

_FIRST, _QUESTION = "ForSequenceClassification", "ForQuestionAnswering"
"""Ends of the names of the classes that have global tokens: the first one, or all of the question."""
DENSE = 1024
"""With attention over blocks, graphs of known lengths up to here still are over all pairs of tokens: that is as fast."""


def with_block_bands(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap a model into a module whose memory grows with the length of a text, not with its square; see `with_dense_bands`.

    Args:
        model: A transformers model with a head in eval mode; taken apart.
        plan: What the graph is for.

    Raises:
        InputError: As `with_dense_bands`, and for question-answering: every token of a question is global, so that each block
            would have to see a part of the text that may be as long as the text.
    """
    if type(model).__name__.endswith(_QUESTION):
        what = "'blocks' is not possible for question-answering: every token of a question is global, and each block would see them all."
        raise InputError(Problem("export.attention", what, "Set export.attention: pairs."))
    return with_dense_bands(model, plan, DENSE)


def with_dense_bands(model: Any, plan: ExportPlan, dense: int | None = None) -> nn.Module:
    """Wrap a model into a module with explicit named inputs and plain tensor outputs, ready for torch.export.

    Args:
        model: A transformers model with a head in eval mode; taken apart.
        plan: What the graph is for.
        dense: Longest known length whose attention is over all pairs of tokens; None for any length, known or free.

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
    made = _Banded(model, plan, dense)
    if plan.format is Format.TFLITE:
        spell_norms(made)
    return made.eval()


class _Banded(nn.Module):
    def __init__(self, model: Any, plan: ExportPlan, dense: int | None) -> None:
        super().__init__()
        self.dense = dense
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
        wide = self._global(input_ids, attention_mask)
        masks = self._masks(attention_mask, wide)
        states = self.embeddings(input_ids)
        for layer, reach in zip(self.layers, self.reaches, strict=True):
            states = layer(states, (masks, reach))
        if self.head is None:
            vector = [pooled(states, attention_mask, self.pooling)] if "sentence_embedding" in self.outputs else []
            return (states, *vector)
        answer = self.head(states)
        return tuple(answer.unbind(-1)) if self.question else (answer,)

    def _global(self, ids: Tensor, attention_mask: Tensor) -> Tensor | None:
        """1 at global tokens, [B, S]; None where the task has none."""
        real = attention_mask.to(torch.float32)
        if self.question:
            return real * torch.clamp(1.0 - torch.cumsum(_equal(ids, self.separator), 1), min=0.0, max=1.0)
        return real * torch.clamp(2.0 - torch.cumsum(real, 1), min=0.0, max=1.0) if self.first else None

    def _masks(self, attention_mask: Tensor, wide: Tensor | None) -> Masks:
        length = attention_mask.shape[1]
        if self.dense is None or (isinstance(length, int) and length <= self.dense):
            return pair_masks(self.reaches, attention_mask, wide, self.question)
        return block_masks(self.reaches, attention_mask, wide)


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
        attention: nn.Module = FirstOnly(own, parts.heads, parts.scaling, shape)
    else:
        attention = LocalAttention(parts, own if first or question else None, first, shape)
    return PostNormLayer(parts, first and last, shape, attention)


def _equal(ids: Tensor, id: int) -> Tensor:
    """1 where ids are a certain one, else 0."""
    return 1.0 - torch.clamp(torch.abs(ids - id), min=0, max=1).to(torch.float32)


ADAPTERS.add("dense-bands", with_dense_bands)
ADAPTERS.add("block-bands", with_block_bands)
