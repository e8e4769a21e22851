"""How the post-norm encoder layers of the family are taken apart."""

from __future__ import annotations

from typing import Any

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


_MODELS = "transformers.models."
LAYER_PARTS.add("bert", LayerParts(f"{_MODELS}bert.modeling_bert.BertLayer", bert_layer))
LAYER_PARTS.add("roberta", LayerParts(f"{_MODELS}roberta.modeling_roberta.RobertaLayer", bert_layer))
LAYER_PARTS.add("distilbert", LayerParts(f"{_MODELS}distilbert.modeling_distilbert.TransformerBlock", distilbert_layer))
