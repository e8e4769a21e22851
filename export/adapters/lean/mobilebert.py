"""MobileBERT's layers with fewer operations: bottlenecks, stacked feed-forward parts, NoNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.export.adapters.lean.attention import AllRows, FirstRow
from pocketbert.export.adapters.lean.layers import Shape


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
