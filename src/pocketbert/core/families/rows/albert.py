"""ALBERT."""

from __future__ import annotations

from pocketbert.core.families.config import MAX_LAYERS
from pocketbert.core.families.family import IDS_MASK_TYPES, TINY, Family, Objective, TokenizerKind

ROWS = (
    Family(
        name="albert",
        title="ALBERT",
        model_types=("albert",),
        classes="Albert",
        tokenizer=TokenizerKind.SENTENCEPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="albert.encoder.albert_layer_groups",
        feed_forward={"albert_layers.0.ffn": "albert_layers.0.ffn_output"},
        lm_head="predictions",
        stored_layers="num_hidden_groups",
        largest={"embedding_size": 1 << 14, "num_hidden_groups": MAX_LAYERS, "inner_group_num": MAX_LAYERS},
        taught_with={"inner_group_num": 1},
        objectives=(Objective.MASKED_LM, Objective.SENTENCE_ORDER),
        layer_parts="albert",
        limits=(
            "with inner_group_num above 1, which no published checkpoint has, it is exported but is neither teacher "
            "nor student: each step then runs several layers, and num_hidden_layers does not count them",
        ),
        tiny={**TINY, "embedding_size": 16},
    ),
)
