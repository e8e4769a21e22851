"""DistilBERT."""

from __future__ import annotations

from pocketbert.core.families.config import MAX_LAYERS, MAX_WIDTH
from pocketbert.core.families.family import IDS_MASK, ONE_SEGMENT, Family, TokenizerKind

ROWS = (
    Family(
        name="distilbert",
        title="DistilBERT",
        model_types=("distilbert",),
        classes="DistilBert",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK,
        layer_path="distilbert.transformer.layer",
        feed_forward={"ffn.lin1": "ffn.lin2"},
        lm_head="vocab_transform",
        config_names={"intermediate_size": "hidden_dim"},
        largest={"dim": 1 << 14, "hidden_dim": MAX_WIDTH, "n_layers": MAX_LAYERS, "n_heads": MAX_LAYERS},
        limits=(ONE_SEGMENT,),
        layer_parts="distilbert",
        students_of=("bert",),
        tiny={
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
    ),
)
