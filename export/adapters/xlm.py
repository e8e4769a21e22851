"""Rewrite XLM for export, with masks as arithmetic; the language of a token is an input or a constant.

`_language_encoder` is the adapter; `_LanguageEncoder` and `_LanguageLayer` reuse the loaded submodules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import ADAPTERS
from pocketbert.core.types import Format
from pocketbert.export.adapters.lean import AllRows, FirstRow
from pocketbert.export.adapters.mask_4d import MASK_VALUE, ExportPlan, Wrapped, check_computed, with_own_encoder

LANGUAGES = "langs"
"""The input that names the language of each token, [B, L]."""


def _language_encoder(model: Any, plan: ExportPlan) -> nn.Module:
    """Wrap an XLM model for export, with named inputs and plain tensor outputs.

    Args:
        model: A transformers model in eval mode. **It is changed in place.**
        plan: Settings of the export.

    Returns:
        The module; its third input is `LANGUAGES` if the plan's family has that input.

    Raises:
        InputError: If config.json or the plan asks for something that the rewritten encoder cannot compute.
    """
    from transformers.modeling_outputs import BaseModelOutput

    check_computed(model, plan)
    base, summary = model.base_model, getattr(model, "sequence_summary", None)
    takes_languages = LANGUAGES in plan.family.inputs
    encoder = _LanguageEncoder(
        base, plan.format, summary is not None and summary.summary_type == "first", takes_languages
    )
    return with_own_encoder(model, plan, encoder, BaseModelOutput, _WithLanguages if takes_languages else None)


class _LanguageEncoder(nn.Module):
    """XLM's embeddings and post-norm layers, built from the submodules of a loaded model.

    Args:
        model: An `XLMModel` in eval mode; its submodules are reused and changed.
        format: Format of the file.
        first_row: Whether only the first token's last state is read.
        languages: Whether the language of each token is an input; otherwise all tokens have the configuration's
            `lang_id`.
    """

    def __init__(self, model: Any, format: Format, first_row: bool, languages: bool) -> None:
        """Reuse a transformers encoder's modules. A constant language is merged into the position embeddings."""
        super().__init__()
        self.embeddings, self.position_embeddings = model.embeddings, model.position_embeddings
        self.norm = model.layer_norm_emb
        self.places = nn.Buffer(model.position_ids.clone(), persistent=False)
        self.lang_embeddings = model.lang_embeddings if languages and hasattr(model, "lang_embeddings") else None
        if self.lang_embeddings is None and hasattr(model, "lang_embeddings"):
            with torch.no_grad():  # every token has the same language, and every token has a position
                self.position_embeddings.weight += model.lang_embeddings.weight[model.config.lang_id]
        last = model.n_layers - 1
        parts = zip(model.attentions, model.layer_norm1, model.ffns, model.layer_norm2, strict=True)
        self.layers = nn.ModuleList(
            _LanguageLayer(part, first_row and i == last, format) for i, part in enumerate(parts)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor, langs: Tensor | None = None) -> Tensor:
        """Run the encoder on token ids, mask and, if they are an input, language ids.

        Args:
            input_ids: Token ids, [B, L].
            attention_mask: 1 for real tokens, [B, L].
            langs: Number of each token's language, [B, L].

        Returns:
            The last states, [B, L, H], or [B, 1, H] if only the first token is read; zeros at padding.
        """
        states = self.embeddings(input_ids) + self.position_embeddings(self.places[:, : input_ids.shape[1]])
        if self.lang_embeddings is not None:
            states = states + self.lang_embeddings(langs)
        open_tokens = attention_mask.to(torch.float32)
        mask = (1.0 - open_tokens[:, None, None, :]) * MASK_VALUE
        states = self.norm(states) * open_tokens[:, :, None]
        for layer in self.layers:
            states = layer(states, mask)
        # between layers no real token attends to a padded state
        return states * open_tokens[:, : states.shape[1], None]  # type: ignore[no-any-return]


class _LanguageLayer(nn.Module):
    """One XLM encoder layer, computed for all tokens or for the first one only."""

    def __init__(self, parts: tuple[Any, Any, Any, Any], first_row: bool, format: Format) -> None:
        """Reuse a transformers layer's (attention, its norm, feed-forward part, its norm)."""
        super().__init__()
        attention, self.attention_norm, feed, self.output_norm = parts
        projections = (attention.q_lin, attention.k_lin, attention.v_lin, attention.n_heads, attention.head_dim**-0.5)
        opaque = format is Format.TFLITE
        self.attention = FirstRow(*projections, opaque=opaque) if first_row else AllRows(*projections)
        self.first_row, self.flat = first_row, format is Format.ONNX
        self.attention_out, self.up, self.act, self.down = attention.out_lin, feed.lin1, feed.act, feed.lin2

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Run the encoder layer, [B, L, H] to [B, L, H] or [B, 1, H]. `mask` [B, 1, 1, L] is added to the scores."""
        rows = states[:, :1] if self.first_row else states
        context = self.attention(rows, states, states, mask)
        attended = self.attention_norm(self.attention_out(context) + rows)
        inner = attended.flatten(0, 1) if self.flat else attended
        change = self.down(self.act(self.up(inner)))
        if self.flat:
            change = change.view(attended.shape)
        return self.output_norm(change + attended)  # type: ignore[no-any-return]


class _WithLanguages(Wrapped):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, langs: Tensor) -> tuple[Tensor, ...]:
        return self.run(attention_mask, input_ids=input_ids, langs=langs)


ADAPTERS.add("language-encoder", _language_encoder)
