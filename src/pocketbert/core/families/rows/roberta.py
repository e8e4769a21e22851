"""RoBERTa, XLM-R and CamemBERT, which are RoBERTa with other vocabularies and class names, and RoBERTa with pre-norm layers."""

from __future__ import annotations

from dataclasses import replace

from pocketbert.core.families.family import FEED_FORWARD, IDS_MASK, ONE_SEGMENT, TINY, Family, TokenizerKind

_ROBERTA = Family(
    name="roberta",
    title="RoBERTa",
    model_types=("roberta",),
    classes="Roberta",
    tokenizer=TokenizerKind.BYTE_BPE,
    inputs=IDS_MASK,
    layer_path="roberta.encoder.layer",
    feed_forward=FEED_FORWARD,
    choice_weights={"roberta.pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"},
    lm_head="lm_head",
    position_offset=2,
    limits=(ONE_SEGMENT,),
    layer_parts="roberta",
    tiny={**TINY, "max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1},
)
ROWS = (
    _ROBERTA,
    replace(
        _ROBERTA,
        name="xlm-r",
        title="XLM-R",
        model_types=("xlm-roberta",),
        classes="XLMRoberta",
        tokenizer=TokenizerKind.SENTENCEPIECE,
        layer_parts="xlm-roberta",
    ),
    replace(
        _ROBERTA,
        name="camembert",
        title="CamemBERT",
        model_types=("camembert",),
        classes="Camembert",
        tokenizer=TokenizerKind.SENTENCEPIECE,
        layer_parts="camembert",
    ),
    replace(
        _ROBERTA,
        name="roberta-prelayernorm",
        title="RoBERTa-PreLayerNorm",
        model_types=("roberta-prelayernorm",),
        classes="RobertaPreLayerNorm",
        layer_path="roberta_prelayernorm.encoder.layer",
        choice_weights={"roberta_prelayernorm.pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"},
        limits=(ONE_SEGMENT, "no layout for Apple's Neural Engine"),
        layer_parts="roberta-prelayernorm",
    ),
)
