"""Capture from disentangled attention (DeBERTa v1, v2 and v3), which does not use transformers' attention interface.

Scores hold all that the model adds up: content to content, content to position, position to content.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.diversion import divert
from pocketbert.distill.capture.recorder import QueryKeyValue, active_recorder

MASKED = -1e4
"""Scores of padded keys: exp of it is exactly 0, and it is finite in every dtype."""


def install(model: Any) -> None:
    """Divert every attention module of a model; weights and results stay the same.

    Raises:
        InputError: If its heads mix their scores, which nothing here computes.
    """
    if getattr(model.config, "talking_head", False):
        what = "talking_head is set: the scores of its heads are mixed before the softmax, and are no signal."
        raise InputError(Problem(type(model).__name__, what, "Distil from its logits and hidden states only."))
    for layer in getattr(model, "base_model", model).encoder.layer:
        own = layer.attention.self
        divert(own, _first if hasattr(own, "in_proj") else _second)


def _first(
    module: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of v1: one projection, a head's queries, keys and values in turn."""
    split = module.transpose_for_scores
    query, key, value = split(module.in_proj(hidden_states)).chunk(3, dim=-1)
    given = QueryKeyValue(query + split(module.q_bias[None, None]), key, value + split(module.v_bias[None, None]))
    terms = 1 + len(module.pos_att_type)
    scaled = given.query * (given.query.shape[-1] * terms) ** -0.5
    scores = torch.matmul(scaled, key.transpose(2, 3))
    if module.relative_attention and rel_embeddings is not None:
        relative = module.pos_dropout(rel_embeddings)
        scores = scores + module.disentangled_att_bias(scaled, key, relative_pos, relative, terms)
    return _attend(module, given, scores, attention_mask, output_attentions)


def _second(
    module: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of v2 and v3, whose own functions lay batch and heads in one axis."""
    batch, heads = len(hidden_states), module.num_attention_heads
    flat = [
        module.transpose_for_scores(projection(hidden_states), heads)
        for projection in (module.query_proj, module.key_proj, module.value_proj)
    ]
    given = QueryKeyValue(*(x.unflatten(0, (batch, heads)) for x in flat))
    terms = 1 + sum(kind in module.pos_att_type for kind in ("c2p", "p2c"))
    scores = torch.matmul(given.query, given.key.transpose(2, 3)) * (given.query.shape[-1] * terms) ** -0.5
    if module.relative_attention:
        relative = module.pos_dropout(rel_embeddings)
        added = module.disentangled_attention_bias(flat[0], flat[1], relative_pos, relative, terms)
        if isinstance(added, Tensor):  # 0 where positions are in no term
            scores = scores + added.unflatten(0, (batch, heads))
    return _attend(module, given, scores, attention_mask, output_attentions)


def _attend(
    module: Any, given: QueryKeyValue, scores: Tensor, mask: Tensor, wants_map: bool
) -> tuple[Tensor, Tensor | None]:
    """Hand the active recorder what it wants of this layer, and attend.

    Args:
        module: The attention module.
        given: What scores are computed from.
        scores: [B, H, S, S].
        mask: 1 where a token may attend to another, [B, 1, S, S].
        wants_map: Whether to return the probabilities.

    Returns:
        Context, [B, S, H * head size], and the probabilities or None.
    """
    # padded queries see no key either, as in transformers: all their scores are equal
    scores = scores.masked_fill(~mask.bool(), MASKED)
    recorder = active_recorder()
    if recorder is not None:
        layer = recorder.next_layer()
        if layer in recorder.relation_layers:
            recorder.relations[layer] = given
        if layer in recorder.layers:
            recorder.scores[layer] = scores
        recorder.end_behind(layer)
    probabilities = module.dropout(F.softmax(scores, -1))
    context = torch.matmul(probabilities, given.value).transpose(1, 2).flatten(2)
    return context, probabilities if wants_map else None


CAPTURES.add("disentangled", install)
