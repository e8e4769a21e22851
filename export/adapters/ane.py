"""Rewrite encoder layers to channels-first activations [B, C, 1, L], which Apple's Neural Engine prefers.

`rewrite_channels_first` rewrites the encoder of a BERT-like model; between embeddings and head, activations are
channels first. Classes are matched by full name, as in `pocketbert.export.adapters.lean`; a model with any other layer
is refused. Nothing is claimed about latency, which was not measured on a device.

Source: Apple, "Deploying Transformers on the Apple Neural Engine" (2022): 1x1 convolutions for linear layers, one small
product per head, softmax and normalization over axis 1. The code is our own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, LayerParts, all_families
from pocketbert.export.adapters.lean import (
    Parts,
    SharedStack,
    Shortcut,
    find_layer_parts,
    find_layers,
    reads_first_token,
)

_SMALLEST_GAIN = 1e-9
"""Relative to a normalization's largest factor: smaller factors are raised to it, since a bias is divided by them."""


def rewrite_channels_first(model: Any, family: Family) -> Any:
    """Replace a model's encoder layers by layers that compute on activations [B, C, 1, L], for Apple's Neural Engine.

    The results are the same up to rounding.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.
        family: The model's family.

    Returns:
        The changed model.

    Raises:
        InputError: If there is no channels-first layer for a layer class of the model.
    """
    base, parts = getattr(model, "base_model", model), find_layer_parts(family)
    stack, layers = find_layers(base, family, parts)
    if layers is None or parts is None or not _has_rewrite(parts):
        raise InputError(_unknown_encoder(model))
    first_token = reads_first_token(model, family, parts)
    if parts.stack is not None and parts.post_norm is not None:
        shared = parts.stack(base.get_submodule(stack))
        runs = [ChannelsFirstLayer(parts.post_norm(layer), False) for layer in shared.layers]
        base.set_submodule(stack, SharedStack(shared, runs, first_token, channels_first=True))
        return model
    for i, layer in enumerate(layers):
        if parts.post_norm is not None:
            layers[i] = ChannelsFirstLayer(parts.post_norm(layer), first_token and i == len(layers) - 1)
        elif parts.channels_first is not None:
            # all tokens: MobileBERT's last layer is one of 24, not worth a form of its own for the first token
            layers[i] = parts.channels_first(layer)
    base.set_submodule(stack, ChannelsFirst(base.get_submodule(stack)))
    return model


def _has_rewrite(parts: LayerParts | None) -> bool:
    return parts is not None and (parts.post_norm is not None or parts.channels_first is not None)


def _unknown_encoder(model: Any) -> Problem:
    """Return the error that the layout `ane` is not available for a model. It lists the families that have it."""
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    names = [
        f.name
        for f in all_families()
        if f.loads_as is None and f.instead_of_export is None and _has_rewrite(find_layer_parts(f))
    ]
    return Problem(
        "export.coreml.layout",
        f"'ane' has no rewrite for the encoder of '{kind}' ({type(model).__name__}); "
        f"allowed: encoders of {', '.join(names[:-1])} and {names[-1]}.",
        "Set export.coreml.layout: plain.",
    )


class ChannelsFirst(nn.Module):
    """A transformers encoder with channels-first layers: states are transposed before them, and back after them."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        """Run the encoder on states [B, L, C], which are transposed for its layers and back.

        Args:
            hidden_states: States of the tokens, [B, L, C].
            attention_mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            The output of the transformers encoder. Its last hidden state is [B, L, C], or [B, 1, C] if the head reads
            only the first token.
        """
        states = hidden_states.transpose(1, 2)[:, :, None]
        out = self.encoder(states, attention_mask=attention_mask.transpose(1, 3))
        out["last_hidden_state"] = out["last_hidden_state"][:, :, 0].transpose(1, 2)
        return out


class ChannelNorm(nn.Module):
    """Layer normalization over axis 1, written so that coremltools turns it into one `layer_norm` operation.

    For that the bias must be inside, (x + b / w) * w; coremltools folds b / w * w back into b. With a single operation,
    Core ML chooses the precision of the sum of squares, which fp16 cannot hold if states exceed 255. Epsilon stays that
    of the model, mostly 1e-12. If fp16 would round it to zero, coremltools writes the smallest number of fp16 instead;
    a larger epsilon such as 1e-7 in the weights would change the results of a model with small states in fp32 as well.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        """Reuse weight, bias and epsilon of a layer normalization."""
        super().__init__()
        gain = norm.weight.detach()
        smallest = _SMALLEST_GAIN * gain.abs().max().clamp(min=1.0)
        gain = torch.where(gain.abs() < smallest, torch.copysign(smallest, gain), gain)
        self.weight = nn.Parameter(gain[:, None, None])
        self.shift = nn.Parameter((norm.bias.detach() / gain)[:, None, None])
        self.eps = norm.eps

    def forward(self, states: Tensor) -> Tensor:
        """Normalize, [B, C, 1, L] to [B, C, 1, L]."""
        centred = states - states.mean(1, keepdim=True)
        variance = (centred * centred).mean(1, keepdim=True)
        return (centred * torch.rsqrt(variance + self.eps) + self.shift) * self.weight


