"""Find the modules of post-norm encoder layers: BERT and families with its layers, DistilBERT, ALBERT.

Each function returns the `Parts` of a layer, or the `Stack` of ALBERT's encoder, which runs a few stored layers
several times. The functions are registered in `LAYER_PARTS` under the keys that the families of
`pocketbert.core.families` name.
"""

from __future__ import annotations

from typing import Any

import torch

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters.lean import Parts, Stack

_MODELS = "transformers.models."


def bert_layer(layer: Any) -> Parts:
    """Return the projections, norms and feed-forward modules of a layer with BERT's attribute names."""
    attention, out = layer.attention.self, layer.attention.output
    return Parts(
        query=attention.query,
        key=attention.key,
        value=attention.value,
        heads=attention.num_attention_heads,
        scaling=attention.scaling,
        attention_out=out.dense,
        attention_norm=out.LayerNorm,
        up=layer.intermediate.dense,
        act=layer.intermediate.intermediate_act_fn,
        down=layer.output.dense,
        output_norm=layer.output.LayerNorm,
    )


def _distilbert_layer(layer: Any) -> Parts:
    """Return the projections, norms and feed-forward modules of DistilBERT's layer."""
    attention = layer.attention
    return Parts(
        query=attention.q_lin,
        key=attention.k_lin,
        value=attention.v_lin,
        heads=attention.n_heads,
        scaling=attention.scaling,
        attention_out=attention.out_lin,
        attention_norm=layer.sa_layer_norm,
        up=layer.ffn.lin1,
        act=layer.ffn.activation,
        down=layer.ffn.lin2,
        output_norm=layer.output_layer_norm,
    )


def _albert_layer(layer: Any) -> Parts:
    """Return the projections, norms and feed-forward modules of an AlbertLayer."""
    attention = layer.attention
    return Parts(
        query=attention.query,
        key=attention.key,
        value=attention.value,
        heads=attention.num_attention_heads,
        scaling=attention.scaling,
        attention_out=attention.dense,
        attention_norm=attention.LayerNorm,
        up=layer.ffn,
        act=layer.activation,
        down=layer.ffn_output,
        output_norm=layer.full_layer_layer_norm,
    )


def _albert_stack(encoder: Any) -> Stack:
    """Return the stored layers of an AlbertTransformer and the order in which they run, some several times.

    Each of ``num_hidden_layers`` steps runs one group of layers, the first steps the first group and so on; a group
    runs its layers one after the other.
    """
    config, groups = encoder.config, encoder.albert_layer_groups
    inner = config.inner_group_num
    steps_per_group = config.num_hidden_layers / config.num_hidden_groups
    group_of_step = [int(step / steps_per_group) for step in range(config.num_hidden_layers)]
    return Stack(
        entry=encoder.embedding_hidden_mapping_in,
        layers=tuple(layer for group in groups for layer in group.albert_layers),
        order=tuple(group * inner + i for group in group_of_step for i in range(inner)),
    )


def _fold_task_embedding(model: Any) -> Any:
    """Add ERNIE's embedding of task 0, which every token gets, to the segment embeddings, and remove the task table.

    A model without task embeddings is not changed.

    Args:
        model: An ERNIE model in eval mode, changed in place.

    Returns:
        The changed model.
    """
    embeddings = model.base_model.embeddings
    if embeddings.use_task_id:
        with torch.no_grad():
            embeddings.token_type_embeddings.weight += embeddings.task_type_embeddings.weight[0]
        embeddings.use_task_id = False
        del embeddings.task_type_embeddings
    return model


LAYER_PARTS.add("bert", LayerParts(f"{_MODELS}bert.modeling_bert.BertLayer", bert_layer))
LAYER_PARTS.add(
    "ernie", LayerParts(f"{_MODELS}ernie.modeling_ernie.ErnieLayer", bert_layer, embeddings=_fold_task_embedding)
)
LAYER_PARTS.add("electra", LayerParts(f"{_MODELS}electra.modeling_electra.ElectraLayer", bert_layer))
LAYER_PARTS.add("xlm-roberta", LayerParts(f"{_MODELS}xlm_roberta.modeling_xlm_roberta.XLMRobertaLayer", bert_layer))
LAYER_PARTS.add("camembert", LayerParts(f"{_MODELS}camembert.modeling_camembert.CamembertLayer", bert_layer))
LAYER_PARTS.add("roberta", LayerParts(f"{_MODELS}roberta.modeling_roberta.RobertaLayer", bert_layer))
LAYER_PARTS.add(
    "distilbert", LayerParts(f"{_MODELS}distilbert.modeling_distilbert.TransformerBlock", _distilbert_layer)
)
LAYER_PARTS.add(
    "albert",
    LayerParts(f"{_MODELS}albert.modeling_albert.AlbertLayerGroup", post_norm=_albert_layer, stack=_albert_stack),
)
