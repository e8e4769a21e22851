"""How the post-norm encoder layers of the family are taken apart."""

from __future__ import annotations

from typing import Any

import torch

from pocketbert.core.families import LAYER_PARTS, LayerParts
from pocketbert.export.adapters.parts import Parts


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
