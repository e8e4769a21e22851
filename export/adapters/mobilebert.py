"""MobileBERT's layers with fewer operations: bottlenecks, stacked feed-forward parts, NoNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters import half_range
from pocketbert.export.adapters.ane import ChannelNorm, PerHeadAttention, pointwise
from pocketbert.export.adapters.lean import AllRows, FirstRow, Shape, full_name


def lean_layer(layer: Any, first_row: bool, shape: Shape) -> nn.Module:
    """Rewrite one MobileBertLayer, which is changed in place.

    Args:
        layer: The stock layer.
        first_row: Whether only the first row of its output is read.
        shape: How to write it.

    Returns:
        The layer to put in its place.
    """
    _fold_norms(layer)
    own = layer.attention.self
    projections = (own.query, own.key, own.value, own.num_attention_heads, own.scaling)
    if first_row:
        return FirstRowBottleneckLayer(layer, FirstRow(*projections, opaque=shape.opaque))
    layer.attention.self = BottleneckAttention(AllRows(*projections))
    return layer  # type: ignore[no-any-return]


class ScaledResidual(nn.Module):
    """A linear layer, a residual and NoNorm: (W x + b + r) * w + v is (wW) x + (wb + v) + w r."""

    def __init__(self, dense: nn.Linear, norm: nn.Module) -> None:
        super().__init__()
        _fold(dense, norm)
        self.dense, self.weight = dense, nn.Parameter(_vector(norm.weight))

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        """Project [..., D] and add the residual [..., H]."""
        change: Tensor = self.dense(states)
        return change + residual * self.weight


class ScaledOutput(nn.Module):
    """`ScaledResidual` followed by the bottleneck that leads out of a layer."""

    def __init__(self, inner: ScaledResidual, bottleneck: nn.Module) -> None:
        super().__init__()
        self.inner, self.bottleneck = inner, bottleneck

    def forward(self, states: Tensor, residual: Tensor, layer_input: Tensor) -> Tensor:
        """Close the last feed-forward part, then the layer."""
        return self.bottleneck(self.inner(states, residual), layer_input)  # type: ignore[no-any-return]


class BottleneckAttention(nn.Module):
    """Another attention behind the signature of the stock module."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, None]:
        """Attend; there are no attention weights to return."""
        return self.attention(queries, keys, values, mask), None


class FirstRowBottleneckLayer(nn.Module):
    """The last layer, for the first row only."""

    def __init__(self, layer: Any, attention: FirstRow) -> None:
        super().__init__()
        self.attention, self.attention_output = attention, layer.attention.output
        self.bottleneck = layer.bottleneck if layer.use_bottleneck else None
        self.ffn = layer.ffn if layer.num_feedforward_networks > 1 else nn.ModuleList()
        self.intermediate, self.output = layer.intermediate, layer.output

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, *_: Any, **__: Any) -> Tensor:
        """Run the layer, [B, L, H] to [B, 1, H]; `attention_mask` is [B, 1, 1, L]."""
        first = hidden_states[:, :1]
        keys, values, residual = hidden_states, hidden_states, first
        if self.bottleneck is not None:
            _, keys, values, _ = self.bottleneck(hidden_states)
            residual = self.bottleneck.input(first)
        # queries and keys are made from the same states, whatever the bottlenecks
        context = self.attention(keys[:, :1], keys, values, attention_mask)
        states = self.attention_output(context, residual)
        for network in self.ffn:
            states = network(states)
        return self.output(self.intermediate(states), states, first)  # type: ignore[no-any-return]


def _fold_norms(layer: Any) -> None:
    attention, output = layer.attention, layer.output
    if not _is_no_norm(output.LayerNorm):
        return
    attention.output = ScaledResidual(attention.output.dense, attention.output.LayerNorm)
    if layer.num_feedforward_networks > 1:
        for network in layer.ffn:
            network.output = ScaledResidual(network.output.dense, network.output.LayerNorm)
    if layer.use_bottleneck:
        outer = ScaledResidual(output.bottleneck.dense, output.bottleneck.LayerNorm)
        layer.output = ScaledOutput(ScaledResidual(output.dense, output.LayerNorm), outer)
        for narrow in layer.bottleneck.children():
            _fold(narrow.dense, narrow.LayerNorm)
            narrow.LayerNorm = nn.Identity()


