"""Capture of MPNet's attention, which does not use transformers' attention interface.

Recorded scores have the bias of relative positions, which the encoder computes once for all layers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import MASKED_SCORE, CapturingModule, capturing_attention, replace_classes


class _CapturingSelfAttention(MPNetSelfAttention, CapturingModule):  # type: ignore[misc]
    """MPNet's attention module, computed by `capturing_attention`. Weights and results stay the same."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        """Compute the attention of one layer, and store its scores, queries, keys and values in the active recorder.

        Args:
            hidden_states: States of the tokens, [B, S, d].
            attention_mask: Added to the scores, [B, 1, S, S] or [B, 1, 1, S]; None if all tokens are real.
            position_bias: Added to the scores, [B, H, S, S].
            output_attentions: Must be False: the recorder has the scores.

        Returns:
            A tuple of one tensor, [B, S, d].

        Raises:
            ValueError: If probabilities are requested.
        """
        if output_attentions:
            raise ValueError("the capturing attention returns no probabilities: the recorder has the scores")
        batch, length = hidden_states.shape[:2]
        query, key, value = (
            projection(hidden_states).view(batch, length, self.num_attention_heads, -1).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        added = position_bias
        if attention_mask is not None:
            # transformers' smallest number would make the difference of two masked scores infinite
            mask = attention_mask.clamp(min=MASKED_SCORE)
            added = mask if added is None else added + mask
        added = None if added is None else added.to(query.dtype)  # autocast computes queries in another dtype
        rate = self.dropout.p if self.training else 0.0
        context = capturing_attention(self, query, key, value, added, dropout=rate)[0]
        return (self.o(context.flatten(2)),)


CAPTURES.add("position-bias", partial(replace_classes, classes={MPNetSelfAttention: _CapturingSelfAttention}))
