"""RoBERTa and XLM-R."""

from __future__ import annotations

from pocketbert.core.families.family import FEED_FORWARD, IDS_MASK, ONE_SEGMENT, TINY, Family, TokenizerKind

_TINY = {**TINY, "max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1}
ROWS = (
    Family(
        name="roberta",
        title="RoBERTa",
        model_types=("roberta",),
        classes="Roberta",
        tokenizer=TokenizerKind.BYTE_BPE,
        inputs=IDS_MASK,
        layer_path="roberta.encoder.layer",
        feed_forward=FEED_FORWARD,
        lm_head="lm_head",
        position_offset=2,
        limits=(ONE_SEGMENT,),
        layer_parts="roberta",
        tiny=_TINY,
    ),
    Family(
        name="xlm-r",
        title="XLM-R",
        model_types=("xlm-roberta",),
        classes="XLMRoberta",
        tokenizer=TokenizerKind.SENTENCEPIECE,
        inputs=IDS_MASK,
        layer_path="roberta.encoder.layer",
        feed_forward=FEED_FORWARD,
        lm_head="lm_head",
        position_offset=2,
        limits=(ONE_SEGMENT,),
        layer_parts="xlm-roberta",
        tiny=_TINY,
    ),
)
