"""Rewrite SqueezeBERT for export: BERT's layers, whose projections read and write their channels in groups.

transformers computes the projections as grouped convolutions of width 1 over states [B, H, L]. Here they are first
linear layers whose matrix has a block on its diagonal for each group, so that the layers are rewritten as BERT's are;
then each such layer is split into one linear layer per group. A file stores the blocks only, and every scheme that
quantizes linear layers quantizes them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from pocketbert.core.families import ADAPTERS, LAYER_PARTS, LayerParts
from pocketbert.export.adapters.ane import ChannelsFirstLayer
from pocketbert.export.adapters.lean import Parts, PostNormLayer, make_linear
from pocketbert.export.adapters.mask_4d import ExportPlan, with_additive_mask

_GROUPS = {
    "attention.query": "q_groups",
    "attention.key": "k_groups",
    "attention.value": "v_groups",
    "attention_out": "post_attention_groups",
    "up": "intermediate_groups",
    "down": "output_groups",
}
"""Entry of config.json that counts the groups of a projection, by its path in a rewritten layer."""


def _with_grouped_layers(model: Any, plan: ExportPlan) -> nn.Module:
    """Rewrite a SqueezeBERT model for a format; see `with_additive_mask`. Its projections are split into groups."""
    module = with_additive_mask(model, plan)
    for layer in [m for m in module.modules() if isinstance(m, PostNormLayer | ChannelsFirstLayer)]:
        for path, entry in _GROUPS.items():
            groups = getattr(model.config, entry)
            if groups > 1:
                layer.set_submodule(path, _split_groups(layer.get_submodule(path), groups))
    return module


class _Grouped(nn.Module):
    """Several linear layers side by side: each reads its part of the channels and computes its part of the output."""

    def __init__(self, parts: list[nn.Linear]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.width = parts[0].in_features

    def forward(self, states: Tensor) -> Tensor:
        """Project states, [..., in] to [..., out]."""
        groups = zip(self.parts, torch.split(states, self.width, -1), strict=True)
        return torch.cat([part(own) for part, own in groups], -1)


def _split_groups(dense: nn.Module, groups: int) -> nn.Module:
    """Return the blocks on the diagonal of a linear layer's or a 1x1 convolution's weight as a grouped layer."""
    assert isinstance(dense, nn.Linear | nn.Conv2d)
    rows, columns = (size // groups for size in dense.weight.shape[:2])
    weight = dense.weight
    blocks = [weight[i * rows : (i + 1) * rows, i * columns : (i + 1) * columns] for i in range(groups)]
    if isinstance(dense, nn.Conv2d):
        conv = nn.Conv2d(dense.in_channels, dense.out_channels, 1, groups=groups, device="meta")
        conv.weight, conv.bias = nn.Parameter(torch.cat(blocks).detach()), dense.bias
        return conv
    biases = [None] * groups if dense.bias is None else dense.bias.chunk(groups)
    return _Grouped([make_linear(block, bias) for block, bias in zip(blocks, biases, strict=True)])


def _dense(conv: nn.Conv1d) -> nn.Linear:
    """Return a grouped convolution of width 1 as a linear layer, whose weight is 0 outside of the groups' blocks."""
    blocks = conv.weight.detach()[:, :, 0].chunk(conv.groups)
    return make_linear(torch.block_diag(*blocks), conv.bias)  # type: ignore[no-untyped-call]


def _parts(layer: Any) -> Parts:
    """Return the projections, norms and feed-forward modules of a SqueezeBERT layer, for states [B, L, H]."""
    attention = layer.attention
    for norm in (layer.post_attention.layernorm, layer.output.layernorm):
        norm.__class__ = nn.LayerNorm  # transformers' class only transposes the states before and after
    return Parts(
        query=_dense(attention.query),
        key=_dense(attention.key),
        value=_dense(attention.value),
        heads=attention.num_attention_heads,
        scaling=attention.attention_head_size**-0.5,
        attention_out=_dense(layer.post_attention.conv1d),
        attention_norm=layer.post_attention.layernorm,
        up=_dense(layer.intermediate.conv1d),
        act=layer.intermediate.act,
        down=_dense(layer.output.conv1d),
        output_norm=layer.output.layernorm,
    )


class _Encoder(nn.Module):
    """SqueezeBERT's encoder without its transpositions of the states."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.layers = encoder.layers

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_: Any) -> BaseModelOutput:
        """Run all encoder layers on the embeddings [B, L, H], or [B, H, 1, L], and an additive mask."""
        states = hidden_states
        for layer in self.layers:
            states = layer(states, attention_mask)
        return BaseModelOutput(last_hidden_state=states)


def _drop_transpositions(model: Any) -> Any:
    """Replace the encoder of a SqueezeBERT model by `_Encoder`, in place, and return the model."""
    model.base_model.encoder = _Encoder(model.base_model.encoder)
    return model


ADAPTERS.add("grouped-layers", _with_grouped_layers)
LAYER_PARTS.add(
    "squeezebert",
    LayerParts(
        "transformers.models.squeezebert.modeling_squeezebert.SqueezeBertModule",
        post_norm=_parts,
        embeddings=_drop_transpositions,
    ),
)
