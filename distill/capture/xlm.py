"""Capture of XLM's attention, which does not use transformers' attention interface."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers.models.xlm.modeling_xlm import MultiHeadAttention

from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import CapturingModule, additive_mask, capturing_attention, replace_classes


class _CapturingSelfAttention(MultiHeadAttention, CapturingModule):  # type: ignore[misc]
    """XLM's attention module, computed by `capturing_attention`. Weights and results stay the same."""

    def forward(
        self,
        input: Tensor,
        mask: Tensor,
        kv: None = None,
        cache: Any = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        """Compute self-attention over all real tokens, and store its inputs and scores in the active recorder.

        Args:
            input: States of the tokens, [B, S, d].
            mask: 1 for real tokens, [B, S].
            kv: Must be None: only a decoder reads the states of another text.
            cache: Not used: only a decoder needs it.
            output_attentions: Must be False: the recorder has the scores.

        Returns:
            A tuple of one tensor, [B, S, d].

        Raises:
            ValueError: If probabilities or states of another text are requested, or the mask is a decoder's.
        """
        if output_attentions or kv is not None or mask.dim() != 2:
            raise ValueError(
                "the capturing attention of an encoder returns no probabilities, and takes no other states"
            )
        query, key, value = (
            projection(input).view(*input.shape[:2], self.n_heads, self.head_dim).transpose(1, 2)
            for projection in (self.q_lin, self.k_lin, self.v_lin)
        )
        rate = self.dropout if self.training else 0.0
        added = additive_mask(attention_mask=mask, dtype=query.dtype)
        context = capturing_attention(self, query, key, value, added, dropout=rate)[0]
        return (self.out_lin(context.flatten(2)),)


CAPTURES.add("self-attention", partial(replace_classes, classes={MultiHeadAttention: _CapturingSelfAttention}))
