"""DeBERTa v1, and v2 with v3, which is a v2 with other settings."""

from __future__ import annotations

from pocketbert.core.families.family import FEED_FORWARD, IDS_MASK_TYPES, NO_CHOICES, TINY, Family, TokenizerKind

_LEGACY = (
    "its masked-LM head (lm_predictions.*) has other names than the one that config.json asks transformers for "
    "(cls.predictions.*, legacy: true), which would start random: its guesses would be noise"
)
_DISCRIMINATOR = (
    "it was trained to find replaced tokens (mask_predictions.*): its masked-LM head, if it has one, was not trained "
    "with these weights, and its guesses are noise"
)
_TABLES = {"max_relative_positions": 1 << 15, "pooler_hidden_size": 1 << 14, "embedding_size": 1 << 14}
_SMALLEST = {"type_vocab_size": 0, "max_relative_positions": -1}
_LIMITS = (
    "segment ids are an input only where type_vocab_size is above 1; the public checkpoints have none",
    "the masked-LM head is computed as transformers does, without the enhanced mask decoder of the original code",
    "students have the teacher's class: no other family has relative positions",
    "inputs are padded on the right",
    "talking_head is refused",
)
_FP32 = (
    "training is in fp32 also where the hardware computes in bf16: attention of transformers fills masked places with "
    "the smallest fp32 number, which bf16 cannot hold"
)
_SETTINGS = {
    # transformers' own classes build normalizer and template anew, and differently, whatever tokenizer.json has
    "tokenizer_class": "PreTrainedTokenizerFast",
    **{f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk", "mask")},
}
_RELATIVE = {"relative_attention": True, "pos_att_type": "c2p|p2c"}
ROWS = (
    Family(
        name="deberta",
        title="DeBERTa",
        model_types=("deberta",),
        classes="Deberta",
        tokenizer=TokenizerKind.BYTE_BPE,
        inputs=IDS_MASK_TYPES,
        layer_path="deberta.encoder.layer",
        feed_forward=FEED_FORWARD,
        lm_head="cls.predictions|lm_predictions.lm_head",
        largest=_TABLES,
        width_copies=("pooler_hidden_size",),
        smallest=_SMALLEST,
        unread=("lm_predictions.", "embeddings.position_embeddings."),
        noise={"lm_predictions.": _LEGACY},
        tokenizer_settings=_SETTINGS,
        invalid_tasks={"multiple-choice": NO_CHOICES},
        limits=(*_LIMITS, _FP32),
        trains_in_bf16=False,
        capture="disentangled",
        adapter="disentangled",
        checkpoints="deberta",
        tiny={**TINY, **_RELATIVE, "pad_token_id": 1, "type_vocab_size": 2},
    ),
    Family(
        name="deberta-v2",
        title="DeBERTa v2 and v3",
        model_types=("deberta-v2",),
        classes="DebertaV2",
        tokenizer=TokenizerKind.SENTENCEPIECE,
        inputs=IDS_MASK_TYPES,
        layer_path="deberta.encoder.layer",
        feed_forward=FEED_FORWARD,
        lm_head="cls.predictions|lm_predictions.lm_head",
        width_copies=("pooler_hidden_size",),
        largest={**_TABLES, "position_buckets": 1 << 15, "conv_kernel_size": 63, "conv_groups": 1 << 14},
        smallest={**_SMALLEST, "position_buckets": -1, "conv_kernel_size": 0},
        unread=("lm_predictions.", "mask_predictions.", "embeddings.position_embeddings."),
        noise={"mask_predictions.": _DISCRIMINATOR, "lm_predictions.": _LEGACY},
        tokenizer_settings=_SETTINGS,
        limits=_LIMITS,
        capture="disentangled",
        adapter="disentangled",
        checkpoints="deberta-v2",
        tiny={
            **TINY,
            **_RELATIVE,
            "type_vocab_size": 2,
            "position_buckets": 8,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
    ),
)
