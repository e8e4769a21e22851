"""XLNet."""

from __future__ import annotations

from pocketbert.core.families.config import MAX_LAYERS, MAX_WIDTH
from pocketbert.core.families.family import IDS_MASK_TYPES, Family, TokenizerKind

ROWS = (
    Family(
        name="xlnet",
        title="XLNet",
        model_types=("xlnet",),
        classes="XLNet",
        tokenizer=TokenizerKind.SENTENCEPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="transformer.layer",
        feed_forward={"ff.layer_1": "ff.layer_2"},
        head_suffixes={"ForQuestionAnswering": "ForQuestionAnsweringSimple"},
        config_names={"intermediate_size": "d_inner"},
        largest={"d_model": 1 << 14, "d_inner": MAX_WIDTH, "n_layer": MAX_LAYERS, "n_head": MAX_LAYERS},
        fixed={"attn_type": "bi", "bi_data": False},
        head_size="d_head",
        padding_side="left",
        invalid_tasks={
            "several": "heads on whole texts are read at the first token, which is padding here",
            "fill-mask": "its language model predicts a word of a permuted order, which needs the inputs perm_mask and "
            "target_mapping; without them each token sees the word it is to guess",
        },
        objectives=(),
        limits=(
            "padding is on the left: its classifier reads the last token",
            "at most 512 tokens, as in its pre-training; memories of earlier texts, perm_mask, target_mapping and "
            "one-directional attention are not computed",
            "question answering takes XLNetForQuestionAnsweringSimple; the beam search of XLNetForQuestionAnswering is "
            "not computed",
            "no several heads: heads on whole texts are read at the first token, which is padding here",
            "no general stages: its language model guesses no hidden words",
            "relations are the content queries, keys and values, without the biases and offsets that scores get on top",
        ),
        capture="relative-attention",
        adapter="relative-encoder",
        tiny={"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "pad_token_id": 5},
    ),
)
