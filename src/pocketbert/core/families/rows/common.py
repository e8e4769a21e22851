"""Facts that rows of the family table share."""

from __future__ import annotations

IDS_MASK = ("input_ids", "attention_mask")
IDS_MASK_TYPES = (*IDS_MASK, "token_type_ids")
GAMMA_BETA = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
ONE_SEGMENT = "no segment ids: the texts of a pair are told apart by separators only"
FEED_FORWARD = {"intermediate.dense": "output.dense"}
"""Where BERT's layers, and those built from them, have their feed-forward matrices."""
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
