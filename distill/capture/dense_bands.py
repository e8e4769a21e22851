"""Capture of attention in sliding windows with global tokens: Longformer's.

transformers' implementation computes it over blocks of tokens, pads every input to a multiple of the widest window, and
does not use the attention interface. Here each layer computes the same over all pairs of tokens, which is also faster
for the lengths of the family table.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import MASKED_SCORE, QueryKeyValue, active_recorder

_ATTENTION, _MODEL = "LongformerSelfAttention", "LongformerModel"
"""Classes of transformers, matched by name: importing them takes time that other families do not need."""


def _install(model: Any) -> None:
    """Make a Longformer compute attention over all pairs of tokens and record it. Results stay equal up to rounding."""
    for module in model.modules():
        if type(module).__name__ == _ATTENTION:
            module.forward = MethodType(_attend, module)
        elif type(module).__name__ == _MODEL:
            module._pad_to_window_size = _without_padding


def is_installed(model: Any) -> bool:
    """Return whether a model's attention was replaced by the recording one."""
    return any(type(m).__name__ == _ATTENTION and "forward" in vars(m) for m in model.modules())


def _attend(
    module: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    is_index_masked: Tensor,
    is_index_global_attn: Tensor,
    is_global_attn: bool,
    output_attentions: bool = False,
) -> tuple[Tensor, ...]:
    """Compute one layer's windowed and global attention, and store what the active recorder keeps of it.

    Each token attends to its window and to the global tokens, and a global token to all.
    Source: Beltagy, Peters and Cohan 2020, arXiv 2004.05150, section 3.1, without dilation.

    Args:
        module: The attention module, with separate projections for global tokens.
        hidden_states: States of the tokens, [B, S, d].
        attention_mask: Not read: the next three arguments have the same content.
        is_index_masked: True at padding, [B, S].
        is_index_global_attn: True at global tokens, [B, S].
        is_global_attn: Whether there are any global tokens.
        output_attentions: Whether to return the probabilities too.

    Returns:
        The context, [B, S, d], which is 0 at padding. With `output_attentions` also the probabilities, [B, S, H, S],
        and, if there are global tokens, the same probabilities once more as [B, H, S, S].
    """
    query, key, value = (_split_heads(module, p(hidden_states)) for p in (module.query, module.key, module.value))
    recorder, layer = active_recorder(), -1
    if recorder is not None:
        layer = recorder.next_layer()
        if layer in recorder.relation_layers:
            recorder.relations[layer] = QueryKeyValue(query, key, value)
        if layer not in recorder.layers:
            recorder.end_behind(layer)
    positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)
    in_window = (positions[:, None] - positions).abs() <= module.one_sided_attn_window_size
    real_keys = ~is_index_masked[:, None, None, :]
    scores = _masked_scores(query, key, (in_window & real_keys) | is_index_global_attn[:, None, None, :])
    global_rows, global_value = is_index_global_attn[:, None, :, None], value
    if is_global_attn:
        projections = (module.query_global, module.key_global, module.value_global)
        global_query, global_key, global_value = (_split_heads(module, p(hidden_states)) for p in projections)
        scores = torch.where(global_rows, _masked_scores(global_query, global_key, real_keys), scores)
    if recorder is not None and layer in recorder.layers:
        recorder.scores[layer] = scores
        recorder.end_behind(layer)
    weights = F.dropout(F.softmax(scores, -1), module.dropout, module.training)
    context = torch.matmul(weights, value)
    if is_global_attn:
        context = torch.where(global_rows, torch.matmul(weights, global_value), context)
    context = context.transpose(1, 2).flatten(2).masked_fill(is_index_masked[:, :, None], 0.0)
    if not output_attentions:
        return (context,)
    return (context, weights.transpose(1, 2), weights) if is_global_attn else (context, weights.transpose(1, 2))


def _split_heads(module: Any, states: Tensor) -> Tensor:
    """Reshape [B, S, d] to [B, H, S, d / H]."""
    batch, length, _ = states.shape
    return states.view(batch, length, module.num_heads, module.head_dim).transpose(1, 2)


def _masked_scores(query: Tensor, key: Tensor, allowed: Tensor) -> Tensor:
    """Return scaled query-key products, [B, H, S, S], with -1e4 added to pairs of tokens that are not allowed."""
    products = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(2, 3))
    return products + (~allowed).to(products.dtype) * MASKED_SCORE


def _without_padding(
    input_ids: Any, attention_mask: Any, token_type_ids: Any, position_ids: Any, inputs_embeds: Any, pad_token_id: int
) -> tuple[Any, ...]:
    """Return a model's inputs unchanged, in place of the method that pads them to a multiple of the window."""
    return 0, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds


CAPTURES.add("dense-bands", _install)
