"""Capture of XLM's attention, which does not go through transformers' attention interface."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.models.xlm.modeling_xlm import MultiHeadAttention

from pocketbert.core.families import CAPTURES
from pocketbert.distill.capture.recorder import CapturingModule, additive_mask, capturing_attention


class CapturingSelfAttention(MultiHeadAttention, CapturingModule):  # type: ignore[misc]
    """The stock module, through the attention that feeds recorders; weights and results stay the same."""

    def forward(
        self,
        input: Tensor,
        mask: Tensor,
        kv: None = None,
        cache: Any = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        """Attend to all real tokens.

        Args:
            input: [B, S, d].
            mask: 1 for real tokens, [B, S].
            kv: Never given to an encoder.
            cache: Of a decoder; not used.
            output_attentions: Must not be asked for: the recorder gives the scores.

        Returns:
            [B, S, d], alone in a tuple.

        Raises:
            ValueError: If probabilities or another text's states are asked for, or the mask is a decoder's.
        """
        if output_attentions or kv is not None or mask.dim() != 2:
            raise ValueError(
                "the capturing attention of an encoder returns no probabilities, and takes no other states"
            )
        query, key, value = (self._split(part(input)) for part in (self.q_lin, self.k_lin, self.v_lin))
        rate = self.dropout if self.training else 0.0
        closed = additive_mask(attention_mask=mask, dtype=query.dtype)
        context, _none = capturing_attention(self, query, key, value, closed, dropout=rate)
        return (self.out_lin(context.flatten(2)),)

    def _split(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], self.n_heads, self.head_dim).transpose(1, 2)


def install(model: Any) -> None:
    """Make each layer's attention a capturing one."""
    for module in model.modules():
        if type(module) is MultiHeadAttention:
            module.__class__ = CapturingSelfAttention


CAPTURES.add("self-attention", install)
