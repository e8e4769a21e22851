"""Sentence vectors in the exported graph: `SentencePooling` pools token states and applies the layers that follow.

`pool_states` pools by one kind. All formats have the operations used here, and no intermediate number is much larger
than the states, so that fp16 can hold it and the ranges of static quantization stay narrow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbert.core.predict.sentence_settings import (
    CUT,
    DENSE,
    LAYER_NORM,
    NORM_EPSILON,
    Pooling,
    PoolingKind,
    VectorLayer,
)
from pocketbert.export.adapters.lean import make_linear

_SHORTEST_VECTOR = 1e-4
"""Lower bound of a vector's length, so that a vector of zeros stays one; fp16 holds this number."""
_LARGEST_WEIGHT = 1 / 16
"""Weight of a text's last token in the weighted mean, which keeps sums of 8,192 states of some hundreds in fp16."""


class SentencePooling(nn.Module):
    """Computes one vector per text from its token states.

    Args:
        pooling: The kinds of pooling, the layers that follow, and whether the vector is scaled to length 1.
        left: Whether texts are padded on the left.
        carried: Factor by which the states are scaled. If layers follow, they get the vector without it.
    """

    def __init__(self, pooling: Pooling, left: bool = False, carried: float = 1.0) -> None:
        super().__init__()
        self.kinds, self.normalize, self.left, self.carried = pooling.kinds, pooling.normalize, left, carried
        self.layers = nn.ModuleList([_make_layer(layer) for layer in pooling.layers])

    @property
    def scaled(self) -> bool:
        """Whether the vector is still multiplied by `carried`."""
        return not self.normalize and not len(self.layers)

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Pool states [B, L, H] with a mask [B, L], 1 for real tokens, to vectors [B, W]."""
        pooled = [pool_states(states, attention_mask, kind, self.left) for kind in self.kinds]
        vector = pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)
        if len(self.layers) and self.carried != 1:
            vector = vector * (1 / self.carried)
        for layer in self.layers:
            vector = layer(vector)
        return _normalize(vector) if self.normalize else vector


def pool_states(states: Tensor, attention_mask: Tensor, kind: PoolingKind, left: bool = False) -> Tensor:
    """Pool the states of each text's tokens to one vector.

    Source: Reimers and Gurevych 2019 (Sentence-BERT), strategies MEAN, CLS and MAX; the others as in
    sentence-transformers 6.

    Args:
        states: Token states, [B, L, H].
        attention_mask: 1 for real tokens, which are next to each other, [B, L].
        kind: The kind of pooling.
        left: Whether texts are padded on the left.

    Returns:
        One vector per text, [B, H].
    """
    if kind is PoolingKind.CLS and not left:
        return states[:, 0]
    if kind is PoolingKind.LAST_TOKEN and left:
        return states[:, -1]
    mask = attention_mask[:, :, None].to(states.dtype)
    if kind in (PoolingKind.CLS, PoolingKind.LAST_TOKEN):
        # 1 at the token whose neighbour is padding: the text's own end
        none = mask[:, :1] * 0
        beside = torch.cat([none, mask[:, :-1]] if left else [mask[:, 1:], none], 1)
        return (states * (mask - mask * beside)).sum(1)
    if kind is PoolingKind.MAX:
        # padding takes the state of a real token, and not a number that no other state comes near
        anchor = states[:, -1:] if left else states[:, :1]
        return (anchor + (states - anchor) * mask).amax(1)
    count = _at_least(mask.sum(1), 1.0)
    if kind is PoolingKind.WEIGHTED_MEAN:
        # numbers of the tokens as integers: in fp16 their running sum stops at 2,048; divided, fp16 holds all sums
        numbers = torch.cumsum(attention_mask, 1)[:, :, None].to(states.dtype)
        weights = numbers * mask / count[:, None] * _LARGEST_WEIGHT
        return (states * weights).sum(1) / _at_least(weights.sum(1), _LARGEST_WEIGHT)
    return (states * mask).sum(1) / (count if kind is PoolingKind.MEAN else count.sqrt())


def _make_layer(layer: VectorLayer) -> nn.Module:
    """Build the module of a layer after the pooling."""
    if layer.kind == DENSE:
        return _Dense(layer)
    if layer.kind == CUT:
        return _Cut(layer.width)
    return _Norm(layer) if layer.kind == LAYER_NORM else _Unit()


class _Dense(nn.Module):
    """A linear layer with an activation, whose input may be added to its output."""

    def __init__(self, layer: VectorLayer) -> None:
        super().__init__()
        weights = {name: torch.from_numpy(value) for name, value in layer.weights.items()}
        self.linear = make_linear(weights["linear.weight"], weights.get("linear.bias"))
        self.residual = make_linear(weights["residual.weight"], None) if "residual.weight" in weights else None
        self.activation, self.adds = layer.activation, layer.residual

    def forward(self, vector: Tensor) -> Tensor:
        """Apply the layer to vectors [B, W]."""
        out: Tensor = _ACTIVATIONS[self.activation](self.linear(vector))
        if not self.adds:
            return out
        residual: Tensor = vector if self.residual is None else self.residual(vector)
        return out + residual


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
    "SiLU": lambda x: x * torch.sigmoid(x),
}


class _Norm(nn.Module):
    """A layer norm in single steps, which every converter keeps."""

    def __init__(self, layer: VectorLayer) -> None:
        super().__init__()
        weight = torch.from_numpy(layer.weights["norm.weight"])
        bias = layer.weights.get("norm.bias")
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(torch.zeros_like(weight) if bias is None else torch.from_numpy(bias).clone())

    def forward(self, vector: Tensor) -> Tensor:
        centred = vector - vector.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return centred / (variance + NORM_EPSILON).sqrt() * self.weight + self.bias


class _Cut(nn.Module):
    """Keeps the first numbers of each vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, vector: Tensor) -> Tensor:
        return vector if vector.shape[-1] <= self.width else vector[:, : self.width]


class _Unit(nn.Module):
    def forward(self, vector: Tensor) -> Tensor:
        return _normalize(vector)


def _normalize(vector: Tensor) -> Tensor:
    """Divide vectors by their length."""
    # first by the largest entry: in fp16 the squares of a long vector's entries do not fit
    scaled = vector / _at_least(vector.abs().amax(-1, keepdim=True), _SHORTEST_VECTOR)
    return scaled / _at_least((scaled * scaled).sum(-1, keepdim=True).sqrt(), _SHORTEST_VECTOR)


def _at_least(values: Tensor, least: float) -> Tensor:
    """Raise numbers that are smaller than `least` to it.

    `clamp` is not used, because in Core ML it has an upper end too, and infinity is refused as a weight.
    """
    return torch.maximum(values, torch.full((), least))
