"""ModernBERT."""

from __future__ import annotations

from pocketbert.core.families.config import MAX_LAYERS
from pocketbert.core.families.family import IDS_MASK, ONE_SEGMENT, TINY, Family, TokenizerKind

ROWS = (
    Family(
        name="modernbert",
        title="ModernBERT",
        model_types=("modernbert",),
        classes="ModernBert",
        tokenizer=TokenizerKind.BYTE_BPE,
        inputs=IDS_MASK,
        layer_path="model.layers",
        feed_forward={"mlp.Wi": "mlp.Wo"},
        lm_head="head",
        largest={"local_attention": 1 << 20, "global_attn_every_n_layers": MAX_LAYERS},
        fixed={"sparse_prediction": False},
        rotary=True,
        limits=(
            ONE_SEGMENT,
            "rotary positions of the types default and linear; other types change with the length of the input",
            "no layout for Apple's Neural Engine",
        ),
        adapter="two-masks",
        layer_parts="modernbert",
        tiny={
            **TINY,
            "num_hidden_layers": 4,
            "local_attention": 8,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "cls_token_id": 0,
            "eos_token_id": 2,
            "sep_token_id": 2,
        },
    ),
)
