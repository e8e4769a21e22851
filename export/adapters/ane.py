"""Encoder layers on channels-first activations [B, C, 1, L], as Apple's Neural Engine likes them.

Source: Apple, "Deploying Transformers on the Apple Neural Engine" (2022): 1x1 convolutions for linear layers, one small
product per head, softmax and normalization over axis 1. Own code; what it gains on a device was not measured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family, LayerParts, all_families
from pocketbert.export.adapters.lean import Parts, SharedStack, Shortcut, encoder_layers, known_parts, reads_first_token

_LEAST_GAIN = 1e-9
"""Of a normalization's largest factor: smaller ones are raised to it, since a bias is divided by them."""


def pointwise(dense: nn.Linear) -> nn.Conv2d:
    """A linear layer as a 1x1 convolution on the same weights, [B, in, 1, L] to [B, out, 1, L]."""
    conv = nn.Conv2d(dense.in_features, dense.out_features, 1, bias=dense.bias is not None, device="meta")
    conv.weight = nn.Parameter(dense.weight.detach()[:, :, None, None])
    if dense.bias is not None:
        conv.bias = nn.Parameter(dense.bias.detach())
    return conv


class ChannelNorm(nn.Module):
    """Layer normalization over axis 1, written as coremltools recognizes it: it becomes one `layer_norm`.

    That wants the bias inside, (x + b / w) * w, and folds b / w * w back into b. A single operation leaves it to
    Core ML in what precision to add up squares, which fp16 does not hold beyond 255 squared. Epsilon stays what the model
    has, 1e-12 mostly: coremltools writes a number that fp16 would round to zero as the smallest that it has, and
    1e-7 in the weights would move the numbers of a model with small states in fp32 as well.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        gain = norm.weight.detach()
        least = _LEAST_GAIN * gain.abs().max().clamp(min=1.0)
        gain = torch.where(gain.abs() < least, torch.copysign(least, gain), gain)
        self.weight = nn.Parameter(gain[:, None, None])
        self.shift = nn.Parameter((norm.bias.detach() / gain)[:, None, None])
        self.eps = norm.eps

    def forward(self, states: Tensor) -> Tensor:
        """Normalize, [B, C, 1, L] to [B, C, 1, L]."""
        centred = states - states.mean(1, keepdim=True)
        variance = (centred * centred).mean(1, keepdim=True)
        return (centred * torch.rsqrt(variance + self.eps) + self.shift) * self.weight


class PerHeadAttention(nn.Module):
    """Attention as two products per head; nothing but the keys is transposed."""

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, heads: int, scaling: float) -> None:
        """Take over projections.

        Args:
            query: Copied, its weights multiplied with `scaling`.
            key: Kept.
            value: Kept.
            heads: Number of heads.
            scaling: What scores are multiplied with.
        """
        super().__init__()
        self.query, self.key, self.value = pointwise(query), pointwise(key), pointwise(value)
        self.depth = query.out_features // heads
        for name, parameter in list(self.query.named_parameters()):
            setattr(self.query, name, nn.Parameter(parameter.detach() * scaling))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend.

        Args:
            queries: What queries are made from, [B, D, 1, Q].
            keys: What keys are made from, [B, D, 1, L].
            values: What values are made from, [B, E, 1, L].
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
    """A layer of BERT, RoBERTa or DistilBERT, for all tokens or for the first one only."""

    def __init__(self, parts: Parts, first_token: bool) -> None:
        super().__init__()
        self.first_token = first_token
        self.attention = PerHeadAttention(parts.query, parts.key, parts.value, parts.heads, parts.scaling)
        self.attention_out, self.attention_norm = pointwise(parts.attention_out), _norm(parts.attention_norm)
        self.up, self.act, self.down = pointwise(parts.up), parts.act, pointwise(parts.down)
        self.output_norm = _norm(parts.output_norm)
        self.rows_shortcut, self.attended_shortcut = Shortcut(channels_first=True), Shortcut(channels_first=True)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, *_: object, first_row: bool = False, **__: object
    ) -> Tensor:
        """Run the layer; what else the stock encoder passes is for decoders.

        Args:
            hidden_states: [B, C, 1, L].
            attention_mask: Added to attention scores, [B, L, 1, 1].
            first_row: Whether this run is for the first token only, of a layer that has runs for all tokens too.

        Returns:
            [B, C, 1, L], or [B, C, 1, 1] where only the first token is wanted.
        """
        queries = hidden_states[:, :, :, :1] if self.first_token or first_row else hidden_states
        context = self.attention(queries, hidden_states, hidden_states, attention_mask)
        attended = self.attention_norm(self.attention_out(context) + self.rows_shortcut(queries))
        change = self.down(self.act(self.up(attended)))
        return self.output_norm(change + self.attended_shortcut(attended))  # type: ignore[no-any-return]


def _norm(norm: nn.Module) -> ChannelNorm:
    assert isinstance(norm, nn.LayerNorm)
    return ChannelNorm(norm)


# --- turn ---
# An exact rewrite of BERT-like encoders for Apple's Neural Engine. No claim about latency: nobody measured it here.
#
# Between the embeddings and the head, activations lie channels first, [B, C, 1, L]. Classes are matched by full name, as
# in `lean`; a model with another layer than the one that was registered is refused.


def turn(model: Any, family: Family) -> Any:
    """Rewrite the encoder of a model to work channels first.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.
        family: Its row of the family table.

    Returns:
        The model.

    Raises:
        InputError: If the model has a layer that nothing is registered for.
    """
    base, known = getattr(model, "base_model", model), known_parts(family)
    stack, layers = encoder_layers(base, family, known)
    if layers is None or known is None or not _turns(known):
        raise InputError(_unknown(model))
    first_token = reads_first_token(model, family, known)
    if known.stack is not None and known.post_norm is not None:
        shared = known.stack(base.get_submodule(stack))
        runs = [ChannelsFirstLayer(known.post_norm(layer), False) for layer in shared.layers]
        base.set_submodule(stack, SharedStack(shared, runs, first_token, channels_first=True))
        return model
    for i, layer in enumerate(layers):
        if known.post_norm is not None:
            layers[i] = ChannelsFirstLayer(known.post_norm(layer), first_token and i == len(layers) - 1)
        elif known.channels_first is not None:
            # all tokens: MobileBERT's last layer is one of 24, not worth a form of its own for the first token
            layers[i] = known.channels_first(layer)
    base.set_submodule(stack, ChannelsFirst(base.get_submodule(stack)))
    return model


class ChannelsFirst(nn.Module):
    """A stock encoder whose layers work channels first: states and mask are turned once, and the result back."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        """Run the encoder.

        Args:
            hidden_states: [B, L, C].
            attention_mask: Added to attention scores, [B, 1, 1, L].

        Returns:
            What the stock encoder returns, its last hidden state [B, L, C], or [B, 1, C] where no head reads more.
        """
        states = hidden_states.transpose(1, 2)[:, :, None]
        out = self.encoder(states, attention_mask=attention_mask.transpose(1, 3))
        out["last_hidden_state"] = out["last_hidden_state"][:, :, 0].transpose(1, 2)
        return out


def _turns(known: LayerParts | None) -> bool:
    return known is not None and (known.post_norm is not None or known.channels_first is not None)


def _unknown(model: Any) -> Problem:
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    names = [
        f.name for f in all_families() if f.loads_as is None and f.instead_of_export is None and _turns(known_parts(f))
    ]
    return Problem(
        "export.coreml.layout",
        f"'ane' has no rewrite for the encoder of '{kind}' ({type(model).__name__}); "
        f"allowed: encoders of {', '.join(names[:-1])} and {names[-1]}.",
        "Set export.coreml.layout: plain.",
    )
