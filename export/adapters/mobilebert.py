"""Rewrite MobileBERT for export: layers with fewer operations, and the fill-mask decoder as two products.

`_lean_layer` rewrites a layer: NoNorm, a factor and an offset per channel, is multiplied into the linear layer before
it. `_channels_first_layer` does the same for activations [B, C, 1, L]. `_lean_head` replaces the decoder.
`pocketbert.export.adapters.half_range` scales numbers beyond fp16's range. All are registered under the key that the
family names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters import half_range
from pocketbert.export.adapters.ane import ChannelNorm, PerHeadAttention, to_pointwise
from pocketbert.export.adapters.lean import AllRows, FirstRow, Shape, class_path

_MODULE = "transformers.models.mobilebert.modeling_mobilebert"


def _lean_layer(layer: Any, first_row: bool, shape: Shape) -> nn.Module:
    """Rewrite a MobileBertLayer so that it needs fewer operations, and return the layer that replaces it.

    NoNorms (a factor and an offset per channel) are multiplied into the linear layers before them, and this project's
    attention (`AllRows`, or `FirstRow` for the first token only) replaces the one of transformers.

    Args:
        layer: A layer of the transformers model. Its weights are changed in place: do not use it afterwards.
        first_row: Whether only the first token's output is needed, as in the last layer of a classifier.
        shape: Settings of the rewritten layer that depend on the file format.

    Returns:
        The changed `layer` itself; with `first_row` a new module that computes the first token only.
    """
    _fold_norms(layer)
    attention = layer.attention.self
    projections = (attention.query, attention.key, attention.value, attention.num_attention_heads, attention.scaling)
    if first_row:
        return _FirstRowBottleneckLayer(layer, FirstRow(*projections, opaque=shape.opaque))
    layer.attention.self = _BottleneckAttention(AllRows(*projections))
    return layer  # type: ignore[no-any-return]


def _fold_norms(layer: Any) -> None:
    """Fold a layer's NoNorms (factor and offset per channel) into the linear layers before them, in place.

    Where a residual is added before a NoNorm, linear layer and NoNorm are replaced by one module that also
    multiplies the residual by the factor. In a layer without a bottleneck, the NoNorm of the output stays. A
    layer with LayerNorm is not changed.
    """
    attention, output = layer.attention, layer.output
    if class_path(output.LayerNorm) != f"{_MODULE}.NoNorm":
        return
    attention.output = _ScaledResidual(attention.output.dense, attention.output.LayerNorm)
    if layer.num_feedforward_networks > 1:
        for network in layer.ffn:
            network.output = _ScaledResidual(network.output.dense, network.output.LayerNorm)
    if layer.use_bottleneck:
        outer = _ScaledResidual(output.bottleneck.dense, output.bottleneck.LayerNorm)
        layer.output = _ScaledOutput(_ScaledResidual(output.dense, output.LayerNorm), outer)
        for narrow in layer.bottleneck.children():
            _fold(narrow.dense, narrow.LayerNorm)
            narrow.LayerNorm = nn.Identity()


def _fold(dense: nn.Linear, norm: Any) -> None:
    """Multiply a linear layer's weight and bias by a NoNorm's factor, and add its offset."""
    weight, bias = norm.weight.detach(), norm.bias.detach()
    with torch.no_grad():
        dense.weight.mul_(weight[:, None])
        dense.bias.mul_(weight).add_(bias)


class _ScaledResidual(nn.Module):
    """A linear layer, residual and NoNorm in one: (W x + b + r) * w + v is (wW) x + (wb + v) + w r."""

    def __init__(self, dense: nn.Linear, norm: Any) -> None:
        super().__init__()
        _fold(dense, norm)
        self.dense, self.weight = dense, nn.Parameter(norm.weight.detach())

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        """Project [..., D] to [..., H] and add the scaled residual [..., H]."""
        change: Tensor = self.dense(states)
        return change + residual * self.weight


class _ScaledOutput(nn.Module):
    """The end of a layer: the last feed-forward projection, then the projection back to the width of the model."""

    def __init__(self, inner: _ScaledResidual, bottleneck: nn.Module) -> None:
        super().__init__()
        self.inner, self.bottleneck = inner, bottleneck

    def forward(self, states: Tensor, residual: Tensor, layer_input: Tensor) -> Tensor:
        """Project the feed-forward states and add their residual, then project the sum and add the layer's input."""
        return self.bottleneck(self.inner(states, residual), layer_input)  # type: ignore[no-any-return]


