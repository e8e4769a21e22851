"""ERNIE of Baidu, 1.0 to 3.0."""

from __future__ import annotations

from pocketbert.core.families.config import MAX_WIDTH
from pocketbert.core.families.family import FEED_FORWARD, GAMMA_BETA, IDS_MASK_TYPES, TINY, Family, TokenizerKind

ROWS = (
    Family(
        name="ernie",
        title="ERNIE (Baidu)",
        model_types=("ernie",),
        classes="Ernie",
        tokenizer=TokenizerKind.WORDPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="ernie.encoder.layer",
        feed_forward=FEED_FORWARD,
        lm_head="cls.predictions",
        key_renames=GAMMA_BETA,
        largest={"task_type_vocab_size": MAX_WIDTH},
        limits=("every text is of task 0, which is what transformers takes where no task ids are given",),
        layer_parts="ernie",
        tiny=TINY,
    ),
)
