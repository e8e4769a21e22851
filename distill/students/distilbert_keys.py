"""DistilBERT from BERT: configuration and weights.

Of the embeddings DistilBERT lacks the segment table; of the heads it lacks the pooler. A classifier's pooler
weights go to ``pre_classifier``, the place that corresponds, but that is followed by a ReLU where BERT has tanh:
a good start, not the same function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pocketbert.distill.students.class_changes import ClassChange, add_class_change

_LAYER = {
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}
_OUTSIDE = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.LayerNorm": "embeddings.LayerNorm",
}
_HEADS = {
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
    "cls.predictions.decoder": "vocab_projector",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}
_POSITIONS = "embeddings.position_embeddings.weight"
_SEGMENTS = "embeddings.token_type_embeddings.weight"
_LAYER_KEY = re.compile(r"encoder\.layer\.(\d+)\.(.+)")


def distilbert_config(teacher: Any) -> Any:
    """A DistilBERT configuration with a BERT's sizes, rates and labels; its norms have their fixed epsilon 1e-12."""
    from transformers import DistilBertConfig

    return DistilBertConfig(
        vocab_size=teacher.vocab_size,
        max_position_embeddings=teacher.max_position_embeddings,
        dim=teacher.hidden_size,
        n_layers=teacher.num_hidden_layers,
        n_heads=teacher.num_attention_heads,
        hidden_dim=teacher.intermediate_size,
        activation=teacher.hidden_act,
        dropout=teacher.hidden_dropout_prob,
        attention_dropout=teacher.attention_probs_dropout_prob,
        initializer_range=teacher.initializer_range,
        pad_token_id=teacher.pad_token_id,
        tie_word_embeddings=teacher.tie_word_embeddings,
        problem_type=teacher.problem_type,
        id2label=teacher.id2label,
        label2id=teacher.label2id,
    )


def distilbert_weights(teacher: Mapping[str, Tensor], chosen: list[int], fold_segments: bool) -> dict[str, Tensor]:
    """A BERT's weights under DistilBERT's names.

    The released code drops the vector of segment 0, which the teacher adds at every position. Folded into the
    position table it is kept, and the student's embedding output equals the teacher's.

    Args:
        teacher: State dict of a BERT, with or without a head.
        chosen: Teacher layer (from 1) for each student layer.
        fold_segments: Whether to add segment 0 to the position table.

    Returns:
        Copies that fill a DistilBERT of the corresponding class completely; a classifier's pooler becomes
        ``pre_classifier``, any other pooler and the next-sentence head are left out.
    """
    headed = any(key.startswith("bert.") for key in teacher)
    base, prefix = ("bert.", "distilbert.") if headed else ("", "")
    names = {base + k: prefix + v for k, v in _OUTSIDE.items()}
    if headed:
        names |= _HEADS
    if "classifier.weight" in teacher and f"{base}pooler.dense.weight" in teacher:
        names[f"{base}pooler.dense"] = "pre_classifier"
    out = {}
    for key, value in teacher.items():
        module, _, leaf = key.rpartition(".")
        layer = _LAYER_KEY.fullmatch(key.removeprefix(base))
        if module in names:
            out[f"{names[module]}.{leaf}"] = value.clone()
        elif layer:
            part, _, leaf = layer[2].rpartition(".")
            for ours, theirs in enumerate(chosen):
                if theirs == int(layer[1]) + 1:
                    out[f"{prefix}transformer.layer.{ours}.{_LAYER[part]}.{leaf}"] = value.clone()
    if fold_segments:
        out[prefix + _POSITIONS] += teacher[base + _SEGMENTS][0]
    return out


BERT_TO_DISTILBERT = ClassChange(
    teacher="bert",
    student="distilbert",
    config=distilbert_config,
    weights=distilbert_weights,
    heads={"ForPreTraining": "ForMaskedLM"},
    # the released weights' start; the paper (arXiv 1910.01108, section 3) only says one layer out of two
    layers={(6, 12): [1, 3, 5, 8, 10, 12]},
)
add_class_change(BERT_TO_DISTILBERT)
