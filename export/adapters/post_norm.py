"""How the post-norm encoder layers of the family are taken apart."""

from __future__ import annotations

from typing import Any

import torch

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters.lean import Parts, Stack


def bert_layer(layer: Any) -> Parts:
    """Return the modules of a layer with BERT's names, such as ``attention.self`` and ``intermediate``."""
    own, out = layer.attention.self, layer.attention.output
    return Parts(
        query=own.query,
        key=own.key,
        value=own.value,
        heads=own.num_attention_heads,
        scaling=own.scaling,
        attention_out=out.dense,
        attention_norm=out.LayerNorm,
        up=layer.intermediate.dense,
        act=layer.intermediate.intermediate_act_fn,
        down=layer.output.dense,
        output_norm=layer.output.LayerNorm,
    )


def distilbert_layer(layer: Any) -> Parts:
    """Modules of DistilBERT's layer."""
    own = layer.attention
    return Parts(
        query=own.q_lin,
        key=own.k_lin,
        value=own.v_lin,
        heads=own.n_heads,
        scaling=own.scaling,
        attention_out=own.out_lin,
        attention_norm=layer.sa_layer_norm,
        up=layer.ffn.lin1,
        act=layer.ffn.activation,
        down=layer.ffn.lin2,
        output_norm=layer.output_layer_norm,
    )


def one_task(model: Any) -> Any:
    """Add the vector of task 0, which ERNIE gives every token, to the segments' vectors: one look-up and one table fewer.

    Args:
        model: An ERNIE model in eval mode, changed in place.
    """
    table = model.base_model.embeddings
    if table.use_task_id:
        with torch.no_grad():
            table.token_type_embeddings.weight += table.task_type_embeddings.weight[0]
        table.use_task_id = False
        del table.task_type_embeddings
    return model


_MODELS = "transformers.models."
LAYER_PARTS.add("bert", LayerParts(f"{_MODELS}bert.modeling_bert.BertLayer", bert_layer))
LAYER_PARTS.add("ernie", LayerParts(f"{_MODELS}ernie.modeling_ernie.ErnieLayer", bert_layer, embeddings=one_task))
LAYER_PARTS.add("electra", LayerParts(f"{_MODELS}electra.modeling_electra.ElectraLayer", bert_layer))
LAYER_PARTS.add("xlm-roberta", LayerParts(f"{_MODELS}xlm_roberta.modeling_xlm_roberta.XLMRobertaLayer", bert_layer))
LAYER_PARTS.add("roberta", LayerParts(f"{_MODELS}roberta.modeling_roberta.RobertaLayer", bert_layer))
LAYER_PARTS.add("distilbert", LayerParts(f"{_MODELS}distilbert.modeling_distilbert.TransformerBlock", distilbert_layer))


# --- albert_parts ---
# How ALBERT's encoder, which runs a few stored layers again and again, is taken apart.


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
