"""Capture of attention modules that do not use transformers' attention interface: those of MPNet, SqueezeBERT and XLM.

Each gets a class that computes the same with `capturing_attention`. MPNet's recorded scores have the bias of relative
positions, which its encoder computes once for all layers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention
from transformers.models.squeezebert.modeling_squeezebert import SqueezeBertSelfAttention
from transformers.models.xlm.modeling_xlm import MultiHeadAttention

from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import (
    MASKED_SCORE,
    CapturingModule,
    additive_mask,
    capturing_attention,
    replace_classes,
)


class _CapturingMpnet(MPNetSelfAttention, CapturingModule):  # type: ignore[misc]
    """MPNet's attention module, computed by `capturing_attention`. Weights and results stay the same."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        """Compute the attention of one layer, and store what the active recorder keeps: scores, queries, keys, values.

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
        _refuse_probabilities(output_attentions)
        projected = (projection(hidden_states) for projection in (self.q, self.k, self.v))
        query, key, value = (_split_heads(states, self.num_attention_heads) for states in projected)
        added = position_bias
        if attention_mask is not None:
            mask = _bound_mask(attention_mask)
            added = mask if added is None else added + mask
        added = None if added is None else added.to(query.dtype)  # autocast computes queries in another dtype
        rate = self.dropout.p if self.training else 0.0
        context = capturing_attention(self, query, key, value, added, dropout=rate)[0]
        return (self.o(context.flatten(2)),)


class _CapturingSqueezeBert(SqueezeBertSelfAttention, CapturingModule):  # type: ignore[misc]
    """SqueezeBERT's attention module, computed by `capturing_attention`. Weights and results stay the same."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, output_attentions: bool
    ) -> dict[str, Tensor]:
        """Compute the attention of one layer, and store what the active recorder keeps: scores, queries, keys, values.

        Args:
            hidden_states: States of the tokens, channels first, [B, d, S].
            attention_mask: Added to the scores, [B, 1, S, S] or [B, 1, 1, S]; None if all tokens are real.
            output_attentions: Must be False: the recorder has the scores.

        Returns:
            The context, [B, d, S], under the name ``context_layer``.

        Raises:
            ValueError: If probabilities are requested.
        """
        _refuse_probabilities(output_attentions)
        projected = (projection(hidden_states).transpose(1, 2) for projection in (self.query, self.key, self.value))
        query, key, value = (_split_heads(states, self.num_attention_heads) for states in projected)
        added = None if attention_mask is None else _bound_mask(attention_mask).to(query.dtype)
        rate = self.dropout.p if self.training else 0.0
        context = capturing_attention(self, query, key, value, added, dropout=rate)[0]
        return {"context_layer": context.flatten(2).transpose(1, 2)}


class _CapturingXlm(MultiHeadAttention, CapturingModule):  # type: ignore[misc]
    """XLM's attention module, computed by `capturing_attention`. Weights and results stay the same."""

    def forward(
        self, input: Tensor, mask: Tensor, kv: None = None, cache: Any = None, output_attentions: bool = False, **_: Any
    ) -> tuple[Tensor, ...]:
        """Compute self-attention over all real tokens, and store what the active recorder keeps of it.

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
        _refuse_probabilities(output_attentions)
        if kv is not None or mask.dim() != 2:
            what = "states of another text" if kv is not None else f"a mask of shape {tuple(mask.shape)}"
            raise ValueError(
                f"attention is recorded of encoders, with a mask [B, S] and no other states; this is {what}"
            )
        projected = (projection(input) for projection in (self.q_lin, self.k_lin, self.v_lin))
        query, key, value = (_split_heads(states, self.n_heads) for states in projected)
        rate = self.dropout if self.training else 0.0
        added = additive_mask(attention_mask=mask, dtype=query.dtype)
        context = capturing_attention(self, query, key, value, added, dropout=rate)[0]
        return (self.out_lin(context.flatten(2)),)


def _refuse_probabilities(requested: bool) -> None:
    """Raise ValueError if a caller asks attention for its probabilities."""
    if requested:
        raise ValueError("the capturing attention returns no probabilities: the recorder has the scores")


def _split_heads(states: Tensor, heads: int) -> Tensor:
    """Reshape [B, S, d] to [B, H, S, d / H]."""
    batch, length = states.shape[:2]
    return states.view(batch, length, heads, -1).transpose(1, 2)


def _bound_mask(mask: Tensor) -> Tensor:
    """Raise numbers below -1e4 in an additive mask to -1e4: with transformers', differences of scores are infinite."""
    return mask.clamp(min=MASKED_SCORE)


for _key, _stock, _own in (
    ("position-bias", MPNetSelfAttention, _CapturingMpnet),
    ("grouped-attention", SqueezeBertSelfAttention, _CapturingSqueezeBert),
    ("self-attention", MultiHeadAttention, _CapturingXlm),
):
    CAPTURES.add(_key, partial(replace_classes, classes={_stock: _own}))
