"""MPNet."""

from __future__ import annotations

from pocketbert.core.families.family import FEED_FORWARD, IDS_MASK, ONE_SEGMENT, TINY, Family, TokenizerKind

BUCKETS = 32
"""Buckets of distances that transformers computes with, whatever `relative_attention_num_buckets` says."""
ROWS = (
    Family(
        name="mpnet",
        title="MPNet",
        model_types=("mpnet",),
        classes="MPNet",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK,
        layer_path="mpnet.encoder.layer",
        feed_forward=FEED_FORWARD,
        choice_weights={"mpnet.pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"},
        lm_head="lm_head",
        position_offset=2,
        largest={"relative_attention_num_buckets": 1 << 10},
        smallest={"relative_attention_num_buckets": BUCKETS},
        limits=(
            ONE_SEGMENT,
            "all layers share one table of relative positions: a student with fewer layers takes it over as it is",
            "the signal attention has the scores with the bias of relative positions; the signal relations has the "
            "queries, keys and values without it",
        ),
        capture="position-bias",
        layer_parts="position-bias",
        tiny={**TINY, "max_position_embeddings": 66, "pad_token_id": 1},
    ),
)
