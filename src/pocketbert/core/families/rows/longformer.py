"""Longformer."""

from __future__ import annotations

from pocketbert.core.families.family import FEED_FORWARD, IDS_MASK, ONE_SEGMENT, TINY, Family, TokenizerKind

_MAX_TOKENS = 1024
"""Up to this length attention over all pairs of tokens is as fast as over blocks, and its memory is bounded."""
ROWS = (
    Family(
        name="longformer",
        title="Longformer",
        model_types=("longformer",),
        classes="Longformer",
        tokenizer=TokenizerKind.BYTE_BPE,
        inputs=IDS_MASK,
        layer_path="longformer.encoder.layer",
        feed_forward=FEED_FORWARD,
        lm_head="lm_head",
        largest={"attention_window": 1 << 12},
        by_layer=("attention_window",),
        position_offset=2,
        most_tokens=_MAX_TOKENS,
        invalid_tasks={
            "multiple-choice": "its class gives global attention to all tokens behind the separator, padding included, so that "
            "the score of a choice depends on the length of the others"
        },
        limits=(
            ONE_SEGMENT,
            f"inputs of at most {_MAX_TOKENS:,} tokens: files compute attention over all pairs of tokens and mask what "
            "lies outside the window; export.attention: blocks (--attention blocks) writes graphs over blocks of "
            "tokens, for longer texts",
            "question-answering has no attention over blocks: every token of a question is global, and each block "
            "would see them all",
            "global attention is what transformers gives a task: the first token of a classifier, the question of "
            "question-answering, none otherwise; a mask of one's choice is no input",
            "inputs are padded on the right: the first token of a classifier has global attention",
            "the projections of global attention (query_global, key_global, value_global) are in no file of "
            "token-classification, fill-mask and feature-extraction, which do not use them",
            "the signal relations has the queries and keys of local attention, also at tokens with global attention; "
            "the signal attention has the scores of global attention there",
        ),
        capture="dense-bands",
        adapter="dense-bands",
        block_adapter="block-bands",
        tiny={
            **TINY,
            "max_position_embeddings": 66,
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "attention_window": 8,
            "sep_token_id": 3,
        },
    ),
)
