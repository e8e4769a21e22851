"""Capture through transformers' attention interface: BERT, RoBERTa, DistilBERT, MobileBERT and kin.

With SDPA, `output_attentions=True` returns an empty tuple and raises nothing; with eager attention every
layer pays for its map. Here the layers that are wanted compute their scores openly, the others use SDPA; queries,
keys and values are on their way in any case and cost nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import QueryKeyValue, active_recorder

NAME = "pocketbert_capture"
MASKED = -1e4
"""Added to scores of padded keys: exp of it is exactly 0, and it is finite in every dtype."""


def install(model: Any) -> None:
    """Switch a model to the capturing attention; weights and results stay the same."""
    AttentionInterface.register(NAME, capturing_attention)
    AttentionMaskInterface.register(NAME, additive_mask)
    model.set_attn_implementation(NAME)


def capturing_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention that hands the active recorder what it wants of this layer.

    Where the recorder ends the pass, neither probabilities nor context are computed.

    Args:
        module: The attention module that calls.
        query: [B, H, S, head size].
        key: [B, H, S, head size].
        value: [B, H, S, head size].
        attention_mask: Additive, [B, 1, 1, S], or None.
        scaling: Factor on the scores; default 1/sqrt(head size).
        dropout: Dropout of the probabilities.

    Returns:
        Context, [B, S, H, head size], and None in place of the probabilities.
    """
    recorder, scores = active_recorder(), None
    if recorder is not None:
        layer = recorder.next_layer()
        if layer in recorder.relation_layers:
            recorder.relations[layer] = QueryKeyValue(query, key, value)
        if layer in recorder.layers:
            # Passes over scores cost more than those over queries, forwards and backwards: none but the mask's, in place.
            scores = torch.matmul(query * (scaling or query.shape[-1] ** -0.5), key.transpose(2, 3))
            if attention_mask is not None:
                scores += attention_mask
            recorder.scores[layer] = scores
        recorder.end_behind(layer)
    if scores is None:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
        )
    else:
        probabilities = F.dropout(F.softmax(scores, -1), dropout, module.training)
        out = torch.matmul(probabilities, value)
    return out.transpose(1, 2).contiguous(), None


def additive_mask(
    *_: Any,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    local_size: int | None = None,
    kv_length: int = 0,
    device: torch.device | None = None,
    **__: Any,
) -> Tensor | None:
    """The mask transformers passes to `capturing_attention`.

    Args:
        attention_mask: 1 for real tokens, [B, S]; None where all are real.
        dtype: Of the mask.
        local_size: How far a token of a layer with a window sees to either side; None of a layer without.
        kv_length: Tokens S.
        device: Where the model runs.

    Returns:
        What is added to the scores, [B, 1, 1, S], with a window [B, 1, S, S]; None where every token sees every other.
    """
    allowed = None if attention_mask is None else attention_mask[:, None, None, :].to(dtype)
    if local_size is not None:
        places = torch.arange(kv_length, device=device if attention_mask is None else attention_mask.device)
        distance = (places[:, None] - places[None, :]).abs()
        band = (local_size + 1 - distance).clamp(0, 1).to(dtype)[None, None]
        allowed = band if allowed is None else allowed * band
    return None if allowed is None else (1.0 - allowed) * MASKED


CAPTURES.add("attention-interface", install)