def _is_no_norm(norm: nn.Module) -> bool:
    kind = type(norm)
    return f"{kind.__module__}.{kind.__qualname__}" == "transformers.models.mobilebert.modeling_mobilebert.NoNorm"


def _fold(dense: nn.Linear, norm: nn.Module) -> None:
    weight, bias = _vector(norm.weight), _vector(norm.bias)
    with torch.no_grad():
        dense.weight.mul_(weight[:, None])
        dense.bias.mul_(weight).add_(bias)


def _vector(parameter: Tensor | nn.Module) -> Tensor:
    assert isinstance(parameter, Tensor)
    return parameter.detach()


# --- heads ---
# Heads whose stock form keeps an engine from what is the same everywhere else.


_SPLIT = "transformers.models.mobilebert.modeling_mobilebert.MobileBertLMPredictionHead"


def lean_head(model: Any) -> Any:
    """Rewrite the head of a model for export, in every format.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.

    Returns:
        The model; unchanged where there is nothing to gain.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if full_name(child) == _SPLIT:
                setattr(parent, name, SplitDecoder(child))
    return model


class SplitDecoder(nn.Module):
    """MobileBERT's decoder as the sum of two products.

    The stock module glues the transposed embedding table to a second matrix before each product. As one constant, the
    table would be stored twice in a file, and left to the engine, it is copied in every run and no quantizer sees a
    weight. The first product reads the table itself, which the embedding shares.
    """

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.transform, self.decoder = head.transform, head.decoder
        more, words = head.dense.weight.shape
        self.rest = nn.Linear(more, words, bias=False, device="meta") if more else None
        if self.rest is not None:
            self.rest.weight = nn.Parameter(head.dense.weight.detach().t().contiguous())

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Scores of every word, [B, L, H] to [B, L, V]."""
        states: Tensor = self.transform(hidden_states)
        width = self.decoder.in_features
        scores: Tensor = self.decoder(states[..., :width])
        return scores if self.rest is None else scores + self.rest(states[..., width:])


# --- mobilebert ---
# MobileBERT's layers on channels-first activations [B, C, 1, L].


def channels_first_layer(layer: Any) -> nn.Module:
    """Rewrite one MobileBertLayer, which is changed in place.

    The stock layer only hands states from part to part, whatever their layout, so it stays and its parts are replaced.
    NoNorm is folded into the linear layers first, as in the other formats; where it is not, factors are turned.

    Args:
        layer: The stock layer.

    Returns:
        The same layer, on channels-first states, for all tokens.
    """
    own = layer.attention.self
    attention = PerHeadAttention(own.query, own.key, own.value, own.num_attention_heads, own.scaling)
    lean: Any = lean_layer(layer, False, Shape())
    lean.attention.self = BottleneckAttention(attention)
    for parent in list(lean.modules()):
        if isinstance(parent, ScaledResidual) or type(parent).__name__ == "NoNorm":
            for name, vector in list(parent.named_parameters(recurse=False)):
                setattr(parent, name, nn.Parameter(vector.detach()[:, None, None]))
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, pointwise(child))
            elif isinstance(child, nn.LayerNorm):
                setattr(parent, name, ChannelNorm(child))
    return lean  # type: ignore[no-any-return]


# --- mobilebert_parts ---
# How MobileBERT's layers, with their bottlenecks, are rewritten.


LAYER_PARTS.add(
    "mobilebert",
    LayerParts(
        layer=half_range.LAYER,
        lean=lean_layer,
        channels_first=channels_first_layer,
        head=lean_head,
        half_range=half_range.fit,
    ),
)
