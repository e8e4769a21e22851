"""Capture from disentangled attention (DeBERTa v1, v2 and v3), which does not use transformers' attention interface.

Recorded scores are the sum of all terms: content to content, content to position, position to content. Recorded
relations are the queries, keys and values of the content.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention as AttentionV1
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention as AttentionV2

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import (
    MASKED_SCORE,
    CapturingModule,
    QueryKeyValue,
    active_recorder,
    replace_classes,
)


class _CapturingV1(AttentionV1, CapturingModule):  # type: ignore[misc]
    """Attention of DeBERTa v1 that fills the active recorder. Weights and results stay the same."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the attention of one layer, and store what the active recorder keeps: scores, queries, keys, values.

        If the recorder ends the forward pass here, no context is computed.

        Args:
            hidden_states: States of the tokens, [B, S, d].
            attention_mask: 1 where a token may attend to another, [B, 1, S, S].
            output_attentions: Whether to return the probabilities too.
            query_states: Must be None: only a decoder computes queries from other states than `hidden_states`.
            relative_pos: Distances of tokens, [1, S, S].
            rel_embeddings: Table of embeddings of the distances, [rows, d].

        Returns:
            The context, [B, S, d], and the probabilities, [B, H, S, S], or None.

        Raises:
            ValueError: If `query_states` is given.
        """
        _require_own_queries(query_states)
        split_heads = self.transpose_for_scores
        query, key, value = split_heads(self.in_proj(hidden_states)).chunk(3, dim=-1)
        query, value = query + split_heads(self.q_bias[None, None]), value + split_heads(self.v_bias[None, None])
        terms = 1 + len(self.pos_att_type)
        scaled = query * (query.shape[-1] * terms) ** -0.5
        scores = torch.matmul(scaled, key.transpose(2, 3))
        if self.relative_attention and rel_embeddings is not None:
            relative = self.pos_dropout(rel_embeddings)
            scores = scores + self.disentangled_att_bias(scaled, key, relative_pos, relative, terms)
        return _attend(self, QueryKeyValue(query, key, value), scores, attention_mask, output_attentions)


class _CapturingV2(AttentionV2, CapturingModule):  # type: ignore[misc]
    """Attention of DeBERTa v2 and v3 that fills the active recorder. Weights and results stay the same."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the attention of one layer, and store what the active recorder keeps; see `_CapturingV1.forward`.

        `relative_pos` holds the tokens' distances, or buckets of distances.
        """
        _require_own_queries(query_states)
        batch, heads = len(hidden_states), self.num_attention_heads
        flat = [
            self.transpose_for_scores(projection(hidden_states), heads)
            for projection in (self.query_proj, self.key_proj, self.value_proj)
        ]
        vectors = QueryKeyValue(*(x.unflatten(0, (batch, heads)) for x in flat))
        terms = 1 + sum(kind in self.pos_att_type for kind in ("c2p", "p2c"))
        scores = torch.matmul(vectors.query, vectors.key.transpose(2, 3)) * (vectors.query.shape[-1] * terms) ** -0.5
        if self.relative_attention:
            relative = self.pos_dropout(rel_embeddings)
            added = self.disentangled_attention_bias(flat[0], flat[1], relative_pos, relative, terms)
            if isinstance(added, Tensor):  # 0 if positions are in no term
                scores = scores + added.view(batch, heads, *added.shape[1:])
        return _attend(self, vectors, scores, attention_mask, output_attentions)


_CAPTURING = {AttentionV1: _CapturingV1, AttentionV2: _CapturingV2}


def _install(model: Any) -> None:
    """Give each DeBERTa attention module of a model the class that records its attention. Weights stay the same.

    Raises:
        InputError: If the heads of the model mix their scores (``talking_head``), which is not implemented here.
    """
    if getattr(model.config, "talking_head", False):
        what = "talking_head is set: its heads mix their scores before the softmax, so they are no signal of one head."
        raise InputError(Problem(type(model).__name__, what, "Distil from its logits and hidden states only."))
    replace_classes(model, _CAPTURING)


def _require_own_queries(query_states: Tensor | None) -> None:
    """Raise ValueError if there are states of another text to compute the queries from, as in a decoder."""
    if query_states is not None:
        raise ValueError("the capturing attention of an encoder takes no queries of other states")


def _attend(
    module: Any, vectors: QueryKeyValue, scores: Tensor, mask: Tensor, output_attentions: bool
) -> tuple[Tensor, Tensor | None]:
    """Mask attention scores, store what the active recorder keeps, and compute the layer's output from the scores.

    Args:
        module: The attention module, whose dropout is applied.
        vectors: Queries, keys and values.
        scores: Scaled scores before the mask, [B, H, S, S].
        mask: 1 where a token may attend to another, [B, 1, S, S]. Only padded keys are masked.
        output_attentions: Whether to return the probabilities too.

    Returns:
        The context, [B, S, d], and the probabilities, [B, H, S, S], or None.
    """
    # only by keys, as in every other family; transformers also masks all keys of padded queries, which nothing reads
    scores = scores.masked_fill(~mask.bool().any(-2, keepdim=True), MASKED_SCORE)
    recorder = active_recorder()
    if recorder is not None:
        layer = recorder.next_layer()
        if layer in recorder.relation_layers:
            recorder.relations[layer] = vectors
        if layer in recorder.layers:
            recorder.scores[layer] = scores
        recorder.end_behind(layer)
    probabilities = module.dropout(F.softmax(scores, -1))
    context = torch.matmul(probabilities, vectors.value).transpose(1, 2).flatten(2)
    return context, probabilities if output_attentions else None


CAPTURES.add("disentangled", _install)