class _BottleneckAttention(nn.Module):
    """An attention module of this project with the call signature of the transformers MobileBERT module."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, None]:
        """Return the attention output, and None in place of the attention weights."""
        return self.attention(queries, keys, values, mask), None


class _FirstRowBottleneckLayer(nn.Module):
    """The last MobileBERT layer, computed for the first token only."""

    def __init__(self, layer: Any, attention: FirstRow) -> None:
        super().__init__()
        self.attention, self.attention_output = attention, layer.attention.output
        self.bottleneck = layer.bottleneck if layer.use_bottleneck else None
        self.ffn = layer.ffn if layer.num_feedforward_networks > 1 else nn.ModuleList()
        self.intermediate, self.output = layer.intermediate, layer.output

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, *_: Any, **__: Any) -> Tensor:
        """Run the encoder layer for the first token, [B, L, H] to [B, 1, H].

        `attention_mask`, [B, 1, 1, L], is added to the attention scores.
        """
        first = hidden_states[:, :1]
        keys, values, residual = hidden_states, hidden_states, first
        if self.bottleneck is not None:
            _, keys, values, _ = self.bottleneck(hidden_states)
            residual = self.bottleneck.input(first)
        # queries and keys are computed from the same states, whatever the bottlenecks
        context = self.attention(keys[:, :1], keys, values, attention_mask)
        states = self.attention_output(context, residual)
        for network in self.ffn:
            states = network(states)
        return self.output(self.intermediate(states), states, first)  # type: ignore[no-any-return]


def _lean_head(model: Any) -> Any:
    """Replace the decoder of a fill-mask MobileBERT by `_SplitDecoder`, in every format.

    Args:
        model: A transformers model with a head in eval mode. **It is changed in place**: pass a deep copy.

    Returns:
        The changed model.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if class_path(child) == f"{_MODULE}.MobileBertLMPredictionHead":
                setattr(parent, name, _SplitDecoder(child))
    return model


class _SplitDecoder(nn.Module):
    """MobileBERT's fill-mask decoder as the sum of two matrix products.

    The transformers module concatenates the transposed embedding table and a second matrix before each product. If a
    converter computed that in advance, the file would hold the table twice; if the engine does it, the table is copied
    in every run, and no quantizer recognizes a weight. Here the first product reads the embedding table itself.
    """

    def __init__(self, head: Any) -> None:
        """Reuse the embedding table and the second matrix of the transformers head."""
        super().__init__()
        self.transform, self.decoder = head.transform, head.decoder
        more, words = head.dense.weight.shape
        self.rest = nn.Linear(more, words, bias=False, device="meta") if more else None
        if self.rest is not None:
            self.rest.weight = nn.Parameter(head.dense.weight.detach().t().contiguous())

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Compute the scores of every word, [B, L, H] to [B, L, V]."""
        states: Tensor = self.transform(hidden_states)
        width = self.decoder.in_features
        scores: Tensor = self.decoder(states[..., :width])
        return scores if self.rest is None else scores + self.rest(states[..., width:])


def _channels_first_layer(layer: Any) -> nn.Module:
    """Rewrite a MobileBertLayer so that it computes on activations [B, C, 1, L], and return it.

    The transformers layer only passes states from part to part, whatever their layout: only its parts are replaced.
    NoNorms are multiplied into the linear layers first, as in the other formats; the factors of those that remain are
    reshaped.

    Args:
        layer: A layer of the transformers model. It is changed in place.

    Returns:
        The changed `layer`, which computes all tokens.
    """
    stock = layer.attention.self
    attention = PerHeadAttention(stock.query, stock.key, stock.value, stock.num_attention_heads, stock.scaling)
    lean: Any = _lean_layer(layer, False, Shape())
    lean.attention.self = _BottleneckAttention(attention)
    for parent in list(lean.modules()):
        if isinstance(parent, _ScaledResidual) or type(parent).__name__ == "NoNorm":
            for name, vector in list(parent.named_parameters(recurse=False)):
                setattr(parent, name, nn.Parameter(vector.detach()[:, None, None]))
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, to_pointwise(child))
            elif isinstance(child, nn.LayerNorm):
                setattr(parent, name, ChannelNorm(child))
    return lean  # type: ignore[no-any-return]


LAYER_PARTS.add(
    "mobilebert",
    LayerParts(
        layer=half_range.LAYER,
        lean=_lean_layer,
        channels_first=_channels_first_layer,
        head=_lean_head,
        half_range=half_range.rescale_to_fp16,
    ),
)
