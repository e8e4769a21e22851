"""Capture of XLNet's relative attention, which does not use transformers' attention interface.

Recorded scores are the input of the softmax: the sum of the terms of content, offset and segment, with the mask added.
Recorded relations are the queries, keys and values of the content, without the biases and offsets, which belong to no
token.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import (
    MASKED_SCORE,
    CapturingModule,
    QueryKeyValue,
    active_recorder,
    replace_classes,
)


class _CapturingRelativeAttention(XLNetRelativeAttention, CapturingModule):  # type: ignore[misc]
    """XLNet's relative attention module that fills the active recorder. Weights and results stay the same."""

    def rel_attn_core(
        self,
        q_head: Tensor,
        k_head_h: Tensor,
        v_head_h: Tensor,
        k_head_r: Tensor,
        seg_mat: Tensor | None = None,
        attn_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> Any:
        """Compute the attention of one layer, and store what the active recorder keeps: scores, queries, keys, values.

        If the recorder ends the forward pass here, no context is computed.

        Args:
            q_head: Queries, [S, B, H, head size].
            k_head_h: Keys, [S, B, H, head size].
            v_head_h: Values, [S, B, H, head size].
            k_head_r: Projected embeddings of the offsets S to 1 - S, [2S, B, H, head size].
            seg_mat: Whether two tokens are of the same or of different segments, [S, S, B, 2]; None if there is one
                segment.
            attn_mask: 1 where a token may not attend to a key, [S, S, B, 1]; None if it may attend to all.
            output_attentions: Whether to return the probabilities too.

        Returns:
            The context, [S, B, H, head size]; with `output_attentions` a pair of it and the probabilities, [S, S, B,
            H].
        """
        recorder = active_recorder()
        layer = recorder.next_layer() if recorder is not None else -1
        query, key, value = (states.permute(1, 2, 0, 3) for states in (q_head, k_head_h, v_head_h))
        if recorder is not None and layer in recorder.relation_layers:
            recorder.relations[layer] = QueryKeyValue(query, key, value)
        if recorder is not None and layer not in recorder.layers:
            recorder.end_behind(layer)
        scores = torch.matmul(query + self.r_w_bias[:, None], key.transpose(2, 3))
        by_offset = torch.matmul(query + self.r_r_bias[:, None], k_head_r.permute(1, 2, 3, 0))
        length = scores.shape[-1]
        # row i of the offsets is shifted by i, so that column j holds the offset i - j
        shifted = by_offset.flatten(2)[..., length:]
        scores = scores + shifted.reshape(*shifted.shape[:2], length, -1)[..., :length]
        if seg_mat is not None:
            by_segment = torch.matmul(query + self.r_s_bias[:, None], self.seg_embed.permute(1, 2, 0))
            scores = scores + torch.einsum("ijbs,bnis->bnij", seg_mat, by_segment)
        scores = scores * self.scale
        if attn_mask is not None:
            scores = scores + attn_mask.permute(2, 3, 0, 1) * MASKED_SCORE
        if recorder is not None:
            if layer in recorder.layers:
                recorder.scores[layer] = scores
            recorder.end_behind(layer)
        probabilities = self.dropout(torch.softmax(scores, -1))
        context = torch.matmul(probabilities, value).permute(2, 0, 1, 3)
        return (context, probabilities.permute(2, 3, 0, 1)) if output_attentions else context


CAPTURES.add(
    "relative-attention", partial(replace_classes, classes={XLNetRelativeAttention: _CapturingRelativeAttention})
)
