"""Rewrite MPNet for export: post-norm layers whose attention scores get a bias by distance, without a gather.

The rewriting functions are registered at the end of the file. transformers computes the bias [heads, L, L] once for all
layers; it depends on the distance j - i only. `_BiasedEncoder` stores the bias for each distance, repeats the values of
the distances -L to L - 1 in L equal rows, and shifts each row by one place (`shift_diagonals`). Layers are
`PostNormLayer` or `ChannelsFirstLayer` with an attention that adds the bias first and the mask last: quantizers
recognize the mask by its sum with the scores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters.ane import ChannelsFirstLayer, PerHeadAttention
from pocketbert.export.adapters.deberta import shift_diagonals
from pocketbert.export.adapters.lean import AllRows, FirstRow, Parts, PostNormLayer, Shape


class _BiasedEncoder(nn.Module):
    """MPNet's encoder, which computes the bias of relative positions once and passes it to all layers with the mask."""

    def __init__(self, encoder: Any, longest: int) -> None:
        """Reuse the layers of a transformers encoder, and look up the bias of every distance.

        Args:
            encoder: An `MPNetEncoder`.
            longest: Number of rows of the position table, which no input exceeds.
        """
        super().__init__()
        self.layer, self.largest = encoder.layer, longest + 1
        distances = torch.arange(-self.largest, self.largest)
        bias = encoder.relative_attention_bias.weight.detach()[encoder.relative_position_bucket(distances)]
        self.bias = nn.Buffer(bias.t()[:, None].contiguous())
        """Bias of the distances -R to R - 1, [heads, 1, 2 R]."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutput:
        """Run all encoder layers.

        Args:
            hidden_states: States of the tokens, [B, L, H], or [B, H, 1, L] for channels first.
            attention_mask: Added to attention scores, [B, 1, 1, L], or [B, L, 1, 1] for channels first.

        Returns:
            The last states of all tokens, [B, L, H], or of the first token, [B, 1, H]; channels first always of all
            tokens, [B, H, 1, L].
        """
        channels_first = hidden_states.dim() == 4
        column = hidden_states[:1, :1, 0].transpose(1, 2) if channels_first else hidden_states[:1, :, :1]
        length = column.shape[1]
        # computed ones: converters for one length would otherwise store the bias of all pairs of tokens; zeros to add
        # would have no range in the files for NPUs, and ones of the mask would make the bias a part of it there
        ones = torch.clamp(torch.abs(column) + 2.0, 0.0, 1.0)[:, None]
        bias = shift_diagonals(ones * self.bias[:, :, self.largest - length : self.largest + length])
        if channels_first:
            bias = bias.permute(0, 3, 1, 2)
        states = hidden_states
        for layer in self.layer:
            states = layer(states, (attention_mask, bias))
        return BaseModelOutput(last_hidden_state=states)


class _BiasedRows(AllRows):
    """Multi-head attention of all tokens, with a bias by distance."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Compute the attention output of every token; see `AllRows.forward`.

        `mask` is a pair of the mask [B, 1, 1, L] and the bias [1, heads, L, L], which are both added to the scores.
        """
        query, key, value = (
            self.split(self.query(queries)),
            self.split(self.key(keys)),
            self.split(self.value(values)),
        )
        closed, bias = mask
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) + bias + closed, -1)
        return torch.matmul(weights, value).transpose(1, 2).flatten(2)


class _BiasedFirstRow(FirstRow):
    """Multi-head attention of the first token only, with a bias by distance."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Compute the first token's attention output; see `FirstRow.forward`.

        `mask` is a pair of the mask [B, 1, 1, L] and the bias [1, heads, L, L], which are both added to the scores.
        """
        closed, bias = mask
        probes = self.key(self.query(queries) * self.probing).transpose(1, 2)
        scores = torch.matmul(keys, probes[:, :, : self.heads]).transpose(1, 2) + bias[:, :, 0]
        weights = torch.softmax(scores + closed[:, 0], -1)
        context: Tensor = self.value(torch.matmul(weights, values))
        return (context * self.own).sum(1, keepdim=True)


class _BiasedPerHead(PerHeadAttention):
    """Attention on [B, C, 1, L] head by head, with a bias by distance."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """Compute the attention output; see `PerHeadAttention.forward`.

        `mask` is a pair of the mask [B, L, 1, 1] and the bias [1, L, heads, L], which are both added to the scores.
        """
        closed, bias = mask
        split_queries = self.query(queries).split(self.depth, 1)
        split_keys = self.key(keys).transpose(1, 3).split(self.depth, 3)
        split_values = self.value(values).split(self.depth, 1)
        contexts = []
        heads = zip(split_queries, split_keys, split_values, torch.split(bias, 1, 2), strict=True)
        for query, key, value, own in heads:
            scores = torch.einsum("bchq,bkhc->bkhq", query, key) + own + closed
            contexts.append(torch.einsum("bkhq,bchk->bchq", torch.softmax(scores, 1), value))
        return torch.cat(contexts, 1)


def _parts(layer: Any) -> Parts:
    """Return the projections, norms and feed-forward modules of an MPNet layer."""
    attention = layer.attention.attn
    return Parts(
        query=attention.q,
        key=attention.k,
        value=attention.v,
        heads=attention.num_attention_heads,
        scaling=attention.attention_head_size**-0.5,
        attention_out=attention.o,
        attention_norm=layer.attention.LayerNorm,
        up=layer.intermediate.dense,
        act=layer.intermediate.intermediate_act_fn,
        down=layer.output.dense,
        output_norm=layer.output.LayerNorm,
    )


def _lean_layer(layer: Any, first_row: bool, shape: Shape) -> PostNormLayer:
    """Rewrite an MPNet layer, for all tokens or, with `first_row`, for the first one only."""
    parts = _parts(layer)
    projections = (parts.query, parts.key, parts.value, parts.heads, parts.scaling)
    attention = _BiasedFirstRow(*projections, opaque=shape.opaque) if first_row else _BiasedRows(*projections)
    return PostNormLayer(parts, first_row, shape, attention)


def _channels_first_layer(layer: Any) -> ChannelsFirstLayer:
    """Rewrite an MPNet layer to activations [B, C, 1, L], for all tokens."""
    parts = _parts(layer)
    made = ChannelsFirstLayer(parts, False)
    made.attention = _BiasedPerHead(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
    return made


def _compute_bias_once(model: Any) -> Any:
    """Replace the encoder of an MPNet model by `_BiasedEncoder`, in place, and return the model."""
    base = model.base_model
    base.encoder = _BiasedEncoder(base.encoder, base.config.max_position_embeddings)
    return model


LAYER_PARTS.add(
    "position-bias",
    LayerParts(
        "transformers.models.mpnet.modeling_mpnet.MPNetLayer",
        lean=_lean_layer,
        channels_first=_channels_first_layer,
        embeddings=_compute_bias_once,
    ),
)
