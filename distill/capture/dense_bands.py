"""Capture of attention in sliding windows, with global tokens: Longformer's.

transformers' own code computes it over blocks of tokens, pads every input to a multiple of the widest window, and knows no
attention interface. Here each layer computes the same over all pairs of tokens, which for the lengths of the family table
is also faster.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import MASKED, QueryKeyValue, active_recorder

_ATTENTION, _MODEL = "LongformerSelfAttention", "LongformerModel"
"""Classes of transformers, found by name: importing them takes time that other families need not pay."""


def install(model: Any) -> None:
    """Switch a model to attention over all pairs of tokens, which is captured; weights stay, results up to rounding."""
    for module in model.modules():
        if type(module).__name__ == _ATTENTION:
            module.forward = MethodType(attend, module)
        elif type(module).__name__ == _MODEL:
            module._pad_to_window_size = _unpadded


def is_installed(model: Any) -> bool:
    """Whether the attention of a model was switched."""
    return any(type(m).__name__ == _ATTENTION and "forward" in vars(m) for m in model.modules())


def attend(
    module: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    is_index_masked: Tensor,
    is_index_global_attn: Tensor,
    is_global_attn: bool,
    output_attentions: bool = False,
) -> tuple[Tensor, ...]:
    """Attention of each token to its window and to the global tokens, and of these to all; hands the active recorder what it wants.

    Source: Beltagy, Peters and Cohan 2020, arXiv 2004.05150, section 3.1, without dilation.

    Args:
        module: The attention module, with projections of its own for global tokens.
        hidden_states: [B, S, d].
        attention_mask: Not read: the next three say the same.
        is_index_masked: Padding, [B, S].
        is_index_global_attn: Global tokens, [B, S].
        is_global_attn: Whether there are any.
        output_attentions: Whether to return the probabilities too.

    Returns:
        Context, [B, S, d], 0 at padding; then, where they are asked for, probabilities [B, S, H, S], and where there are global
        tokens, those of all tokens again, [B, H, S, S].
    """
    query, key, value = (_heads(module, p(hidden_states)) for p in (module.query, module.key, module.value))
    recorder, layer = active_recorder(), -1
    if recorder is not None:
        layer = recorder.next_layer()
        if layer in recorder.relation_layers:
            recorder.relations[layer] = QueryKeyValue(query, key, value)
        if layer not in recorder.layers:
            recorder.end_behind(layer)
    readable = ~is_index_masked[:, None, None, :]
    near = _near(hidden_states.shape[1], module.one_sided_attn_window_size, hidden_states.device)
    scores = _scores(query, key, (near & readable) | is_index_global_attn[:, None, None, :])
    rows, values_of_all = is_index_global_attn[:, None, :, None], value
    if is_global_attn:
        wide = [_heads(module, p(hidden_states)) for p in (module.query_global, module.key_global, module.value_global)]
        scores = torch.where(rows, _scores(wide[0], wide[1], readable), scores)
        values_of_all = wide[2]
    if recorder is not None and layer in recorder.layers:
        recorder.scores[layer] = scores
        recorder.end_behind(layer)
    weights = F.dropout(F.softmax(scores, -1), module.dropout, module.training)
    context = torch.matmul(weights, value)
    if is_global_attn:
        context = torch.where(rows, torch.matmul(weights, values_of_all), context)
    context = context.transpose(1, 2).flatten(2).masked_fill(is_index_masked[:, :, None], 0.0)
    if not output_attentions:
        return (context,)
    return (context, weights.transpose(1, 2), weights) if is_global_attn else (context, weights.transpose(1, 2))


def _heads(module: Any, states: Tensor) -> Tensor:
    """[B, S, d] to [B, H, S, d / H]."""
    batch, length, _ = states.shape
    return states.view(batch, length, module.num_heads, module.head_dim).transpose(1, 2)


def _near(length: int, distance: int, device: torch.device) -> Tensor:
    """Pairs of tokens that are at most a distance apart, [S, S]."""
    places = torch.arange(length, device=device)
    return (places[:, None] - places).abs() <= distance


def _scores(query: Tensor, key: Tensor, allowed: Tensor) -> Tensor:
    """Scaled products, [B, H, S, S], with the mask of what may not be seen added."""
    products = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(2, 3))
    return products + (~allowed).to(products.dtype) * MASKED


def _unpadded(
    input_ids: Any, attention_mask: Any, token_type_ids: Any, position_ids: Any, inputs_embeds: Any, pad_token_id: int
) -> tuple[Any, ...]:
    """What the model calls to pad its inputs to a multiple of the window; none is needed."""
    return 0, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds


CAPTURES.add("dense-bands", install)
