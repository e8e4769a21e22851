"""Exact rewrites of the stock encoders into cheaper graphs.

Every rewrite gives the same numbers up to rounding; what is kept is what paid when measured in the engine that runs
the format. Classes are matched by full name: a layer that is not the one that was registered is left as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import Family
from pocketbert.core.types import Format
from pocketbert.export.adapters.known_parts import known_parts
from pocketbert.export.adapters.lean.layers import PostNormLayer, Shape
from pocketbert.export.adapters.lean.shared import SharedStack
from pocketbert.export.adapters.parts import encoder_layers, reads_first_token


def slim(model: Any, family: Family, format: Format) -> Any:
    """Rewrite the encoder of a model for export.

    In every format: the attention scale is folded into the query's weights, NoNorm into the linear layer before it, and
    where the head reads nothing but the first token, the last layer computes nothing but that (`FirstRow`, or the last run
    of a `SharedStack`). In ONNX
    also `Shape.flat_ffn`. In TFLite, whose operators know no layer normalization, also `SpelledNorm`, and
    `SpelledSegments` where there are two.

    Args:
        model: A transformers model in eval mode with a head and eager attention, fed with an additive mask
            [B, 1, 1, L]. **It is changed in place**: pass a deep copy.
        family: Its row of the family table; a family without layer parts is left as it is.
        format: What the graph is going to be written as.

    Returns:
        The model.
    """
    encoder, known = getattr(model, "base_model", model), known_parts(family)
    path, layers = encoder_layers(encoder, family, known)
    if layers is None or known is None:
        return model
    shape = Shape(flat_ffn=format is Format.ONNX, opaque=format is Format.TFLITE)
    first_row = reads_first_token(model, family, known)
    if known.stack is not None and known.post_norm is not None:
        stack = known.stack(encoder.get_submodule(path))
        runs = [PostNormLayer(known.post_norm(layer), False, shape) for layer in stack.layers]
        encoder.set_submodule(path, SharedStack(stack, runs, first_row))
        layers = nn.ModuleList()
    for i, layer in enumerate(layers):
        only_first = first_row and i == len(layers) - 1
        if known.post_norm is not None:
            layers[i] = PostNormLayer(known.post_norm(layer), only_first, shape)
        elif known.lean is not None:
            layers[i] = known.lean(layer, only_first, shape)
    if format is Format.TFLITE:
        spell(model)
    return model


def spell(model: Any) -> None:
    """Write normalization and segments of a model as arithmetic, as TFLite needs it; the model is changed in place."""
    _spell_segments(getattr(getattr(model, "base_model", model), "embeddings", None))
    spell_norms(model)


def spell_norms(model: nn.Module) -> None:
    """Put `SpelledNorm` in the place of every layer normalization of a model."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.LayerNorm and child.elementwise_affine:
                setattr(parent, name, SpelledNorm(child))


class SpelledNorm(nn.Module):
    """Layer normalization as arithmetic over the last axis.

    litert-torch's own lowering takes one pass over the tensor more, and its converter folds weight and bias into the
    linear layers behind, which then lose precision in int8: the factors differ between the inputs of a channel, and
    a channel has one scale.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, states: Tensor) -> Tensor:
        """Normalize, [..., H] to [..., H]."""
        centred = states - states.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt(variance + self.eps) * self.weight
        return scaled if self.bias is None else scaled + self.bias


class SpelledSegments(nn.Module):
    """Embedding of segments 0 and 1 as a line through both: what differs between them times the id.

    TFLite looks up int8 rows one number at a time; two vectors need no table. The embedding of segment 0 is every
    token's, so it is added to the position table.
    """

    def __init__(self, segments: nn.Embedding) -> None:
        super().__init__()
        self.difference = nn.Parameter((segments.weight[1] - segments.weight[0]).detach().clone())

    def forward(self, ids: Tensor) -> Tensor:
        """What to add in addition to the position, [B, L] to [B, L, H]."""
        return ids[:, :, None].to(self.difference.dtype) * self.difference


def _spell_segments(embeddings: Any) -> None:
    segments = getattr(embeddings, "token_type_embeddings", None)
    positions = getattr(embeddings, "position_embeddings", None)
    if type(segments) is nn.Embedding and type(positions) is nn.Embedding and segments.num_embeddings == 2:
        with torch.no_grad():
            positions.weight.add_(segments.weight[0])
        embeddings.token_type_embeddings = SpelledSegments(segments)
