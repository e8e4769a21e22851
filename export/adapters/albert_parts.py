"""How ALBERT's encoder, which runs a few stored layers again and again, is taken apart."""

from __future__ import annotations

from typing import Any

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters.parts import Parts, Stack


def albert_stack(encoder: Any) -> Stack:
    """Return the layers of an AlbertTransformer in the order in which they run.

    Each of ``num_hidden_layers`` steps runs one group, the first steps the first group and so on; a group runs its inner
    layers one behind the other.
    """
    config, groups = encoder.config, encoder.albert_layer_groups
    inner = config.inner_group_num
    group_of = [
        int(step / (config.num_hidden_layers / config.num_hidden_groups)) for step in range(config.num_hidden_layers)
    ]
    return Stack(
        entry=encoder.embedding_hidden_mapping_in,
        layers=tuple(layer for group in groups for layer in group.albert_layers),
        order=tuple(group * inner + i for group in group_of for i in range(inner)),
    )


def albert_layer(layer: Any) -> Parts:
    """Return the modules of an AlbertLayer."""
    own = layer.attention
    return Parts(
        query=own.query,
        key=own.key,
        value=own.value,
        heads=own.num_attention_heads,
        scaling=own.scaling,
        attention_out=own.dense,
        attention_norm=own.LayerNorm,
        up=layer.ffn,
        act=layer.activation,
        down=layer.ffn_output,
        output_norm=layer.full_layer_layer_norm,
    )


LAYER_PARTS.add(
    "albert",
    LayerParts(
        "transformers.models.albert.modeling_albert.AlbertLayerGroup", post_norm=albert_layer, stack=albert_stack
    ),
)