class PerHeadAttention(nn.Module):
    """Attention on [B, C, 1, L], computed head by head as two matrix products. Only the keys are transposed."""

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, scaling: float) -> None:
        """Convert query, key and value projections to 1x1 convolutions.

        Args:
            query: Projection of the queries; its weights are copied and multiplied with `scaling`.
            key: Projection of the keys; its weights are reused.
            value: Projection of the values; its weights are reused.
            heads: Number of heads.
            scaling: Factor of the scores.
        """
        super().__init__()
        self.query, self.key, self.value = to_pointwise(query), to_pointwise(key), to_pointwise(value)
        self.depth = query.out_features // heads
        for name, parameter in list(self.query.named_parameters()):
            setattr(self.query, name, nn.Parameter(parameter.detach() * scaling))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention output of the queries.

        Args:
            queries: States that queries are computed from, [B, D, 1, Q].
            keys: States that keys are computed from, [B, D, 1, L].
            values: States that values are computed from, [B, E, 1, L].
            mask: Added to the scores, [B, L, 1, 1].

        Returns:
            Context, the heads one below the other, [B, heads * depth, 1, Q].
        """
        split_queries = self.query(queries).split(self.depth, 1)
        split_keys = self.key(keys).transpose(1, 3).split(self.depth, 3)
        split_values = self.value(values).split(self.depth, 1)
        contexts = []
        for query, key, value in zip(split_queries, split_keys, split_values, strict=True):
            scores = torch.einsum("bchq,bkhc->bkhq", query, key) + mask
            contexts.append(torch.einsum("bkhq,bchk->bchq", torch.softmax(scores, 1), value))
        return torch.cat(contexts, 1)


class ChannelsFirstLayer(nn.Module):
    """A post-norm layer (BERT, RoBERTa, DistilBERT) on [B, C, 1, L], for all tokens or the first one only."""

    def __init__(self, parts: Parts, first_token: bool) -> None:
        """Turn the modules of a transformers layer into 1x1 convolutions and channel norms."""
        super().__init__()
        self.first_token = first_token
        self.attention = PerHeadAttention(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.attention_out, self.attention_norm = to_pointwise(parts.attention_out), _norm(parts.attention_norm)
        self.up, self.act, self.down = to_pointwise(parts.up), parts.act, to_pointwise(parts.down)
        self.output_norm = _norm(parts.output_norm)
        self.rows_shortcut, self.attended_shortcut = Shortcut(channels_first=True), Shortcut(channels_first=True)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, *_: object, first_row: bool = False, **__: object
    ) -> Tensor:
        """Run the encoder layer on [B, C, 1, L]. Further arguments of the transformers encoder are ignored.

        Args:
            hidden_states: States of the tokens, [B, C, 1, L].
            attention_mask: Added to attention scores, [B, L, 1, 1].
            first_row: Whether to compute the first token only in this run. A layer that runs several times computes it
                only in its last run.

        Returns:
            New states, [B, C, 1, L], or [B, C, 1, 1] of the first token.
        """
        queries = hidden_states[:, :, :, :1] if self.first_token or first_row else hidden_states
        context = self.attention(queries, hidden_states, hidden_states, attention_mask)
        attended = self.attention_norm(self.attention_out(context) + self.rows_shortcut(queries))
        change = self.down(self.act(self.up(attended)))
        return self.output_norm(change + self.attended_shortcut(attended))  # type: ignore[no-any-return]


def _norm(norm: nn.Module) -> ChannelNorm:
    assert isinstance(norm, nn.LayerNorm)
    return ChannelNorm(norm)


def to_pointwise(dense: nn.Linear) -> nn.Conv2d:
    """Convert a linear layer to a 1x1 convolution with the same weights, [B, in, 1, L] to [B, out, 1, L]."""
    conv = nn.Conv2d(dense.in_features, dense.out_features, 1, bias=dense.bias is not None, device="meta")
    conv.weight = nn.Parameter(dense.weight.detach()[:, :, None, None])
    if dense.bias is not None:
        conv.bias = nn.Parameter(dense.bias.detach())
    return conv
